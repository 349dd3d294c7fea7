"""The equation in plain torch and float64: what every kernel is tested against.

For candidate tokens ``x_1 .. x_N`` and reference tokens ``y_1 .. y_M`` with weights ``w``, ``v``
(Zhang et al., 2020, "BERTScore: Evaluating Text Generation with BERT", section 3)::

    s_ij = <x_i, y_j> / (|x_i| |y_j|)
    P = sum_i w_i max_j s_ij / sum_i w_i
    R = sum_j v_j max_i s_ij / sum_j v_j
    F = 2 P R / (P + R)

It holds the similarity matrix of one pair, so it is for checking, not for use. Autograd through it
gives the gradients that ours are tested against: those of a maximum go to its lowest index, and
what is 0 or NaN by a rule alone has none.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """Rows of ``x`` [N, D] as float64 unit vectors; a zero row stays zero."""
    x = x.double()
    largest = x.detach().abs().amax(dim=-1, keepdim=True)
    x = torch.where(largest != 0, x, 0.0)
    x = x / torch.where(largest != 0, largest, 1.0)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(length != 0, length, 1.0)


def pair(
    x: Tensor, y: Tensor, w: Tensor | None = None, v: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Score one candidate [N, D] against one reference [M, D], everything in float64.

    Returns:
        Precision, recall and F1 [3]; of each candidate token the similarity of its best match and
        its index, lowest first ([N] each); the same of each reference token ([M] each). Index -1,
        with similarity 0, where a side is empty, and similarity NaN where a value is not finite.
    """
    w = x.new_ones(len(x), dtype=torch.float64) if w is None else w.double()
    v = y.new_ones(len(y), dtype=torch.float64) if v is None else v.double()
    finite = bool(x.isfinite().all() and y.isfinite().all())
    if not finite or len(x) == 0 or len(y) == 0:
        value = 0.0 if finite else torch.nan
        none = tuple(
            (tokens.new_full((len(tokens),), value, dtype=torch.float64), _unmatched(tokens))
            for tokens in (x, y)
        )
        return w.new_full((3,), value), none[0], none[1]
    similarity = unit(x) @ unit(y).T
    rows, columns = similarity.max(dim=1), similarity.max(dim=0)
    precision, recall = _mean(rows.values, w), _mean(columns.values, v)
    total = precision + recall
    defined = total.isfinite() & (total != 0)
    f1 = 2 * precision * recall / torch.where(defined, total, 1.0)
    scores = torch.stack([precision, recall, f1.where(defined, 0.0)])
    return scores, (rows.values, rows.indices), (columns.values, columns.indices)


def _unmatched(tokens: Tensor) -> Tensor:
    return torch.full((len(tokens),), -1)


def _mean(best: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean; NaN where there is no weight."""
    total = weights.sum()
    some = total != 0
    return ((weights * best).sum() / torch.where(some, total, 1.0)).where(some, torch.nan)


def bertscore(
    candidate: Tensor,
    reference: Tensor,
    candidate_mask: Tensor | None = None,
    reference_mask: Tensor | None = None,
    candidate_weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
) -> Tensor:
    """:func:`flashbertscore.functional.bertscore` as float64 [3, B], each pair cut out, alone."""
    arguments = (candidate, reference, candidate_mask, reference_mask)
    return bertscore_aligned(*arguments, candidate_weights, reference_weights)[0]


def bertscore_aligned(
    candidate: Tensor,
    reference: Tensor,
    candidate_mask: Tensor | None = None,
    reference_mask: Tensor | None = None,
    candidate_weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Scores float64 [3, B], then index and similarity [B, N] and index and similarity [B, M].

    An index is a position of the other document, masked ones included; -1 where a token is masked.
    """

    def valid(tokens: Tensor, mask: Tensor | None, b: int) -> Tensor:
        return torch.arange(tokens.shape[1]) if mask is None else mask[b].nonzero().squeeze(1)

    def chosen(values: Tensor | None, b: int, positions: Tensor) -> Tensor | None:
        return None if values is None else values[b][positions]

    scores: list[Tensor] = []
    sides: tuple[list[Tensor], ...] = ([], [], [], [])
    for b in range(len(candidate)):
        rows = valid(candidate, candidate_mask, b)
        columns = valid(reference, reference_mask, b)
        score, best_row, best_column = pair(
            candidate[b][rows],
            reference[b][columns],
            chosen(candidate_weights, b, rows),
            chosen(reference_weights, b, columns),
        )
        scores.append(score)
        for side, best, own, other, tokens in (
            (0, best_row, rows, columns, candidate),
            (2, best_column, columns, rows, reference),
        ):
            index = torch.where(best[1] < 0, -1, torch.cat([other, torch.tensor([-1])])[best[1]])
            sides[side].append(torch.full((tokens.shape[1],), -1).index_put((own,), index))
            sides[side + 1].append(
                torch.zeros(tokens.shape[1], dtype=torch.float64).index_put((own,), best[0])
            )
    if not scores:
        widths = (candidate.shape[1], candidate.shape[1], reference.shape[1], reference.shape[1])
        empty = [candidate.new_zeros(0, width, dtype=torch.float64) for width in widths]
        return candidate.new_zeros(3, 0, dtype=torch.float64), *empty
    return torch.stack(scores, dim=1), *(torch.stack(side) for side in sides)


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
    arguments = (candidate, candidate_offsets, reference, reference_offsets, pairs)
    return bertscore_packed_aligned(*arguments, candidate_weights, reference_weights)[0]


def bertscore_packed_aligned(
    candidate: Tensor,
    candidate_offsets: Tensor,
    reference: Tensor,
    reference_offsets: Tensor,
    pairs: Tensor | None = None,
    candidate_weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Scores float64 [3, P], then index and similarity of both sides, one pair after another."""

    def cut(values: Tensor | None, offsets: Tensor, d: int) -> Tensor | None:
        return None if values is None else values[offsets[d] : offsets[d + 1]]

    if pairs is None:
        pairs = torch.arange(len(candidate_offsets) - 1)[:, None].expand(-1, 2)
    scores = [candidate.new_zeros(3, 0, dtype=torch.float64)]
    sides = [[torch.zeros(0)] for _ in range(4)]
    for c, r in pairs.tolist():
        x, y = cut(candidate, candidate_offsets, c), cut(reference, reference_offsets, r)
        assert x is not None
        assert y is not None
        w = cut(candidate_weights, candidate_offsets, c)
        score, *best = pair(x, y, w, cut(reference_weights, reference_offsets, r))
        scores.append(score[:, None])
        for side, (values, index) in enumerate(best):
            sides[2 * side].append(index)
            sides[2 * side + 1].append(values)
    return torch.cat(scores, dim=1), *(torch.cat(side) for side in sides)
