"""What is measured on a GPU, as data."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Case:
    """``pairs`` pairs of ``length`` x ``length`` tokens of ``dim`` elements.

    ``chain``: also run what plain torch would do, in slices of pairs that fit the memory.
    """

    dtype: str
    pairs: int
    length: int
    dim: int
    chain: bool = True

    @property
    def name(self) -> str:
        return f"{self.dtype} {self.pairs}x{self.length} D={self.dim}"

    @property
    def bytes(self) -> int:
        """Of the embeddings, each read once."""
        size = torch.finfo(DTYPES[self.dtype]).bits // 8
        return 2 * self.pairs * self.length * self.dim * size

    @property
    def flop(self) -> float:
        """Floating-point operations of the similarities alone."""
        return 2.0 * self.pairs * self.length**2 * self.dim


# Bound by memory: in TB/s, beside a copy.
SHORT = [
    Case(dtype, 10_000, length, dim)
    for dtype in ("bf16", "fp32")
    for length in (20, 32, 64, 128, 256)
    for dim in (384, 768, 1024)
]

# Bound by the tensor cores: in TFLOP/s, beside a matrix product of the same shape. The similarities
# of 64k x 64k tokens would take 8 or 16 GiB, so torch runs that one in blocks of rows.
LONG = [
    Case(dtype, 1, length, 768) for dtype in ("bf16", "fp32") for length in (4096, 16384, 65536)
]

# For the kernels of others (gpu_peers.py), which take seconds a shape to tune themselves.
PEER_CASES = [
    case
    for case in SHORT + LONG
    if case.dtype == "bf16" and case.dim == 768 and case.length in (32, 128, 4096, 16384)
]

TARGETS = {
    "short bf16": "75 % of the copy bandwidth",
    "long bf16": "330 TFLOP/s",
    "fp32": "2x torch's chain",
}
