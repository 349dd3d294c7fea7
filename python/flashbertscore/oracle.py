"""The equation in plain torch and float64: what every kernel is tested against.

For candidate tokens ``x_1 .. x_N`` and reference tokens ``y_1 .. y_M`` with weights ``w``, ``v``
(Zhang et al., 2020, "BERTScore: Evaluating Text Generation with BERT", section 3)::

    s_ij = <x_i, y_j> / (|x_i| |y_j|)
    P = sum_i w_i max_j s_ij / sum_i w_i
    R = sum_j v_j max_i s_ij / sum_j v_j
    F = 2 P R / (P + R)

It holds the similarity matrix of one pair, so it is for checking, not for use.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """Rows of ``x`` [N, D] as float64 unit vectors; a zero row stays zero."""
    x = x.double()
    largest = x.abs().amax(dim=-1, keepdim=True)
    x = x / torch.where(largest != 0, largest, 1.0)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(length != 0, length, 1.0)


def pair(x: Tensor, y: Tensor, w: Tensor | None = None, v: Tensor | None = None) -> Tensor:
    """Precision, recall and F1 (float64, [3]) of one candidate [N, D] and one reference [M, D]."""
    w = x.new_ones(len(x), dtype=torch.float64) if w is None else w.double()
    v = y.new_ones(len(y), dtype=torch.float64) if v is None else v.double()
    if not (x.isfinite().all() and y.isfinite().all()):
        return w.new_full((3,), torch.nan)
    if len(x) == 0 or len(y) == 0:
        return w.new_zeros(3)

    similarity = unit(x) @ unit(y).T
    precision = (w * similarity.amax(dim=1)).sum() / w.sum()
    recall = (v * similarity.amax(dim=0)).sum() / v.sum()

    total = precision + recall
    f1 = 2 * precision * recall / total
    return torch.stack([precision, recall, f1.where(total.isfinite() & (total != 0), 0.0)])


def bertscore(
    candidate: Tensor,
    reference: Tensor,
    candidate_mask: Tensor | None = None,
    reference_mask: Tensor | None = None,
    candidate_weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
) -> Tensor:
    """:func:`flashbertscore.functional.bertscore` as float64 [3, B], each pair cut out, alone."""

    def cut(values: Tensor | None, mask: Tensor | None, b: int) -> Tensor | None:
        if values is None or mask is None:
            return None if values is None else values[b]
        return values[b][mask[b].bool()]

    scores = candidate.new_empty((3, len(candidate)), dtype=torch.float64)
    for b in range(len(candidate)):
        x, y = cut(candidate, candidate_mask, b), cut(reference, reference_mask, b)
        assert x is not None
        assert y is not None
        w = cut(candidate_weights, candidate_mask, b)
        scores[:, b] = pair(x, y, w, cut(reference_weights, reference_mask, b))
    return scores


def bertscore_packed(
    candidate: Tensor,
    candidate_offsets: Tensor,
    reference: Tensor,
    reference_offsets: Tensor,
    pairs: Tensor | None = None,
    candidate_weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
) -> Tensor:
    """:func:`flashbertscore.functional.bertscore_packed` as float64 [3, P]."""

    def cut(values: Tensor | None, offsets: Tensor, d: int) -> Tensor | None:
        return None if values is None else values[offsets[d] : offsets[d + 1]]

    if pairs is None:
        pairs = torch.arange(len(candidate_offsets) - 1)[:, None].expand(-1, 2)
    scores = candidate.new_empty((3, len(pairs)), dtype=torch.float64)
    for p, (c, r) in enumerate(pairs.tolist()):
        x, y = cut(candidate, candidate_offsets, c), cut(reference, reference_offsets, r)
        assert x is not None
        assert y is not None
        w = cut(candidate_weights, candidate_offsets, c)
        scores[:, p] = pair(x, y, w, cut(reference_weights, reference_offsets, r))
    return scores
