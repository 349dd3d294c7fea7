"""Options that make a scorer, shared by the subcommands that score texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashbertscore.cli import arguments
from flashbertscore.scorer import BERTScorer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable


def add_scorer(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`make_scorer`."""
    add = arguments.add_model(parser)
    add("-b", "--batch-size", type=int, default=64, metavar="N", help="texts a batch (default: 64)")
    add = parser.add_argument_group("score").add_argument
    add("--idf", action="store_true", help="weigh tokens by their IDF in the references")
    add("--rescale-with-baseline", action="store_true", help="rescale the scores")
    add("--baseline-path", metavar="FILE", help="baselines to rescale with (LAYER,P,R,F)")


def make_scorer(
    args: argparse.Namespace,
    references: Iterable[str],
    **more: Any,  # noqa: ANN401 - arguments of BERTScorer
) -> BERTScorer:
    """Return the scorer that the options ask for; with ``--idf`` counted over ``references``.

    ``more``: what the command alone has, by the names of `BERTScorer`.
    """
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
        **more,
    )
