"""`flashbertscore`: the command of this library. Each subcommand is a file beside this one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from flashbertscore._version import __version__
from flashbertscore.cli import doctor, explain, matrix, mbr, score, terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "flashbertscore"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(PROGRAM, description="BERTScore, fast.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for subcommand in (score, explain, matrix, mbr, doctor):
        subcommand.add_to(commands)
    args = parser.parse_args(argv)
    return terminal.run(f"{PROGRAM} {args.command}", lambda: args.run(args))


if __name__ == "__main__":
    sys.exit(main())
