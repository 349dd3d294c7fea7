"""The arithmetic of the encoder: what callers ask for by the name of a dtype."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What `dtype` may be. tf32 is float32 in memory, with products of 10-bit mantissas on CUDA.
NAMES = ("float32", "bfloat16", "float16", "float64", "tf32")

# What the CPU has no arithmetic for: a float16 model would run many times slower than float32.
_CUDA_ONLY = {
    "float16": "use bfloat16, which is fast here, or float32",
    "tf32": "use float32, which is exact, or bfloat16",
}


class Precision(NamedTuple):
    """A name of `NAMES`, and the dtype that weights and embeddings then have."""

    name: str
    dtype: torch.dtype

    @property
    def tf32(self) -> bool:
        """Whether matrix products on CUDA may round their factors to TF32."""
        return self.name == "tf32"


def resolve(dtype: str | torch.dtype, device: str | torch.device) -> Precision:
    """Return the precision of a name or a torch.dtype, on a device.

    Raises:
        ValueError: it is none that scores can be computed in, or none for the device.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in NAMES:
        msg = f"dtype: expected {', '.join(NAMES[:-1])} or {NAMES[-1]}, got {dtype}"
        raise ValueError(msg)
    if name in _CUDA_ONLY and torch.device(device).type == "cpu":
        msg = f"dtype: {name} needs a CUDA device, got device {device}: {_CUDA_ONLY[name]}"
        raise ValueError(msg)
    return Precision(name, torch.float32 if name == "tf32" else getattr(torch, name))


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype: "float32" of torch.float32."""
    return str(dtype).removeprefix("torch.")


@contextmanager
def matrix_products(*, tf32: bool, device: torch.device) -> Iterator[None]:
    """Let float32 products on CUDA use TF32 or not, whatever the process has set; no-op elsewhere.

    What a process has set is for its other models: a score is what its signature says.
    """
    if device.type != "cuda":
        yield
        return
    flags: Any = torch.backends.cuda.matmul
    # torch 2.9 brought the second name, and refuses the first to those who have set the second.
    name, value = (
        ("fp32_precision", "tf32" if tf32 else "ieee")
        if hasattr(flags, "fp32_precision")
        else ("allow_tf32", tf32)
    )
    before = getattr(flags, name)
    setattr(flags, name, value)
    try:
        yield
    finally:
        setattr(flags, name, before)
