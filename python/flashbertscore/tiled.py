"""The op in plain torch for devices without a kernel of ours, in bounded memory.

Slower than a kernel, and not independent of the batch to the last bit (the device's own matrix
product decides), but with every rule of the equation: no similarity matrix larger than a tile.
"""

from __future__ import annotations

import torch
from torch import Tensor

TILE = 2048
"""Tokens of either side that meet at a time: a tile is at most 2048 x 2048 similarities."""

BATCH_ELEMENTS = 1 << 24
"""Elements of similarities and of unit vectors that one step over a padded batch may hold."""


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
) -> Tensor:
    """Scores [3, B] of a batch small enough that tiles [B, TILE, TILE] fit."""
    row_best, column_parts = [], []
    finite = candidate.new_ones(len(candidate), dtype=torch.bool)
    for j in range(0, reference.shape[1], TILE):
        y, y_finite = _unit(reference[:, j : j + TILE])
        y_ok = y_valid[:, j : j + TILE]
        finite &= (y_finite | ~y_ok).all(dim=1)
        row_part, column_best = [], None
        for i in range(0, candidate.shape[1], TILE):
            x, x_finite = _unit(candidate[:, i : i + TILE])
            x_ok = x_valid[:, i : i + TILE]
            finite &= (x_finite | ~x_ok).all(dim=1)
            similarity = x @ y.transpose(1, 2)
            similarity.masked_fill_(~y_ok[:, None, :], -torch.inf)
            row_part.append(similarity.amax(dim=2))
            similarity.masked_fill_(~x_ok[:, :, None], -torch.inf)
            best = similarity.amax(dim=1)
            column_best = best if column_best is None else torch.maximum(column_best, best)
        row_best.append(torch.cat(row_part, dim=1))
        assert column_best is not None
        column_parts.append(column_best)
    precision = _mean(torch.stack(row_best).amax(dim=0), x_valid, x_weights)
    recall = _mean(torch.cat(column_parts, dim=1), y_valid, y_weights)

    total = precision + recall
    f1 = torch.where(total.isfinite() & (total != 0), 2 * precision * recall / total, 0.0)
    scores = torch.stack([precision, recall, f1])
    scores = torch.where(x_valid.any(dim=1) & y_valid.any(dim=1), scores, 0.0)
    return torch.where(finite, scores, torch.nan)


def bertscore(
    candidate: Tensor,
    reference: Tensor,
    candidate_mask: Tensor | None,
    reference_mask: Tensor | None,
    candidate_weights: Tensor | None,
    reference_weights: Tensor | None,
) -> Tensor:
    """Scores [3, B] of padded batches with bool masks, float32 (float64 for float64 inputs)."""
    B, N, D = candidate.shape
    M = reference.shape[1]
    x_valid = candidate.new_ones(B, N, dtype=torch.bool)
    y_valid = reference.new_ones(B, M, dtype=torch.bool)
    x_valid = x_valid if candidate_mask is None else candidate_mask
    y_valid = y_valid if reference_mask is None else reference_mask
    dtype = torch.float64 if candidate.dtype == torch.float64 else torch.float32
    scores = candidate.new_zeros((3, B), dtype=dtype)
    if N == 0 or M == 0:
        for side, valid in ((candidate, x_valid), (reference, y_valid)):
            bad = (~side.isfinite().all(dim=2) & valid).any(dim=1)
            scores = torch.where(bad, torch.nan, scores)
        return scores
    n, m = min(N, TILE), min(M, TILE)
    step = max(1, BATCH_ELEMENTS // max(n * m, n * D, m * D))
    for b in range(0, B, step):
        part = slice(b, b + step)
        scores[:, part] = _step(
            candidate[part],
            reference[part],
            x_valid[part],
            y_valid[part],
            None if candidate_weights is None else candidate_weights[part],
            None if reference_weights is None else reference_weights[part],
        )
    return scores


def bertscore_packed(
    candidate: Tensor,
    candidate_offsets: Tensor,
    reference: Tensor,
    reference_offsets: Tensor,
    pairs: Tensor | None,
    candidate_weights: Tensor | None,
    reference_weights: Tensor | None,
) -> Tensor:
    """Scores [3, P] of packed batches, pair by pair."""

    def cut(values: Tensor | None, begin: int, end: int) -> Tensor | None:
        return None if values is None else values[None, begin:end]

    starts, ends = candidate_offsets.tolist(), reference_offsets.tolist()
    both = [(d, d) for d in range(len(starts) - 1)] if pairs is None else pairs.tolist()
    dtype = torch.float64 if candidate.dtype == torch.float64 else torch.float32
    scores = candidate.new_empty((3, len(both)), dtype=dtype)
    for p, (c, r) in enumerate(both):
        x = slice(starts[c], starts[c + 1])
        y = slice(ends[r], ends[r + 1])
        scores[:, p] = bertscore(
            candidate[None, x],
            reference[None, y],
            None,
            None,
            cut(candidate_weights, x.start, x.stop),
            cut(reference_weights, y.start, y.stop),
        )[:, 0]
    return scores
