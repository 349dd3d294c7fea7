"""Arrays of other libraries as tensors, without a copy: NumPy's, and all with ``__dlpack__``."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack


class SupportsDLPack(Protocol):
    """An array that other libraries can read (https://dmlc.github.io/dlpack)."""

    def __dlpack__(self) -> Any:
        """Return a capsule."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return device type and index."""


Array = Tensor | SupportsDLPack


class _Writable:
    """A NumPy array as one that may be written to: torch warns of any other. We never write."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.__array_interface__ = array.__array_interface__ | {
            "data": (array.__array_interface__["data"][0], False)
        }
        self._keep = array


def tensor(name: str, value: Any) -> Tensor:
    """Return ``value`` as a tensor that shares its memory.

    Raises:
        TypeError: it is no tensor, and no array that torch can read.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return _from_numpy(name, value)
    if hasattr(value, "__dlpack__"):
        try:
            found: Tensor = from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            kind = type(value).__name__
            message = f"{name}: expected an array that DLPack hands over, got {kind} ({error})"
            raise TypeError(message) from None
        return found
    message = (
        f"{name}: expected a torch.Tensor or an array with __dlpack__, got {type(value).__name__}"
    )
    raise TypeError(message)


def _from_numpy(name: str, value: np.ndarray[Any, Any]) -> Tensor:
    if not value.flags.writeable:
        value = np.asarray(_Writable(value))
    try:
        if value.dtype.name == "bfloat16":  # of the package ml_dtypes
            return torch.from_numpy(value.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(value)
    except (TypeError, ValueError) as error:  # a dtype, strides or byte order that torch lacks
        message = (
            f"{name}: expected an array that torch can read, got dtype {value.dtype} and "
            f"strides {value.strides} ({error})"
        )
        raise TypeError(message) from None


def optional(name: str, value: Any) -> Tensor | None:
    """Return :func:`tensor` of what is not None."""
    return None if value is None else tensor(name, value)
