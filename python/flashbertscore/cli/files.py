"""Text files with one text a line, read strictly: what is wrong is said with file and line."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STDIN = "-"


def read_lines(path: str) -> list[str]:
    """Return the lines of a UTF-8 file, without the white space around them.

    A byte order mark is dropped; lines end with LF, CRLF or CR; empty lines stay, as empty texts.

    Args:
        path: the file, or "-" for standard input.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8; names file and line.
    """
    data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Positions in error.object: that is data without its byte order mark.
        before = error.object[: error.start].decode("utf-8")
        line = len(_split(before + "x"))
        msg = (
            f"{name_of(path)}:{line}: not UTF-8 text "
            f"(byte 0x{error.object[error.start]:02x}: {error.reason})"
        )
        raise ValueError(msg) from None
    return [line.strip() for line in _split(text)]


def read_parallel(candidate: str, references: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the texts of a candidate file and, line by line, those of its reference files.

    Raises:
        OSError, ValueError: as read_lines.
        ValueError: a file has another number of lines, or none; names files and line.
    """
    if [candidate, *references].count(STDIN) > 1:
        msg = "standard input (-) can be only one of the files"
        raise ValueError(msg)
    candidates = read_lines(candidate)
    if not candidates:
        msg = f"{name_of(candidate)}: empty, there is nothing to score"
        raise ValueError(msg)
    columns = []
    for path in references:
        column = read_lines(path)
        if len(column) != len(candidates):
            raise ValueError(_mismatch(candidate, len(candidates), path, len(column)))
        columns.append(column)
    return candidates, [list(row) for row in zip(*columns, strict=True)]


def name_of(path: str) -> str:
    """Return what to call a file in a message."""
    return "<stdin>" if path == STDIN else path


def _mismatch(candidate: str, candidates: int, reference: str, references: int) -> str:
    longer = candidate if candidates > references else reference
    first = min(candidates, references) + 1
    return (
        f"# of sentences in {name_of(reference)} doesn't match the # of candidates: "
        f"{references} lines, {name_of(candidate)} has {candidates}; "
        f"{name_of(longer)}:{first} is the first line without a counterpart"
    )


def _split(text: str) -> list[str]:
    # Not str.splitlines: that also breaks at form feeds and Unicode's line separators, which are
    # part of a text.
    return list(io.StringIO(text, newline=None))
