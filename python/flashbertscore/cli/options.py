"""Options that make a scorer, shared by the subcommands that score texts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flashbertscore import windows
from flashbertscore.cli import arguments
from flashbertscore.scorer import BERTScorer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable


def add_scorer(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`make_scorer`."""
    add = arguments.add_model(parser)
    add("-b", "--batch-size", type=int, default=64, metavar="N", help="texts a batch (default: 64)")
    add("--compile", action="store_true", help="put the model through torch.compile")
    add = parser.add_argument_group("long documents").add_argument
    add(
        "--long-documents",
        choices=windows.POLICIES,
        default="truncate",
        help="what happens to a text longer than the model takes: cut it and warn (default), "
        "encode all of it in overlapping windows, or stop",
    )
    add("--window", type=int, metavar="N", help="tokens of a window (default: the model's limit)")
    add("--stride", type=int, metavar="N", help="tokens from one window to the next (default: 3/4)")
    add(
        "--embeddings-dtype",
        choices=("float32", "bfloat16"),
        help="how embeddings are held (default: as the model gives them)",
    )
    add(
        "--max-memory",
        type=arguments.size,
        metavar="SIZE",
        help="memory for the embeddings of a pair, such as 500M or 8G; more lie in a temporary "
        "file (default: half of the machine's)",
    )
    add = parser.add_argument_group("score").add_argument
    add("--idf", action="store_true", help="weigh tokens by their IDF in the references")
    add("--rescale-with-baseline", action="store_true", help="rescale the scores")
    add("--baseline-path", metavar="FILE", help="baselines to rescale with (LAYER,P,R,F)")


def number(x: float) -> float | None:
    """Return a float32 as the shortest float that says it; None, which JSON has, for NaN."""
    return None if math.isnan(x) else float(f"{x:.9g}")


def make_scorer(args: argparse.Namespace, references: Iterable[str]) -> BERTScorer:
    """Return the scorer that the options ask for; with ``--idf`` counted over ``references``."""
    return BERTScorer(
        args.model,
        num_layers=args.num_layers,
        batch_size=args.batch_size,
        idf=args.idf,
        idf_sents=references if args.idf else None,
        device=args.device,
        lang=args.lang,
        rescale_with_baseline=args.rescale_with_baseline or args.baseline_path is not None,
        baseline_path=args.baseline_path,
        dtype=args.dtype,
        revision=args.revision,
        compile=args.compile,
        long_documents=args.long_documents,
        window=args.window,
        stride=args.stride,
        embeddings_dtype=args.embeddings_dtype,
        max_memory=args.max_memory,
    )
