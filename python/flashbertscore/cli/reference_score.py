"""`flash-bert-score`: the command `bert-score`, flag by flag, with its standard output."""

from __future__ import annotations

import argparse
import os.path
import sys
from typing import TYPE_CHECKING, cast

from flashbertscore import scorer
from flashbertscore.cli import files, terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

PROGRAM = "flash-bert-score"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = _parser().parse_args(argv)
    return terminal.run(PROGRAM, lambda: _score(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        PROGRAM,
        description="BERTScore of a file or a sentence, with the flags and the output of bert-score"
        " 0.3.13.",
    )
    add = parser.add_argument
    add("--lang", help="language of the texts, such as en; en-sci for scientific English")
    add("-m", "--model", help="name or folder of the model (default: that of --lang)")
    add("-l", "--num_layers", type=int, help="layer of the embeddings (default: the model's)")
    add("-b", "--batch_size", type=int, default=64, help="texts a batch (default: 64)")
    add("--nthreads", type=int, default=4, help="accepted, not used (as in bert-score)")
    add("--idf", action="store_true", help="weigh tokens by inverse document frequency")
    add("--rescale_with_baseline", action="store_true", help="rescale the scores")
    add("--baseline_path", help="baseline file to rescale with (LAYER,P,R,F)")
    add(
        "--use_fast_tokenizer",
        action="store_false",
        help="drop _fast-tokenizer from the hash, as in bert-score; the ids are the same",
    )
    add("-s", "--seg_level", action="store_true", help="print P, R and F1 of each pair too")
    add("-v", "--verbose", action="store_true", help="print what is being done")
    add("-r", "--ref", nargs="+", required=True, help="reference files, or sentences")
    add("-c", "--cand", required=True, help="candidate file, or a sentence")
    return parser


def _score(args: argparse.Namespace) -> None:
    candidates, references = _read(args)
    found = scorer.score(
        candidates,
        references,
        model_type=args.model,
        num_layers=args.num_layers,
        verbose=args.verbose,
        idf=args.idf,
        batch_size=args.batch_size,
        lang=args.lang,
        return_hash=True,
        rescale_with_baseline=args.rescale_with_baseline,
        baseline_path=args.baseline_path,
        use_fast_tokenizer=args.use_fast_tokenizer,
    )
    (precision, recall, f1), config = cast("tuple[tuple[Tensor, Tensor, Tensor], str]", found)
    means = [float(x.mean()) for x in (precision, recall, f1)]
    print("{} P: {:.6f} R: {:.6f} F1: {:.6f}".format(config, *means))
    if args.seg_level:
        for row in zip(precision, recall, f1, strict=True):
            print("{:.6f}\t{:.6f}\t{:.6f}".format(*row))


def _read(args: argparse.Namespace) -> tuple[list[str], list[list[str]]]:
    if _is_file(args.cand):
        for path in args.ref:
            if not os.path.exists(path):  # noqa: PTH110 - see _is_file
                msg = f"reference file {path} doesn't exist"
                raise ValueError(msg)
        return files.read_parallel(args.cand, args.ref)
    if _is_file(args.ref[0]):
        msg = f"candidate file {args.cand} doesn't exist"
        raise ValueError(msg)
    if args.idf:
        msg = "do not support idf mode for a single pair of sentences"
        raise ValueError(msg)
    return [args.cand], [args.ref]


def _is_file(argument: str) -> bool:
    # Path.is_file raises where a sentence is too long for the name of a file.
    return os.path.isfile(argument)  # noqa: PTH113


if __name__ == "__main__":
    sys.exit(main())
