"""Where the embeddings of a chunk lie: in memory, or in a file that has no name."""

from __future__ import annotations

import logging
import math
import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("flashbertscore")

# Parts of the machine's memory, and of a device's free memory, that embeddings may take unasked.
_SHARE = 0.5
_SHARE_OF_DEVICE = 0.8

# Files in which a control group says what memory it allows: of version 2 and of version 1.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class StorageError(OSError):
    """There is no room for embeddings on the disk."""


@dataclass(frozen=True)
class Storage:
    """How the embeddings of one chunk of texts are stored.

    A chunk has one buffer, made once for all its texts: on the model's device, in main memory, or
    in a temporary file that is mapped into memory. The file is unlinked before it is used, so that
    none is left behind however the process ends, and its space is reserved, so that a full disk is
    an error here and not a signal later.

    Attributes:
        dtype: of the buffer, None for that of the model.
        max_memory: bytes of main memory that a buffer may take; None: half of the machine's.
    """

    dtype: torch.dtype | None = None
    max_memory: int | None = None

    def allocate(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """Return an uninitialized buffer.

        Args:
            shape: of the buffer.
            like: a batch of embeddings, for its dtype and device.

        Raises:
            StorageError: the file for it does not fit the disk, or cannot be made or mapped; names
                folder and size.
        """
        dtype = self.dtype or like.dtype
        need = math.prod(shape) * dtype.itemsize
        if like.device.type == "cuda":
            if need <= _SHARE_OF_DEVICE * free_memory(like.device):
                return like.new_empty(tuple(shape), dtype=dtype)
            _log.info(
                "%.1f GB of embeddings do not fit %s: kept and matched on the CPU",
                need / 1e9,
                like.device,
            )
        if need <= self.bound:
            return torch.empty(tuple(shape), dtype=dtype)
        return _mapped(tuple(shape), dtype, need)

    @property
    def bound(self) -> int:
        """Bytes of main memory that a buffer may take."""
        return int(memory_of_machine() * _SHARE) if self.max_memory is None else self.max_memory


def make_storage(dtype: str | torch.dtype | None, max_memory: int | None) -> Storage:
    """Return the storage that is asked for.

    Args:
        dtype: "float32", "bfloat16" or None.
        max_memory: see `Storage`.

    Raises:
        TypeError: `max_memory` is no int.
        ValueError: `dtype` is none of these, or `max_memory` is negative.
    """
    if max_memory is not None and (isinstance(max_memory, bool) or not isinstance(max_memory, int)):
        msg = f"max_memory: expected a number of bytes or None, got {type(max_memory).__name__}"
        raise TypeError(msg)
    if max_memory is not None and max_memory < 0:
        msg = f"max_memory: expected at least 0 bytes, got {max_memory}"
        raise ValueError(msg)
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype is None:
        return Storage(None, max_memory)
    name = str(dtype).removeprefix("torch.")
    if name not in known:
        msg = f"embeddings_dtype: expected float32, bfloat16 or None, got {dtype}"
        raise ValueError(msg)
    return Storage(known[name], max_memory)


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a CUDA device, those that torch's allocator holds too."""
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + held)


def memory_of_machine() -> int:
    """Return the bytes of main memory, or what a control group allows where that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMITS:
        try:
            memory = min(memory, int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # noqa: PERF203 - no such group, or "max"
            continue
    return memory


def _mapped(shape: tuple[int, ...], dtype: torch.dtype, size: int) -> torch.Tensor:
    folder = tempfile.gettempdir()
    _log.info("%.1f GB of embeddings are kept in a temporary file in %s", size / 1e9, folder)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            # The mapping outlives the file object, and the tensor holds on to it.
            mapping = mmap.mmap(file.fileno(), size)
    except OSError as error:
        msg = (
            f"no room for {size / 1e9:.3g} GB of embeddings ({error.strerror}); set TMPDIR to "
            "a folder on a larger disk, or raise max_memory"
        )
        raise StorageError(error.errno, msg, folder) from error
    return torch.frombuffer(mapping, dtype=dtype).view(shape)
