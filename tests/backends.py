"""Where the op's tests run: one list, so that a new backend meets every test there is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from flashbertscore import backward, build_info, functional, isas, ops
from flashbertscore.functional import Scores

try:
    from flashbertscore import _emulated
except ImportError:
    _emulated = None

# The CUDA kernels on the CPU: same launcher, same source.
EMULATED = functools.partial(ops._match_planned, getattr(_emulated, "CudaPlan", None), 0)
EMULATED_BACKWARD = functools.partial(backward.planned, _emulated, 0)
OPS = torch.ops.flashbertscore


def transfer(value: Tensor, device: str) -> Tensor:
    """A copy on ``device`` with the strides and the place in its buffer of ``value``.

    ``Tensor.to`` would give rows that are packed and start at a multiple of 512 bytes.
    """
    buffer = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
    view = buffer.to(device, copy=True).as_strided(
        value.shape, value.stride(), value.storage_offset()
    )
    return torch._neg_view(view) if value.is_neg() else view


@dataclass(frozen=True)
class Backend:
    """An implementation of the op. ``bitwise``: whether it promises the same bits everywhere."""

    name: str
    bitwise: bool = True

    def select(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the op use this backend for the rest of the test."""
        if self.name.startswith("cpu-"):
            monkeypatch.setenv("FLASHBERTSCORE_ISA", self.name.removeprefix("cpu-"))

    def skip_reason(self) -> str | None:
        """Why this backend cannot run here; None if it can."""
        if self.name == "cuda-emulated" and _emulated is None:
            return "built without FLASHBERTSCORE_EMULATED=ON"
        if self.name == "cuda" and not build_info()["cuda"]:
            return "built without CUDA"
        if self.name == "cuda" and not torch.cuda.is_available():
            return "no CUDA device"
        return None

    def _on_gpu(
        self, op: Callable[..., Scores], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Scores:
        """Call with copies of all tensors on the GPU; scores as CPU tensors."""

        def move(value: Any) -> Any:
            return transfer(value, "cuda") if isinstance(value, Tensor) else value

        scores = op(*map(move, args), **{name: move(value) for name, value in kwargs.items()})
        return Scores(*(value.cpu() for value in scores))

    def bertscore(self, *args: Tensor | None, **kwargs: Tensor | None) -> Scores:
        """The padded op on CPU tensors."""
        if self.name == "tiled":
            return Scores(*ops._padded_elsewhere(*args, **kwargs))
        if self.name == "cuda-emulated":
            return Scores(*ops._padded(EMULATED, *args, **kwargs))
        if self.name == "cuda":
            return self._on_gpu(functional.bertscore, args, kwargs)
        return functional.bertscore(*args, **kwargs)

    def bertscore_packed(self, *args: Tensor | None, **kwargs: Tensor | None) -> Scores:
        """The packed op on CPU tensors."""
        if self.name == "tiled":
            return Scores(*ops._packed_elsewhere(*args, **kwargs))
        if self.name == "cuda-emulated":
            return Scores(*ops._packed(EMULATED, *args, **kwargs))
        if self.name == "cuda":
            return self._on_gpu(functional.bertscore_packed, args, kwargs)
        return functional.bertscore_packed(*args, **kwargs)

    def aligned(self, *args: Tensor | None) -> tuple[Tensor, ...]:
        """Scores and matches of the padded op on CPU tensors."""
        if self.name == "tiled":
            return ops._padded_elsewhere(*args, aligned=True)
        if self.name == "cuda-emulated":
            return ops._padded(EMULATED, *args, aligned=True)
        return self._moved(OPS.bertscore_aligned, args)

    def packed_aligned(self, *args: Tensor | None) -> tuple[Tensor, ...]:
        """Scores and matches of the packed op on CPU tensors."""
        if self.name == "tiled":
            return ops._packed_elsewhere(*args, aligned=True)
        if self.name == "cuda-emulated":
            return ops._packed(EMULATED, *args, aligned=True)
        return self._moved(OPS.bertscore_packed_aligned, args)

    def backward(
        self,
        args: tuple[Tensor | None, ...],
        found: tuple[Tensor, ...],
        grads: tuple[Tensor | None, ...],
        wanted: tuple[bool, ...] = (True,) * 4,
    ) -> tuple[Tensor, ...]:
        """Gradients of tokens and weights, of the arguments and results of an aligned op.

        ``grads``: of precision, recall, f1 and of the similarities of both sides.
        """
        packed = args[0] is not None and args[0].dim() == 2
        if packed:
            args = (*args, *(None,) * (7 - len(args)))
        else:
            args = (*args, *(None,) * (6 - len(args)))
            args = (*args[:2], *args[4:])
        everything = (*args, *found[:2], *found[3:], *grads, wanted)
        make = backward._packed_call if packed else backward._padded_call
        if self.name == "tiled":
            return backward._elsewhere(make, *everything)
        if self.name == "cuda-emulated":
            return backward._native(EMULATED_BACKWARD, make(*everything))
        op = OPS.bertscore_packed_backward if packed else OPS.bertscore_backward
        return self._moved(op, everything)

    def _moved(self, op: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Call on CPU tensors, or with copies of them on the GPU."""
        if self.name == "cuda":
            args = tuple(value.cuda() if isinstance(value, Tensor) else value for value in args)
        return tuple(value.cpu() for value in op(*args))

    def assert_same(self, got: Scores, expected: Scores) -> None:
        """Compare scores bit for bit, or to rounding where no more is promised; NaN for NaN."""
        bound = 0.0 if self.bitwise else 1e-6
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, atol=bound, rtol=0, equal_nan=True)


BACKENDS = [
    *(Backend(f"cpu-{isa}") for isa in isas()),
    Backend("tiled", bitwise=False),
    Backend("cuda-emulated"),
    Backend("cuda"),
]


def pack(documents: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Documents [n_d, D] as one buffer and its offsets."""
    lengths = torch.tensor([0] + [len(document) for document in documents])
    return torch.cat(documents), lengths.cumsum(0)


def tolerance(dtype: torch.dtype) -> float:
    """Largest difference from the float64 oracle on the same input values.

    Half types are computed in float32 from exactly the values given, so they get its bound: a unit
    vector's dot product in chains of 256 is off by a few 2^-24.
    """
    return 1e-14 if dtype == torch.float64 else 1e-6


def assert_matches_oracle(scores: Scores, expected: Tensor, dtype: torch.dtype) -> None:
    """Compare scores with the oracle's [3, P], NaN for NaN."""
    got = torch.stack(scores)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (got.isnan() == expected.isnan()).all()
    bound = tolerance(dtype)
    # Where P is close to -R, F = 2 P R / (P + R) multiplies their errors by its derivatives.
    precision, recall, _ = expected
    slope = 2 * (precision**2 + recall**2) / (precision + recall) ** 2
    slope = torch.stack([torch.ones_like(slope), torch.ones_like(slope), 1 + slope])
    error = (got.double() - expected).abs() / slope.nan_to_num(1.0, posinf=1.0)
    assert error.nan_to_num(0.0).max().item() <= bound
