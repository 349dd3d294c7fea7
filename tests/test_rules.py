"""Fear: a rule of the equation (flashbertscore.functional) does not hold."""

from __future__ import annotations

import torch

from backends import Backend, assert_matches_oracle, pack
from flashbertscore import oracle


def test_true_maximum_is_taken_when_all_similarities_are_negative(op: Backend) -> None:
    x, y = torch.rand(4, 9, 8) + 0.1, -torch.rand(4, 14, 8) - 0.1
    mask = torch.arange(9) < torch.tensor([9, 5, 1, 3])[:, None]
    scores = op.bertscore(x, y, candidate_mask=mask)
    assert (torch.stack(scores) < 0).all()
    assert_matches_oracle(scores, oracle.bertscore(x, y, mask), torch.float32)


def test_a_token_of_weight_zero_can_still_be_matched(op: Backend) -> None:
    x, y = torch.eye(3)[None, :2], torch.eye(3)[None, 1:]
    weights = torch.tensor([[0.0, 1.0]])  # y_1 = x_2 has no weight of its own
    scores = op.bertscore(x, y, reference_weights=weights.flip(1))
    assert scores.precision.item() == 0.5
    assert scores.recall.item() == 1.0
    scores = op.bertscore(x, y, reference_weights=weights)
    assert scores.precision.item() == 0.5
    assert scores.recall.item() == 0.0


def test_ties_change_nothing(op: Backend) -> None:
    """Several tokens with the same best similarity: the maximum is theirs, once."""
    x, y = torch.randn(1, 10, 16), torch.randn(1, 12, 16)
    twice = op.bertscore(x, torch.cat([y, y], dim=1))
    once = op.bertscore(x, y)
    torch.testing.assert_close(torch.stack(twice), torch.stack(once), atol=1e-7, rtol=0)
    if op.bitwise:
        assert twice.precision.item() == once.precision.item()


def test_a_zero_vector_has_similarity_zero_with_everything(op: Backend) -> None:
    x, y = torch.rand(1, 3, 8) + 0.1, -torch.rand(1, 4, 8) - 0.1
    x[0, 1] = 0
    scores = op.bertscore(x, y)
    assert scores.recall.item() == 0.0  # the zero token is every reference token's best match
    assert scores.precision.item() < 0.0
    assert_matches_oracle(scores, oracle.bertscore(x, y), torch.float32)
    zeros = op.bertscore(torch.zeros(1, 3, 8), torch.zeros(1, 2, 8))
    assert torch.stack(zeros).tolist() == [[0.0]] * 3


def test_zero_total_weight_is_nan_in_that_direction_and_f1_zero(op: Backend) -> None:
    x, y = torch.rand(2, 3, 8), torch.rand(2, 4, 8)
    none = torch.zeros(2, 3)
    scores = op.bertscore(x, y, candidate_weights=none)
    assert scores.precision.isnan().all()
    assert (scores.recall > 0).all()
    assert scores.f1.tolist() == [0.0, 0.0]
    scores = op.bertscore(y, x, reference_weights=none)
    assert scores.recall.isnan().all()
    assert scores.f1.tolist() == [0.0, 0.0]


def test_an_empty_side_scores_zero(op: Backend) -> None:
    x, y = torch.rand(3, 4, 8), torch.rand(3, 5, 8)
    x_mask, y_mask = torch.ones(3, 4), torch.ones(3, 5)
    x_mask[0] = 0
    y_mask[1] = 0
    scores = torch.stack(op.bertscore(x, y, x_mask, y_mask))
    assert scores[:, :2].tolist() == [[0.0, 0.0]] * 3
    assert (scores[:, 2] > 0).all()
    x, x_offsets = pack([torch.rand(0, 8), torch.rand(3, 8), torch.rand(2, 8)])
    y, y_offsets = pack([torch.rand(2, 8), torch.rand(0, 8), torch.rand(3, 8)])
    scores = torch.stack(op.bertscore_packed(x, x_offsets, y, y_offsets))
    assert scores[:, :2].tolist() == [[0.0, 0.0]] * 3
    assert (scores[:, 2] > 0).all()


def test_opposite_precision_and_recall_give_f1_zero(op: Backend) -> None:
    x, y = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    assert torch.stack(op.bertscore(x, y)).tolist() == [[0.0]] * 3


def test_identical_documents_score_one(op: Backend) -> None:
    x = torch.randn(3, 20, 384)
    scores = op.bertscore(x, x)
    torch.testing.assert_close(torch.stack(scores), torch.ones(3, 3), atol=4e-7, rtol=0)
    op.assert_same(scores, op.bertscore(x, x.clone()))


def test_vectors_of_extreme_scale(op: Backend) -> None:
    """Norms whose square leaves the range of the dtype: a direction is a direction."""
    x, y = torch.randn(1, 6, 8), torch.randn(1, 7, 8)
    scales = torch.tensor([1e-38, 1e-30, 1.0, 1e19, 1e30, 1e37])[None, :, None]
    assert_matches_oracle(op.bertscore(x * scales, y), oracle.bertscore(x, y), torch.float32)
    # bfloat16, both sides extreme, of a short document and of one that takes other kernels.
    for n in (6, 600):
        a, b = torch.randn(1, n, 8).bfloat16(), torch.randn(1, n + 1, 8).bfloat16()
        exponents = torch.tensor([-120.0, -80.0, 0.0, 64.0, 120.0])
        p, q = 2.0 ** exponents[torch.arange(n) % 5], 2.0 ** exponents[torch.arange(n + 1) // 2 % 5]
        far = op.bertscore(a * p[None, :, None].bfloat16(), b * q[None, :, None].bfloat16())
        assert_matches_oracle(far, oracle.bertscore(a, b), torch.bfloat16)
    x, y = x.double(), y.double()
    scales = torch.tensor([1e-300, 1e-200, 1.0, 1e100, 1e200, 1e307], dtype=torch.float64)
    scaled = x * scales[None, :, None]
    assert_matches_oracle(op.bertscore(scaled, y), oracle.bertscore(x, y), torch.float64)


def test_float16_subnormals(op: Backend) -> None:
    x, y = torch.randn(1, 6, 9), torch.randn(1, 7, 9).half()
    x = (x * torch.tensor([2.0**-20, 1.0, 2.0**-24])[:, None].repeat(2, 1)).half()
    assert_matches_oracle(op.bertscore(x, y), oracle.bertscore(x, y), torch.float16)


def test_vectors_whose_products_vanish(op: Backend) -> None:
    """Norms that the dtype holds, with squares and products that it holds badly or not at all."""
    for dtype, scale in ((torch.float32, 1e-21), (torch.float64, 1e-160)):
        x, y = torch.randn(1, 6, 8, dtype=dtype) * scale, torch.randn(1, 7, 8, dtype=dtype) * scale
        assert_matches_oracle(op.bertscore(x, y), oracle.bertscore(x, y), dtype)


def test_a_zero_vector_beside_one_of_extreme_scale(op: Backend) -> None:
    x, y = torch.rand(1, 3, 8) + 0.1, -torch.rand(1, 4, 8) - 0.1
    scales = torch.tensor([1.0, 0.0, 1e30])[None, :, None]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        scaled = (x * scales).to(dtype), y.to(dtype)
        assert_matches_oracle(op.bertscore(*scaled), oracle.bertscore(*scaled), dtype)
        turned = scaled[0].flip(1), scaled[1]
        assert_matches_oracle(op.bertscore(*turned), oracle.bertscore(*turned), dtype)


def test_bfloat16_vectors_of_extreme_scale(op: Backend) -> None:
    """Pairs that instructions for bfloat16 leave out, among others that they compute."""
    scales = torch.tensor([1e-38, 1.0, 1e37])[:, None, None]
    x = (torch.randn(3, 6, 8) * scales).bfloat16()
    y = torch.randn(3, 7, 8).bfloat16()
    assert_matches_oracle(op.bertscore(x, y), oracle.bertscore(x, y), torch.bfloat16)
    packed = (
        x.flatten(0, 1),
        torch.tensor([0, 6, 12, 18]),
        y.flatten(0, 1),
        torch.tensor([0, 7, 14, 21]),
    )
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    assert_matches_oracle(
        op.bertscore_packed(*packed, pairs), oracle.bertscore_packed(*packed, pairs), torch.bfloat16
    )
