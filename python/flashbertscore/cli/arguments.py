"""Arguments that several subcommands have."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

import torch

from flashbertscore import precision

if TYPE_CHECKING:
    from collections.abc import Callable


def add_model(parser: argparse.ArgumentParser) -> Callable[..., Any]:
    """Add the arguments that choose a model; return what adds more to their group."""
    add = parser.add_argument_group("model").add_argument
    add("--lang", help="language of the texts, such as en, which settles the default model")
    add("-m", "--model", help="name on the Hub or folder of the model")
    add("--revision", help="branch, tag or commit of the model on the Hub")
    add("-l", "--num-layers", type=int, metavar="K", help="layer of the embeddings")
    add("--device", type=_device, help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")
    add(
        "--dtype",
        choices=precision.NAMES,
        default="float32",
        help="of the model (default: float32); float16 and tf32 on a GPU only",
    )
    return add


def size(text: str) -> int:
    """Return bytes: "1000", "500K", "64M", "8G" or "1.5T", in powers of 1,024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        msg = f"{text!r} is no size such as 500M or 8G"
        raise argparse.ArgumentTypeError(msg)
    number, unit = found.groups()
    return int(float(number) * 1024 ** " KMGT".index(unit.upper() or " "))


def _device(name: str) -> str:
    try:
        kind = torch.device(name).type
    except RuntimeError:
        msg = f"{name!r} is no device of torch"
        raise argparse.ArgumentTypeError(msg) from None
    if kind == "cuda" and not torch.cuda.is_available():
        msg = f"{name!r} asked for, but torch sees no GPU here"
        raise argparse.ArgumentTypeError(msg)
    return name
