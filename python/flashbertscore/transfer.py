"""Copies to a device that do not wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def to_device(
    tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return a CPU tensor on a device; to CUDA through pinned memory, without waiting.

    torch's allocator of pinned memory keeps the source until the copy is done.
    """
    if device.type != "cuda":
        return tensor.to(device, dtype)
    return tensor.to(dtype or tensor.dtype).pin_memory().to(device, non_blocking=True)
