"""`flash-bert-score-show`: the command `bert-score-show`, flag by flag."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from flashbertscore import scorer
from flashbertscore.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "flash-bert-score-show"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = _parser().parse_args(argv)
    return terminal.run(PROGRAM, lambda: _show(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        PROGRAM,
        description="Draw the token similarities of two sentences, with the flags of"
        " bert-score-show 0.3.13.",
    )
    add = parser.add_argument
    add("--lang", default="en", help="language of the texts (default: en)")
    add("-m", "--model", help="name or folder of the model (default: that of --lang)")
    add("-l", "--num_layers", type=int, help="layer of the embeddings (default: the model's)")
    add("-v", "--verbose", action="store_true", help="accepted, not used (as in bert-score)")
    add("-r", "--ref", required=True, help="reference sentence")
    add("-c", "--cand", required=True, help="candidate sentence")
    add("-f", "--file", default="visualize.png", help="picture to write (default: %(default)s)")
    add("--rescale_with_baseline", action="store_true", help="rescale the similarities")
    add("--baseline_path", help="baseline file to rescale with (LAYER,P,R,F)")
    return parser


def _show(args: argparse.Namespace) -> None:
    scorer.plot_example(
        args.cand,
        args.ref,
        model_type=args.model,
        num_layers=args.num_layers,
        lang=args.lang,
        rescale_with_baseline=args.rescale_with_baseline,
        baseline_path=args.baseline_path,
        fname=args.file,
    )
    if args.file:
        print("Saved figure to file: ", args.file)  # two spaces, as in bert-score-show


if __name__ == "__main__":
    sys.exit(main())
