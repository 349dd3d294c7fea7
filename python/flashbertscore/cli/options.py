"""Options that make a scorer, shared by the subcommands that compare texts in other ways."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from flashbertscore.scorer import BERTScorer

_DTYPES = ("float32", "bfloat16", "float16", "float64")


def add_scorer(parser: Any) -> None:  # noqa: ANN401 - argparse's parsers
    """Add the options of :func:`make_scorer`."""
    add = parser.add_argument_group("model").add_argument
    add("--lang", help="language of the texts, such as en, which settles the default model")
    add("-m", "--model", help="name on the Hub or folder of the model")
    add("--revision", help="branch, tag or commit of the model on the Hub")
    add("-l", "--num-layers", type=int, metavar="K", help="layer of the embeddings")
    add("--device", type=device, help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")
    add("--dtype", choices=_DTYPES, default="float32", help="of the model (default: float32)")
    add("-b", "--batch-size", type=int, default=64, metavar="N", help="texts a batch (default: 64)")
    add = parser.add_argument_group("score").add_argument
    add("--idf", action="store_true", help="weigh tokens by their IDF in the references")
    add("--rescale-with-baseline", action="store_true", help="rescale the scores")
    add("--baseline-path", metavar="FILE", help="baselines to rescale with (LAYER,P,R,F)")


def make_scorer(args: argparse.Namespace, references: list[str]) -> BERTScorer:
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
    )


def device(name: str) -> str:
    """Return the name of a device that torch has here; for argparse."""
    try:
        kind = torch.device(name).type
    except RuntimeError:
        msg = f"{name!r} is no device of torch"
        raise argparse.ArgumentTypeError(msg) from None
    if kind == "cuda" and not torch.cuda.is_available():
        msg = f"{name!r} asked for, but torch sees no GPU here"
        raise argparse.ArgumentTypeError(msg)
    return name
