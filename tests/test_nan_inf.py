"""Fear: one bad value spoils another pair's scores, or does not spoil its own."""

from __future__ import annotations

import pytest
import torch

from backends import Backend, assert_matches_oracle, pack
from flashbertscore import oracle
from flashbertscore.functional import Scores

BAD = [float("nan"), float("inf"), float("-inf")]
# First and last token, and the corners of row tiles (6, 12) and panels (16, 32).
POSITIONS = [0, 5, 6, 11, 12, 15, 16, 31, 32, 39]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
def test_bad_value_stays_in_its_pair(op: Backend, bad: float, dtype: torch.dtype) -> None:
    x, y = torch.randn(3, 40, 24).to(dtype), torch.randn(3, 40, 24).to(dtype)
    clean = op.bertscore(x, y)
    for position in POSITIONS:
        for side in (0, 1):
            sides = [x.clone(), y.clone()]
            sides[side][1, position, position % 24] = bad
            scores = op.bertscore(*sides)
            assert all(values[1].isnan() for values in scores)
            for index in (0, 2):
                one, other = ([v[index : index + 1] for v in s] for s in (scores, clean))
                op.assert_same(Scores(*one), Scores(*other))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bad_value_at_a_corner_of_a_large_tile(op: Backend, dtype: torch.dtype) -> None:
    positions = [0, 63, 64, 127, 128, 255, 256, 259]  # of CUDA tiles
    x, y = (torch.randn(len(positions) + 1, 260, 8).to(dtype) for _ in range(2))
    clean = op.bertscore(x, y)
    for side in (0, 1):
        sides = [x.clone(), y.clone()]
        for pair, position in enumerate(positions):
            sides[side][pair, position, position % 8] = BAD[pair % 3]
        scores = op.bertscore(*sides)
        assert all(values[:-1].isnan().all() for values in scores)
        op.assert_same(Scores(*(v[-1:] for v in scores)), Scores(*(v[-1:] for v in clean)))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("length", [7, 60])
def test_bad_value_before_and_after_tokens_of_unusual_norms(
    op: Backend, bad: float, length: int
) -> None:
    x, y = torch.randn(2, length, 8), torch.randn(2, length, 8)
    x[:, 0], x[:, 2], x[:, 4] = 0.0, x[:, 2] * 1e30, 0.0
    clean = op.bertscore(x, y)
    for position in (1, 3, 5):
        spoilt = x.clone()
        spoilt[1, position, 2] = bad
        for scores in (op.bertscore(spoilt, y), op.bertscore(y, spoilt)):
            assert all(values[1].isnan() for values in scores)
            torch.testing.assert_close(scores.f1[0], clean.f1[0])


def test_bad_value_under_the_mask_is_no_value(op: Backend) -> None:
    x, y = torch.randn(2, 6, 8), torch.randn(2, 7, 8)
    x_mask, y_mask = torch.ones(2, 6, dtype=torch.bool), torch.ones(2, 7, dtype=torch.bool)
    x_mask[:, 4:] = False
    y_mask[:, 0] = False
    expected = oracle.bertscore(x, y, x_mask, y_mask)
    x[:, 5], y[:, 0] = torch.nan, torch.inf
    assert_matches_oracle(op.bertscore(x, y, x_mask, y_mask), expected, torch.float32)


def test_bad_document_spoils_every_pair_it_is_in_and_no_other(op: Backend) -> None:
    documents = [torch.randn(n, 8) for n in (4, 5, 6)]
    documents[1][2, 3] = torch.nan
    x, offsets = pack(documents)
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    scores = torch.stack(op.bertscore_packed(x, offsets, x, offsets, pairs))
    spoilt = (pairs == 1).any(dim=1)
    assert (scores.isnan() == spoilt).all()


def test_bad_token_of_weight_zero_and_bad_partner_of_an_empty_side_are_nan(op: Backend) -> None:
    x, y = torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    x[0, 1, 0] = torch.inf
    weights = torch.tensor([[1.0, 0.0, 1.0]])
    assert torch.stack(op.bertscore(x, y, candidate_weights=weights)).isnan().all()
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert torch.stack(op.bertscore(x, y, reference_mask=nothing)).isnan().all()


@pytest.mark.parametrize("length", [48, 49, 200])  # around the longest pair that is read at once
def test_bad_partner_of_an_empty_side_is_nan_at_every_length(op: Backend, length: int) -> None:
    x, y = torch.randn(1, 3, 8), torch.randn(1, length, 8)
    y[0, -1, 3] = torch.nan
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert torch.stack(op.bertscore(x, y, candidate_mask=nothing)).isnan().all()
    assert torch.stack(op.bertscore(y, x, reference_mask=nothing)).isnan().all()
    bad, empty = (y[0], torch.tensor([0, length])), (x[0, :0], torch.tensor([0, 0]))
    for pairs in (None, torch.tensor([[0, 0]])):
        assert torch.stack(op.bertscore_packed(*bad, *empty, pairs)).isnan().all()
        assert torch.stack(op.bertscore_packed(*empty, *bad, pairs)).isnan().all()
