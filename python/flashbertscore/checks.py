"""What the op requires of its arguments, from shapes and dtypes alone (values are checked in C++).

Every error names the argument, what was expected and what came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
"""Dtypes of token embeddings, with the codes of csrc/core/views.h."""


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def result_dtype(tokens: Tensor) -> torch.dtype:
    """Dtype of scores, similarities and of weights as the kernels read them."""
    return torch.float64 if tokens.dtype == torch.float64 else torch.float32


def tensor(name: str, value: object) -> None:
    """Raise TypeError unless ``value`` is a strided tensor."""
    if not isinstance(value, Tensor):
        message = f"{name}: expected a torch.Tensor, got {type(value).__name__}"
        raise TypeError(message)
    if value.layout is not torch.strided:
        message = f"{name}: expected a strided tensor, got layout {value.layout}"
        raise TypeError(message)


def _tokens(name: str, x: Tensor, rank: int) -> torch.Size:
    """Check the embeddings of one side on their own and return their shape."""
    tensor(name, x)
    if x.dtype not in DTYPES:
        message = f"{name}: expected dtype {_names(list(DTYPES))}, got {_names([x.dtype])}"
        raise TypeError(message)
    shape = x.shape
    layout = "[B, N, D]" if rank == 3 else "[T, D]"
    if len(shape) != rank:
        message = f"{name}: expected {rank} dimensions {layout}, got shape {list(shape)}"
        raise ValueError(message)
    if shape[-1] < 1:
        message = f"{name}: expected D >= 1 in {layout}, got shape {list(shape)}"
        raise ValueError(message)
    return shape


def embeddings(candidate: Tensor, reference: Tensor, rank: int) -> None:
    """Check both sides' embeddings: rank, dtype, device and a common D >= 1."""
    x_shape = _tokens("candidate", candidate, rank)
    y_shape = _tokens("reference", reference, rank)
    if reference.dtype != candidate.dtype:
        message = (
            f"reference: expected the dtype of candidate, {_names([candidate.dtype])}, "
            f"got {_names([reference.dtype])}"
        )
        raise TypeError(message)
    device("reference", reference, candidate)
    if y_shape[-1] != x_shape[-1]:
        message = (
            f"reference: expected D = {x_shape[-1]} as in candidate, got shape {list(y_shape)}"
        )
        raise ValueError(message)
    if rank == 3 and y_shape[0] != x_shape[0]:
        message = f"reference: expected B = {x_shape[0]} as in candidate, got shape {list(y_shape)}"
        raise ValueError(message)


def heads(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> None:
    """Check queries, keys and values [B, H, L, d] and lengths [B] of self-attention."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        tensor(name, x)
        if x.dtype not in (torch.float32, torch.bfloat16) or x.dtype != q.dtype:
            wanted = "float32 or bfloat16" if x is q else f"that of q, {_names([q.dtype])}"
            message = f"{name}: expected dtype {wanted}, got {_names([x.dtype])}"
            raise TypeError(message)
        if x.dim() != 4 or x.shape[-1] < 1 or x.shape != q.shape:
            wanted = "[B, H, L, d >= 1]" if x is q else f"{list(q.shape)} as q"
            message = f"{name}: expected {wanted}, got shape {list(x.shape)}"
            raise ValueError(message)
        if x.device.type != "cpu":
            message = f"{name}: expected device cpu, got {x.device}"
            raise ValueError(message)
    tensor("lengths", lengths)
    if lengths.dtype != torch.int64:
        message = f"lengths: expected dtype int64, got {_names([lengths.dtype])}"
        raise TypeError(message)
    if lengths.shape != q.shape[:1] or lengths.device.type != "cpu":
        message = (
            f"lengths: expected [B] = {list(q.shape[:1])} on cpu, "
            f"got {list(lengths.shape)} on {lengths.device}"
        )
        raise ValueError(message)


def device(name: str, value: Tensor, like: Tensor, *, or_cpu: bool = False) -> None:
    """Raise ValueError unless ``value`` is on the device of ``like`` (or, if allowed, the CPU)."""
    if value.device != like.device and not (or_cpu and value.is_cpu):
        wanted = f"{like.device} or cpu" if or_cpu and like.device.type != "cpu" else like.device
        message = f"{name}: expected device {wanted}, got {value.device}"
        raise ValueError(message)


def mask(name: str, value: Tensor | None, tokens: Tensor) -> None:
    """Check a mask [B, N] against its tokens [B, N, D]."""
    if value is None:
        return
    _beside(name, value, tokens)
    if value.dtype.is_complex:
        message = f"{name}: expected a bool, integer or float dtype, got {_names([value.dtype])}"
        raise TypeError(message)


def weights(name: str, value: Tensor | None, tokens: Tensor) -> None:
    """Check weights [B, N] or [T] against their tokens [..., D]."""
    if value is None:
        return
    _beside(name, value, tokens)
    if not value.dtype.is_floating_point:
        message = f"{name}: expected a floating dtype, got {_names([value.dtype])}"
        raise TypeError(message)


def _beside(name: str, value: Tensor, tokens: Tensor) -> None:
    """Check that there is one value a token, on the device of the tokens."""
    tensor(name, value)
    device(name, value, tokens)
    expected = tokens.shape[:-1]
    if value.shape != expected:
        layout = "[B, N]" if len(expected) == 2 else "[T]"
        message = f"{name}: expected {layout} = {list(expected)}, got {list(value.shape)}"
        raise ValueError(message)


def indices(name: str, value: Tensor, tokens: Tensor, shape: str) -> None:
    """Check offsets [n + 1] or pairs [P, 2]: integer dtype, rank, and a device that can be read."""
    tensor(name, value)
    device(name, value, tokens, or_cpu=True)
    if value.dtype not in (torch.int64, torch.int32):
        message = f"{name}: expected dtype int64 or int32, got {_names([value.dtype])}"
        raise TypeError(message)
    pairs = shape == "[P, 2]"
    if value.dim() != (2 if pairs else 1) or value.shape[-1] < 1 or (pairs and value.shape[1] != 2):
        message = f"{name}: expected shape {shape}, got {list(value.shape)}"
        raise ValueError(message)


def _plain(x: object) -> bool:
    """Whether it is a strided float32 tensor on the CPU."""
    return (
        isinstance(x, Tensor)
        and x.dtype is torch.float32
        and x.is_cpu
        and x.layout is torch.strided
    )


class Padded(NamedTuple):
    """Arguments of the padded op."""

    candidate: Tensor
    reference: Tensor
    candidate_mask: Tensor | None = None
    reference_mask: Tensor | None = None
    candidate_weights: Tensor | None = None
    reference_weights: Tensor | None = None

    def check(self) -> None:
        """Raise TypeError or ValueError unless shapes, dtypes and devices are as required."""
        if self._usual():
            return
        candidate, reference, candidate_mask, reference_mask, w, v = self
        embeddings(candidate, reference, rank=3)
        mask("candidate_mask", candidate_mask, candidate)
        mask("reference_mask", reference_mask, reference)
        weights("candidate_weights", w, candidate)
        weights("reference_weights", v, reference)

    def _usual(self) -> bool:
        """Whether these are float32 tensors on the CPU that fit, without masks.

        Then nothing is wrong, and to see that alone takes half the time of all the checks, which
        would be a fifth of a call on a short pair.
        """
        x, y, x_mask, y_mask, w, v = self
        if not (x_mask is y_mask is None and _plain(x) and _plain(y) and x.dim() == y.dim() == 3):
            return False
        (B, N, D), (C, M, E) = x.shape, y.shape
        return (
            B == C
            and 0 < D == E
            and (w is None or (_plain(w) and w.shape == (B, N)))
            and (v is None or (_plain(v) and v.shape == (B, M)))
        )

    @property
    def pair_count(self) -> int:
        """Number of scores, B."""
        return self.candidate.shape[0]


class Packed(NamedTuple):
    """Arguments of the packed op."""

    candidate: Tensor
    candidate_offsets: Tensor
    reference: Tensor
    reference_offsets: Tensor
    pairs: Tensor | None = None
    candidate_weights: Tensor | None = None
    reference_weights: Tensor | None = None

    def check(self) -> None:
        """Raise TypeError or ValueError unless shapes, dtypes and devices are as required."""
        embeddings(self.candidate, self.reference, rank=2)
        indices("candidate_offsets", self.candidate_offsets, self.candidate, "[C + 1]")
        indices("reference_offsets", self.reference_offsets, self.reference, "[R + 1]")
        if self.pairs is not None:
            indices("pairs", self.pairs, self.candidate, "[P, 2]")
        elif self.candidate_offsets.shape != self.reference_offsets.shape:
            message = (
                "reference_offsets: expected as many documents as candidate_offsets has "
                f"({self.candidate_offsets.shape[0] - 1}) when pairs is None, "
                f"got {self.reference_offsets.shape[0] - 1}"
            )
            raise ValueError(message)
        weights("candidate_weights", self.candidate_weights, self.candidate)
        weights("reference_weights", self.reference_weights, self.reference)

    @property
    def pair_count(self) -> int:
        """Number of scores, P."""
        return self.candidate_offsets.shape[0] - 1 if self.pairs is None else self.pairs.shape[0]

    def matches(self) -> list[tuple[int]]:
        """Entries of an alignment on either side; of arguments on the host, their values right."""
        sides = []
        for column, offsets in enumerate((self.candidate_offsets, self.reference_offsets)):
            lengths = offsets.diff()
            if self.pairs is not None:
                lengths = lengths[self.pairs[:, column]]
            sides.append((int(lengths.sum()),))
        return sides

    def on_host(self) -> Packed:
        """With offsets and pairs as contiguous int64 on the CPU, where schedules are made."""

        def host(value: Tensor) -> Tensor:
            return value.to(device="cpu", dtype=torch.int64).contiguous()

        return self._replace(
            candidate_offsets=host(self.candidate_offsets),
            reference_offsets=host(self.reference_offsets),
            pairs=None if self.pairs is None else host(self.pairs),
        )


class Gradient(NamedTuple):
    """What a backward op takes beside tokens, offsets, pairs and weights, of flat matches."""

    precision: Tensor
    recall: Tensor
    candidate_index: Tensor
    candidate_similarity: Tensor
    reference_index: Tensor
    reference_similarity: Tensor
    grad_precision: Tensor
    grad_recall: Tensor
    grad_f1: Tensor
    grad_candidate_similarity: Tensor | None
    grad_reference_similarity: Tensor | None

    def check(self, candidate: Tensor, pair_count: int, matches: tuple[int, ...]) -> None:
        """Raise TypeError or ValueError unless every one has its shape, dtype and device.

        Args:
            candidate: the tokens, for dtype and device.
            pair_count: number of scores.
            matches: entries of the alignment on either side; empty: not known before values are.
        """
        real = torch.float64 if candidate.dtype == torch.float64 else torch.float32
        for name, value in zip(self._fields, self, strict=True):
            if value is None:
                continue
            device(name, value, candidate)
            wanted = torch.int32 if name.endswith("index") else real
            if value.dtype != wanted:
                message = f"{name}: expected dtype {_names([wanted])}, got {_names([value.dtype])}"
                raise TypeError(message)
            count = pair_count
            if name.endswith(("index", "similarity")):
                if not matches:
                    continue
                count = matches["reference" in name]
            if value.numel() != count:
                message = f"{name}: expected {count} values, got shape {list(value.shape)}"
                raise ValueError(message)
