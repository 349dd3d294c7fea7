"""`flashbertscore doctor`: what runs here, to be read or pasted into a report of a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashbertscore import diagnostics, models, pipeline
from flashbertscore.bert_scorer import load
from flashbertscore.cli import arguments

if TYPE_CHECKING:
    import argparse


def add_to(commands: Any) -> None:  # noqa: ANN401 - what argparse's add_subparsers returns
    """Add the subcommand `doctor` to the command `flashbertscore`."""
    parser = commands.add_parser(
        "doctor",
        help="print what runs here: versions, kernels, threads, devices, a model's settings",
        description="Print versions, kernels, threads and devices; with a model, how it runs.",
    )
    parser.set_defaults(run=_run)
    arguments.add_model(parser)


def _run(args: argparse.Namespace) -> None:
    lines = diagnostics.environment()
    if args.model is not None or args.lang is not None:
        name, layer = models.resolve(args.model, args.lang, args.num_layers)
        device = pipeline.as_device(args.device)
        loaded = load(name, layer, False, device, args.dtype, args.revision)  # noqa: FBT003
        lines |= diagnostics.model(loaded)
    width = max(map(len, lines)) + 2
    for name, value in lines.items():
        print(f"{name:<{width}}{value}")
