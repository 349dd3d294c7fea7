"""What is measured, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


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

ONE_DIRECTION = ("maxsim-cpu", "late-interaction-kernels")
"""Kernels of others that run on a CPU, in float32: maxima of one side alone, without weights."""

MAIN = [
    OpCase("float32", pairs, length, 768, 9, EVERYONE + ONE_DIRECTION, (1, 0)[: 1 + (length == 32)])
    for length, pairs in SIZES.items()
] + [
    OpCase("bfloat16", pairs, length, 768, 9, EVERYONE, (1, 0)[: 1 + (length == 32)])
    for length, pairs in SIZES.items()
]
LONG = [
    OpCase("float32", 1, 8192, 768, 3, threads=(1, 0)),
    OpCase("float32", 1, 16384, 768, 3, threads=(1, 0)),
    OpCase("bfloat16", 1, 16384, 768, 3),
]
CALL = OpCase("float32", 1, 8, 384, 2001)
"""What a call costs beside its arithmetic."""
HUGE = OpCase("float32", 1, 100_000, 768, 1, ("flashbertscore",), (0,))
OTHER_DIMS = [
    OpCase(dtype, pairs, length, dim, 9)
    for dtype in ("float32", "bfloat16")
    for dim in (384, 1024)
    for length, pairs in SIZES.items()
]
OP = [*MAIN, *LONG, HUGE, CALL, *OTHER_DIMS]


@dataclass(frozen=True)
class TextCase:
    """Texts to score, the model loaded beforehand.

    ``data``: what of texts.DATA is scored. ``how``: one of peers.TEXT_CALLS. ``pairs``: 0 for all.
    ``dtype``: of ours; bert-score computes in float32. ``target``: the ratio that is aimed at.
    """

    name: str
    description: str
    target: float
    runs: int = 3
    data: str = "news"
    how: str = "batch"
    model: str = "minilm"
    dtype: str = "float32"
    pairs: int = 0
    idf: bool = False


TEXT = [
    TextCase("news", "3,004 news sentence pairs", 3.2),
    TextCase("news-bfloat16", "the same in bfloat16", 5.5, dtype="bfloat16"),
    TextCase(
        "systems",
        "4 systems x the same 3,004 references, IDF counted and used",
        4.5,
        runs=1,
        data="systems",
        idf=True,
    ),
    TextCase("documents", "documents of 300 to 500 tokens", 3.2, data="documents"),
    TextCase(
        "calls", "`score()` called for 100 pairs, one at a time", 5.0, pairs=100, how="one by one"
    ),
    TextCase(
        "base",
        "300 news pairs, a random model of BERT-base's size",
        2.0,
        runs=1,
        model="base",
        pairs=300,
    ),
]

TEXT_CONTENDERS = ("flashbertscore", "bert-score")
