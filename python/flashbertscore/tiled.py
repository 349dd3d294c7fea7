"""The op in plain torch for devices without a kernel of ours, in bounded memory.

Slower than a kernel, and not independent of the batch to the last bit (the device's own matrix
product decides), but with every rule of the equation: no similarity matrix larger than a tile.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TILE = 2048
"""Tokens of either side that meet at a time: a tile is at most 2048 x 2048 similarities."""

BATCH_ELEMENTS = 1 << 24
"""Elements of similarities and of unit vectors that one step over a padded batch may hold."""


_Best = tuple[Tensor, Tensor]  # largest similarities and where they are


class Aligned(NamedTuple):
    """Scores [3, P], and the best match of every token: -1 and similarity 0 where there is none."""

    scores: Tensor
    candidate_index: Tensor
    candidate_similarity: Tensor
    reference_index: Tensor
    reference_similarity: Tensor


def _unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as unit vectors in the computed dtype, and which rows are finite."""
    x = x if x.dtype == torch.float64 else x.float()
    largest = x.abs().amax(dim=-1, keepdim=True)
    finite = largest.isfinite()
    x = torch.where(finite, x, 0.0) / torch.where(finite & (largest != 0), largest, 1.0)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(length != 0, length, 1.0), finite.squeeze(-1)


def _mean(best: Tensor, valid: Tensor, weights: Tensor | None) -> Tensor:
    w = valid.to(best.dtype) if weights is None else weights.to(best.dtype) * valid
    total = (torch.where(valid, best, 0.0) * w).sum(dim=1)
    return total / w.sum(dim=1)


def _step(
    candidate: Tensor,
    reference: Tensor,
    x_valid: Tensor,
    y_valid: Tensor,
    x_weights: Tensor | None,
    y_weights: Tensor | None,
) -> Aligned:
    """One batch small enough that tiles [B, TILE, TILE] fit."""
    B, N = x_valid.shape
    finite = candidate.new_ones(B, dtype=torch.bool)
    row_best: _Best | None = None
    column_parts: list[_Best] = []
    for j in range(0, reference.shape[1], TILE):
        y, y_finite = _unit(reference[:, j : j + TILE])
        y_ok = y_valid[:, j : j + TILE]
        finite &= (y_finite | ~y_ok).all(dim=1)
        row_part: list[_Best] = []
        column_best: _Best | None = None
        for i in range(0, N, TILE):
            x, x_finite = _unit(candidate[:, i : i + TILE])
            x_ok = x_valid[:, i : i + TILE]
            finite &= (x_finite | ~x_ok).all(dim=1)
            similarity = x @ y.transpose(1, 2)
            similarity.masked_fill_(~y_ok[:, None, :], -torch.inf)
            row_part.append(_best(similarity, 2, j))
            similarity.masked_fill_(~x_ok[:, :, None], -torch.inf)
            column_best = _better(column_best, _best(similarity, 1, i))
        row_best = _better(row_best, _join(row_part))
        assert column_best is not None
        column_parts.append(column_best)
    assert row_best is not None
    column = _join(column_parts)
    precision = _mean(row_best[0], x_valid, x_weights)
    recall = _mean(column[0], y_valid, y_weights)

    total = precision + recall
    f1 = torch.where(total.isfinite() & (total != 0), 2 * precision * recall / total, 0.0)
    scores = torch.stack([precision, recall, f1])
    some = x_valid.any(dim=1) & y_valid.any(dim=1)
    scores = torch.where(finite, torch.where(some, scores, 0.0), torch.nan)
    sides = (
        _matches(best, valid, some, finite)
        for best, valid in ((row_best, x_valid), (column, y_valid))
    )
    return Aligned(scores, *next(sides), *next(sides))


def _best(similarity: Tensor, dim: int, first: int) -> _Best:
    """Maxima over a tile, and where they are: the first of equals."""
    best = similarity.max(dim=dim)
    return best.values, best.indices + first


def _better(best: _Best | None, other: _Best) -> _Best:
    """The larger of two, `best` of equals."""
    if best is None:
        return other
    taken = other[0] > best[0]
    return torch.where(taken, other[0], best[0]), torch.where(taken, other[1], best[1])


def _join(parts: list[_Best]) -> _Best:
    return torch.cat([part[0] for part in parts], dim=1), torch.cat([p[1] for p in parts], dim=1)


def _matches(best: _Best, valid: Tensor, some: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
    """Index and similarity by the rules for tokens without a match."""
    values = torch.where(finite[:, None], torch.where(some[:, None], best[0], 0.0), torch.nan)
    matched = valid & (some & finite)[:, None]
    return torch.where(matched, best[1], -1).int(), torch.where(valid, values, 0.0)


def bertscore(
    candidate: Tensor,
    reference: Tensor,
    candidate_mask: Tensor | None,
    reference_mask: Tensor | None,
    candidate_weights: Tensor | None,
    reference_weights: Tensor | None,
) -> Aligned:
    """Scores and matches of padded batches with bool masks."""
    B, N, D = candidate.shape
    M = reference.shape[1]
    x_valid = candidate.new_ones(B, N, dtype=torch.bool)
    y_valid = reference.new_ones(B, M, dtype=torch.bool)
    x_valid = x_valid if candidate_mask is None else candidate_mask
    y_valid = y_valid if reference_mask is None else reference_mask
    dtype = torch.float64 if candidate.dtype == torch.float64 else torch.float32
    found = Aligned(
        candidate.new_zeros((3, B), dtype=dtype),
        candidate.new_full((B, N), -1, dtype=torch.int32),
        candidate.new_zeros((B, N), dtype=dtype),
        candidate.new_full((B, M), -1, dtype=torch.int32),
        candidate.new_zeros((B, M), dtype=dtype),
    )
    if N == 0 or M == 0:
        for side, valid in ((candidate, x_valid), (reference, y_valid)):
            bad = (~side.isfinite().all(dim=2) & valid).any(dim=1)
            found.scores.masked_fill_(bad, torch.nan)
            found.candidate_similarity.masked_fill_(bad[:, None] & x_valid, torch.nan)
            found.reference_similarity.masked_fill_(bad[:, None] & y_valid, torch.nan)
        return found
    n, m = min(N, TILE), min(M, TILE)
    step = max(1, BATCH_ELEMENTS // max(n * m, n * D, m * D))
    for b in range(0, B, step):
        part = slice(b, b + step)
        done = _step(
            candidate[part],
            reference[part],
            x_valid[part],
            y_valid[part],
            None if candidate_weights is None else candidate_weights[part],
            None if reference_weights is None else reference_weights[part],
        )
        found.scores[:, part] = done.scores
        for to, value in zip(found[1:], done[1:], strict=True):
            to[part] = value
    return found


def bertscore_packed(
    candidate: Tensor,
    candidate_offsets: Tensor,
    reference: Tensor,
    reference_offsets: Tensor,
    pairs: Tensor | None,
    candidate_weights: Tensor | None,
    reference_weights: Tensor | None,
) -> Aligned:
    """Scores and matches of packed batches, pair by pair; matches one pair after another."""

    def cut(values: Tensor | None, begin: int, end: int) -> Tensor | None:
        return None if values is None else values[None, begin:end]

    starts, ends = candidate_offsets.tolist(), reference_offsets.tolist()
    both = [(d, d) for d in range(len(starts) - 1)] if pairs is None else pairs.tolist()
    empty = bertscore(candidate[None, :0], reference[None, :0], None, None, None, None)
    parts = [[empty.scores[:, :0]], *([value[0]] for value in empty[1:])]
    for c, r in both:
        x = slice(starts[c], starts[c + 1])
        y = slice(ends[r], ends[r + 1])
        found = bertscore(
            candidate[None, x],
            reference[None, y],
            None,
            None,
            cut(candidate_weights, x.start, x.stop),
            cut(reference_weights, y.start, y.stop),
        )
        parts[0].append(found.scores)
        for part, value in zip(parts[1:], found[1:], strict=True):
            part.append(value[0])
    return Aligned(torch.cat(parts[0], dim=1), *(torch.cat(part) for part in parts[1:]))


def backward(
    candidate: Tensor,
    reference: Tensor,
    weights: tuple[Tensor | None, Tensor | None],
    means: tuple[Tensor, Tensor],
    matches: tuple[Tensor, Tensor, Tensor, Tensor],
    gradients: tuple[Tensor, Tensor, Tensor],
    similarity_gradients: tuple[Tensor | None, Tensor | None],
    pairs: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients with respect to tokens [T, D] and [U, D] and weights [T] and [U].

    The formulas are those of csrc/cpu/backward.cpp. ``pairs``: of each side, for every entry of its
    matches (flat, one pair after another), its pair and its row among all rows.
    """
    index = matches[0].long(), matches[2].long()
    similarity = matches[1], matches[3]
    dtype = similarity[0].dtype
    tokens = candidate, reference
    units = [_unit(x)[0].to(dtype) for x in tokens]
    total = means[0] + means[1]
    defined = total.isfinite() & (total != 0)
    sums = [unit.new_zeros(unit.shape) for unit in units]
    along = [unit.new_zeros(len(unit)) for unit in units]
    out_weights = []
    for side in (0, 1):
        pair, row = pairs[side]
        valid = index[side] >= 0
        pair, row = pair[valid], row[valid]
        w = weights[side]
        w = sums[side].new_ones(len(row)) if w is None else w.to(dtype)[row]
        mass = sums[side].new_zeros(len(means[0])).index_add(0, pair, w)
        part = torch.where(defined, means[1 - side] / torch.where(defined, total, 1.0), 0.0)
        slope = gradients[side] + gradients[2] * 2 * part * part
        slope = torch.where(mass > 0, slope / torch.where(mass > 0, mass, 1.0), 0.0)
        q = slope[pair] * w
        extra = similarity_gradients[side]
        if extra is not None:
            q = q + extra[valid]
        s = similarity[side][valid]
        match = index[side][valid] + _first(pairs[1 - side], len(means[0]))[pair]
        for here, own, other in ((side, row, match), (1 - side, match, row)):
            sums[here].index_add_(0, own, q[:, None] * units[1 - here][other])
            along[here].index_add_(0, own, q * s)
        mean = torch.where(mass > 0, means[side], 0.0)
        out_weights.append(
            sums[side].new_zeros(len(sums[side])).index_add(0, row, slope[pair] * (s - mean[pair]))
        )
    inputs = [
        _unscale(x, sums[side] - along[side][:, None] * units[side])
        for side, x in enumerate(tokens)
    ]
    return inputs[0], inputs[1], out_weights[0], out_weights[1]


def _first(entries: tuple[Tensor, Tensor], count: int) -> Tensor:
    """First row of each pair's document, [count]; of one without rows, anything."""
    pair, row = entries
    first = row.new_full((count,), torch.iinfo(torch.int64).max)
    return first.scatter_reduce(0, pair, row, "amin")


def _unscale(x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient divided by the norms of rows, 0 for rows without one."""
    wide = x.to(gradient.dtype)
    largest = wide.abs().amax(dim=-1, keepdim=True)
    some = largest.isfinite() & (largest != 0)
    largest = torch.where(some, largest, 1.0)
    length = torch.linalg.vector_norm(wide / largest, dim=-1, keepdim=True)
    scaled = gradient / largest / torch.where(some, length, 1.0)
    return torch.where(some, scaled, 0.0).to(x.dtype)
