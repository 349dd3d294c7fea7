"""Fear: a number differs from the equation, for some dtype, shape, mask or weight."""

from __future__ import annotations

import pytest
import torch

from backends import Backend, assert_matches_oracle, pack
from flashbertscore import oracle

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "m", "dim"), [(5, 9, 16), (33, 65, 100), (40, 12, 384)])
def test_padded_with_masks_and_weights(
    op: Backend, dtype: torch.dtype, n: int, m: int, dim: int
) -> None:
    x, y = torch.randn(3, n, dim).to(dtype), torch.randn(3, m, dim).to(dtype)
    masks = torch.rand(3, n) > 0.3, torch.rand(3, m) > 0.3
    weights = torch.rand(3, n), torch.rand(3, m)
    assert_matches_oracle(
        op.bertscore(x, y, *masks, *weights), oracle.bertscore(x, y, *masks, *weights), dtype
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_with_pairs_and_weights(op: Backend, dtype: torch.dtype) -> None:
    x, x_offsets = pack([torch.randn(n, 48).to(dtype) for n in (3, 0, 17, 70)])
    y, y_offsets = pack([torch.randn(n, 48).to(dtype) for n in (33, 1, 8)])
    pairs = torch.cartesian_prod(torch.arange(4), torch.arange(3)).flip(0)
    arguments = (x, x_offsets, y, y_offsets, pairs, torch.rand(len(x)), torch.rand(len(y)))
    assert_matches_oracle(
        op.bertscore_packed(*arguments), oracle.bertscore_packed(*arguments), dtype
    )


def test_one_pair_by_hand(op: Backend) -> None:
    candidate = torch.tensor([[[2.0, 0.0], [0.0, 3.0]]])
    reference = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [-5.0, 0.0]]])
    # similarities: [1, 0.6, -1], [0, 0.8, 0]; row maxima 1, 0.8; column maxima 1, 0.8, 0
    scores = op.bertscore(candidate, reference, candidate_weights=torch.tensor([[3.0, 1.0]]))
    precision, recall = (3 * 1 + 0.8) / 4, (1 + 0.8 + 0) / 3
    assert scores.precision.item() == pytest.approx(precision, abs=1e-6)
    assert scores.recall.item() == pytest.approx(recall, abs=1e-6)
    f1 = 2 * precision * recall / (precision + recall)
    assert scores.f1.item() == pytest.approx(f1, abs=1e-6)


def test_weights_of_other_float_dtypes_are_converted(op: Backend) -> None:
    x, y = torch.randn(2, 6, 8), torch.randn(2, 5, 8)
    w = torch.tensor([[0.0, 0.5, 1.0, 2.0, 4.0, 8.0]] * 2)
    expected = oracle.bertscore(x, y, candidate_weights=w)
    for dtype in DTYPES:
        assert_matches_oracle(
            op.bertscore(x, y, candidate_weights=w.to(dtype)), expected, torch.float32
        )


def test_error_is_at_most_twice_that_of_plain_torch(op: Backend) -> None:
    """On wide embeddings, against the normalize + bmm + max chain in float32."""
    x, y = torch.randn(8, 64, 1024) + 0.5, torch.randn(8, 64, 1024) + 0.5
    exact = oracle.bertscore(x, y)
    similarity = torch.nn.functional.normalize(x, dim=2) @ torch.nn.functional.normalize(
        y, dim=2
    ).transpose(1, 2)
    plain = torch.stack([similarity.amax(2).mean(1), similarity.amax(1).mean(1)]).double()
    ours = torch.stack(op.bertscore(x, y)[:2]).double()
    assert (ours - exact[:2]).abs().max() <= 2 * (plain - exact[:2]).abs().max() + 6e-8
