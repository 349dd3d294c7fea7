"""All pairs of two sets of documents, tile by tile: the work behind `bertscore_matrix`.

A tile is every candidate against a few references, so that a kernel meets each reference once, and
nothing but the result grows with C x R. On the CPU a tile is one call of a kernel for grids. With
gradients, and on other devices, it is a list of pairs for the packed op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flashbertscore import autograd, checks, ops  # noqa: F401 - importing autograd registers all

if TYPE_CHECKING:
    from collections.abc import Iterator

TILE_PAIRS = 1 << 17
"""Pairs of a tile, if 8 references and all candidates are not more: 3.5 MiB with their scores."""

LEAST_REFERENCES = 8
"""References of a tile: every tile reads all candidates once more to find their norms."""

_Triple = tuple[Tensor, Tensor, Tensor]

_score_pairs = torch.ops.flashbertscore.bertscore_packed


def _fake_grid(
    candidate: Tensor, x_offsets: Tensor, _reference: Tensor, y_offsets: Tensor, *_: object
) -> _Triple:
    shape = x_offsets.shape[0] - 1, y_offsets.shape[0] - 1
    score = candidate.new_empty(shape, dtype=checks.result_dtype(candidate))
    return score, torch.empty_like(score), torch.empty_like(score)


# An op, so that modes, wrappers and tracing see what is computed.
ops.LIBRARY.define(
    "bertscore_grid(Tensor candidate, Tensor candidate_offsets, Tensor reference, "
    "Tensor reference_offsets, Tensor? candidate_weights, Tensor? reference_weights, int diagonal) "
    "-> (Tensor precision, Tensor recall, Tensor f1)",
    tags=[torch.Tag.pt2_compliant_tag],
)
ops.LIBRARY.impl("bertscore_grid", ops.match_grid, "CPU")
torch.library.register_fake("flashbertscore::bertscore_grid", _fake_grid, lib=ops.LIBRARY)

_score_grid = torch.ops.flashbertscore.bertscore_grid


class Side(NamedTuple):
    """Packed documents."""

    tokens: Tensor
    offsets: Tensor
    weights: Tensor | None

    def __len__(self) -> int:
        """Number of documents."""
        return self.offsets.shape[0] - 1

    @property
    def plain(self) -> bool:
        """Whether the grid's kernel takes them: on the CPU, no subclass, no derivative wanted."""
        tensors = [self.tokens] if self.weights is None else [self.tokens, self.weights]
        if forward_ad._current_level >= 0 or (  # noqa: SLF001
            torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        ):
            return False
        return all(type(x) in (Tensor, torch.nn.Parameter) and x.is_cpu for x in tensors)

    def part(self, begin: int, end: int) -> Side:
        """Documents ``begin`` to ``end - 1``."""
        first, last = (int(self.offsets[d]) for d in (begin, end))
        offsets = self.offsets[begin : end + 1] - first
        weights = None if self.weights is None else self.weights[first:last]
        return Side(self.tokens[first:last], offsets, weights)


class Tile(NamedTuple):
    """Scores of candidates 0 to ``stop - 1`` against references ``begin`` to ``end - 1``.

    ``scores``: precision, recall, F1 [stop, end - begin]. In a symmetric grid ``stop`` is ``end``.
    """

    begin: int
    end: int
    scores: _Triple


def sides(
    candidate: Tensor,
    candidate_offsets: Tensor,
    reference: Tensor,
    reference_offsets: Tensor,
    candidate_weights: Tensor | None,
    reference_weights: Tensor | None,
) -> tuple[Side, Side]:
    """Check the arguments and bring offsets to the host.

    Raises:
        TypeError, ValueError: as the packed op.
    """
    nothing = torch.empty(0, 2, dtype=torch.int64)
    call = checks.Packed(
        candidate,
        candidate_offsets,
        reference,
        reference_offsets,
        nothing,
        candidate_weights,
        reference_weights,
    )
    call.check()
    call = call.on_host()
    ops.validate(call)
    return (
        Side(candidate, call.candidate_offsets, candidate_weights),
        Side(reference, call.reference_offsets, reference_weights),
    )


def is_same(a: Side, b: Side) -> bool:
    """Whether both sides are the same documents with the same weights, in the same memory."""

    def same(x: Tensor | None, y: Tensor | None) -> bool:
        if x is None or y is None:
            return x is y
        if x is y:
            return True
        return (
            (x.data_ptr(), x.shape, x.stride()) == (y.data_ptr(), y.shape, y.stride())
            and x.grad_fn is y.grad_fn
            and not (x.requires_grad or y.requires_grad)
        )

    return (
        same(a.tokens, b.tokens)
        and same(a.weights, b.weights)
        and torch.equal(a.offsets, b.offsets)
    )


def tiles(candidate: Side, reference: Side, *, symmetric: bool) -> Iterator[Tile]:
    """Walk over the grid, columns from left to right.

    With ``symmetric`` only pairs of a candidate and a reference that is not before it are computed:
    P(a, b) = R(b, a), so the rest of a tile are copies.
    """
    count = len(reference)
    width = max(LEAST_REFERENCES, TILE_PAIRS // max(1, len(candidate)))
    for begin in range(0, count, width):
        end = min(begin + width, count)
        rows = end if symmetric else len(candidate)
        x, y = candidate.part(0, rows), reference.part(begin, end)
        scores = _scores(x, y, begin if symmetric else rows)
        yield Tile(begin, end, _mirrored(scores, begin) if symmetric else scores)


def _scores(x: Side, y: Side, diagonal: int) -> _Triple:
    """Precision, recall and F1 [len(x), len(y)]; those of c > r + diagonal are not asked for."""
    if x.plain and y.plain:
        found: _Triple = _score_grid(
            x.tokens, x.offsets, y.tokens, y.offsets, x.weights, y.weights, diagonal
        )
        return found
    shape = len(x), len(y)
    c = torch.arange(shape[0]).repeat(shape[1])
    r = torch.arange(shape[1]).repeat_interleave(shape[0])
    kept = c <= r + diagonal
    c, r = c[kept], r[kept]
    scores = _score_pairs(
        x.tokens, x.offsets, y.tokens, y.offsets, torch.stack([c, r], 1), x.weights, y.weights
    )
    place = (r * shape[0] + c).to(scores[0].device)  # sorted by reference, as the pairs are
    precision, recall, f1 = (
        values.new_zeros(shape[0] * shape[1]).index_put((place,), values).view(shape[::-1]).T
        for values in scores
    )
    return precision, recall, f1


def _mirrored(scores: _Triple, begin: int) -> _Triple:
    """Fill the tile below the diagonal with what is above it."""
    precision, recall, f1 = scores
    width = f1.shape[1]
    upper = torch.ones(width, width, dtype=torch.bool, device=f1.device).triu()

    def full(values: Tensor, mirror: Tensor) -> Tensor:
        block = torch.where(upper, values[begin:], mirror[begin:].T)
        return torch.cat([values[:begin], block])

    return full(precision, recall), full(recall, precision), full(f1, f1)


def all_pairs(candidate: Side, reference: Side) -> _Triple:
    """Precision, recall and F1 [C, R]."""
    symmetric = is_same(candidate, reference)
    dtype = torch.float64 if candidate.tokens.dtype == torch.float64 else torch.float32
    shape = len(candidate), len(reference)
    precision, recall, f1 = (candidate.tokens.new_empty(shape, dtype=dtype) for _ in range(3))
    for begin, end, scores in tiles(candidate, reference, symmetric=symmetric):
        rows = scores[0].shape[0]
        for to, values in zip((precision, recall, f1), scores, strict=True):
            to[:rows, begin:end] = values
        if symmetric:
            mirror = zip((precision, recall, f1), (scores[1], scores[0], scores[2]), strict=True)
            for to, values in mirror:
                to[begin:end, :begin] = values[:begin].T
    return precision, recall, f1


def best_pairs(candidate: Side, reference: Side, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Precision, recall, F1 and reference of the ``k`` best F1 of each candidate, [C, k].

    The best comes first, of equals the lower index; NaN is below every number.
    """
    symmetric = is_same(candidate, reference)
    dtype = torch.float64 if candidate.tokens.dtype == torch.float64 else torch.float32
    like = candidate.tokens
    rows = len(candidate)
    best = [like.new_empty(rows, k, dtype=dtype) for _ in range(3)]
    best.append(like.new_full((rows, k), -1, dtype=torch.int64))

    def merge(first: int, last: int, scores: _Triple, begin: int) -> None:
        """Take the scores [last - first, w] against references from ``begin`` on into account."""
        here = slice(first, last)
        index = torch.arange(begin, begin + scores[0].shape[1], device=like.device)
        parts = [*scores, index.expand(last - first, -1)]
        known = [torch.cat([old[here], new], dim=1) for old, new in zip(best, parts, strict=True)]
        order = known[2].nan_to_num(-torch.inf).masked_fill(known[3] < 0, -torch.inf)
        # Empty places after everything else, also after NaN, which they are equal to.
        order = order.masked_fill((known[3] >= 0) & order.isneginf(), torch.finfo(dtype).min)
        chosen = order.sort(dim=1, descending=True, stable=True).indices[:, :k]
        for to, values in zip(best, known, strict=True):
            to[here] = values.gather(1, chosen)

    for begin, end, scores in tiles(candidate, reference, symmetric=symmetric):
        if symmetric:
            precision, recall, f1 = (values[:begin].T for values in scores)
            if begin:
                merge(begin, end, (recall, precision, f1), 0)
        merge(0, scores[0].shape[0], scores, begin)
    return best[0], best[1], best[2], best[3]
