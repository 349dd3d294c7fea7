"""`flashbertscore matrix`: the score of every candidate with every reference."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flashbertscore.allpairs import UTILITIES
from flashbertscore.cli import files, options

if TYPE_CHECKING:
    import argparse


def add_to(commands: Any) -> None:  # noqa: ANN401 - what argparse's add_subparsers returns
    """Add the subcommand `matrix` to the command `flashbertscore`."""
    parser = commands.add_parser(
        "matrix",
        help="score every candidate with every reference",
        description="Score each line of one file with each line of another, or of the same.",
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument_group("texts").add_argument
    add("-c", "--cand", required=True, metavar="FILE", help="candidates, one a line; - is stdin")
    add("-r", "--ref", metavar="FILE", help="references, one a line (default: the candidates)")
    options.add_scorer(parser)
    add = parser.add_argument_group("output").add_argument
    add("--metric", choices=UTILITIES, default="f1", help="score of the table (default: f1)")
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="write all three scores there as a NumPy array, float32 [3, candidates, references] "
        "(.npy), instead of printing a table",
    )


def _run(args: argparse.Namespace) -> None:
    candidates = _texts(args.cand)
    references = candidates if args.ref is None else _texts(args.ref)
    scorer = options.make_scorer(args, references)
    scores = torch.stack(scorer.score_matrix(candidates, references)).numpy()
    if args.output is not None:
        with open(args.output, "wb") as file:  # noqa: PTH123 - np.save would append .npy to a name
            np.save(file, scores)
        return
    for row in scores[UTILITIES.index(args.metric)]:
        sys.stdout.write("\t".join(f"{value:.6f}" for value in row) + "\n")


def _texts(path: str) -> list[str]:
    lines = files.read_lines(path)
    if not lines:
        message = f"{files.name_of(path)}: empty, there is nothing to score"
        raise ValueError(message)
    return lines
