"""How every command ends: exit codes, one-line errors, quiet interruption."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

USAGE_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE

# What the library raises for arguments and files that cannot be right. Anything else is a fault of
# ours, and keeps its traceback.
_INPUT_ERRORS = (AssertionError, ImportError, OSError, TypeError, ValueError)


def run(program: str, command: Callable[[], None]) -> int:
    """Run a command and return the exit code: 0, or 2 after one line on stderr that says why.

    Ctrl-C and a reader that closes the pipe end it without a word.
    """

    def show_warning(
        message: Warning | str,
        category: type[Warning],  # noqa: ARG001
        filename: str,  # noqa: ARG001
        lineno: int,  # noqa: ARG001
        file: TextIO | None = None,  # noqa: ARG001
        line: str | None = None,  # noqa: ARG001
    ) -> None:
        print(f"{program}: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        try:
            command()
            sys.stdout.flush()
        except BrokenPipeError:
            # Python would flush stdout once more at exit, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BROKEN_PIPE
        except KeyboardInterrupt:
            return INTERRUPTED
        except _INPUT_ERRORS as error:
            print(f"{program}: error: {_one_line(error)}", file=sys.stderr)
            return USAGE_ERROR
    return 0


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
