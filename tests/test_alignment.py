"""Fear: a token is said to match another than its best, or scores change with the asking."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from backends import Backend, assert_matches_oracle, pack, tolerance
from flashbertscore import functional, oracle
from flashbertscore.functional import Scores

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def check(op: Backend, *args: Tensor | None) -> tuple[Tensor, ...]:
    """Compare scores and matches with the oracle's; return what the op gives."""
    assert args[0] is not None
    packed = args[0].dim() == 2
    found = op.packed_aligned(*args) if packed else op.aligned(*args)
    scores, *exact = (oracle.bertscore_packed_aligned if packed else oracle.bertscore_aligned)(
        *args
    )
    assert_matches_oracle(Scores(*found[:3]), scores, args[0].dtype)
    bound = 2 * tolerance(args[0].dtype)
    for index, similarity, best, value in (
        (found[3], found[4], *exact[:2]),
        (found[5], found[6], *exact[2:]),
    ):
        assert index.dtype == torch.int32
        assert similarity.dtype == found[0].dtype
        assert index.shape == best.shape == similarity.shape
        torch.testing.assert_close(similarity.double(), value, rtol=0, atol=bound, equal_nan=True)
        assert torch.equal(index.long(), best.long())
    # Asking changes no bit of the scores.
    plain = op.bertscore_packed(*args) if packed else op.bertscore(*args)
    op.assert_same(Scores(*found[:3]), plain)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("n", "m", "dim"),
    [(5, 9, 16), (33, 65, 100), (48, 48, 64), (49, 47, 384), (13, 200, 40), (200, 130, 520)],
)
def test_padded_with_masks_and_weights(
    op: Backend, dtype: torch.dtype, n: int, m: int, dim: int
) -> None:
    if op.name == "cpu-scalar":
        n, m = min(n, 50), min(m, 70)
    x, y = torch.randn(3, n, dim).to(dtype), torch.randn(3, m, dim).to(dtype)
    masks = torch.rand(3, n) > 0.3, torch.rand(3, m) > 0.3
    masks[0][1, : n // 2] = False
    check(op, x, y, *masks, torch.rand(3, n), torch.rand(3, m))
    check(op, x, y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_with_pairs(op: Backend, dtype: torch.dtype) -> None:
    x, x_offsets = pack([torch.randn(n, 48).to(dtype) for n in (3, 0, 17, 70)])
    y, y_offsets = pack([torch.randn(n, 48).to(dtype) for n in (33, 1, 8)])
    pairs = torch.cartesian_prod(torch.arange(4), torch.arange(3)).flip(0)
    check(op, x, x_offsets, y, y_offsets, pairs, torch.rand(len(x)), torch.rand(len(y)))
    check(op, *pack([y[:4], y[4:9]]), *pack([x[:1], x[1:9]]))


# Edges of the row tiles (6, 12), of vectors (2 to 16), of panels (4 to 32 columns), of short pairs
# (48) and of the CUDA tiles.
LENGTHS = [1, 2, 5, 6, 7, 11, 13, 15, 17, 31, 32, 33, 47, 49, 63, 64, 65, 129]


@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(op: Backend, n: int) -> None:
    for m in LENGTHS:
        # All similarities negative: an index beyond the end, or a zero row, would be the best.
        check(op, torch.rand(1, n, 9) + 0.1, -torch.rand(1, m, 9) - 0.1)


def axes(indices: list[int], dim: int = 64) -> Tensor:
    """Unit vectors along axes: similarities are exactly 0 and 1, so ties are exact."""
    return torch.eye(dim)[torch.tensor(indices)][None]


@pytest.mark.parametrize("repeat", [1, 2, 8, 40, 150])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ties_go_to_the_lowest_index(op: Backend, dtype: torch.dtype, repeat: int) -> None:
    """Wherever in tiles, panels, vectors, threads or blocks the equals stand."""
    if op.name == "cpu-scalar":
        repeat = min(repeat, 8)
    x = axes([3, 1, 4, 1, 5, 9, 2, 6] * repeat).to(dtype)
    y = axes([7, 2, 7, 1, 8, 2, 8, 1, 8] * repeat).to(dtype)
    found = check(op, x, y)
    # x_1 and x_3 match y_3; x_0, which is none of them, has similarity 0 with all: y_0.
    assert found[3][0, :4].tolist() == [0, 3, 0, 3]
    assert found[4][0, :4].tolist() == [0.0, 1.0, 0.0, 1.0]
    mask = torch.ones(1, y.shape[1])
    mask[0, [0, 1, 3]] = 0  # positions count masked tokens
    found = check(op, x, y, None, mask)
    assert found[3][0, :4].tolist() == [2, 7, 2, 7]
    assert found[5][0, [0, 1, 3]].tolist() == [-1, -1, -1]


def test_scaled_copies_are_ties_of_their_similarities(op: Backend) -> None:
    """Powers of two change no bit of a direction."""
    x = torch.randn(1, 60, 64)
    scale = 2.0 ** torch.arange(4)[None, :, None, None]
    copies = (x[:, None] * scale).flatten(1, 2)  # 4 copies of the document, one after another
    found = op.aligned(x, copies)
    assert torch.equal(found[3][0].long(), torch.arange(60))
    found = op.aligned(copies, x)
    assert torch.equal(found[5][0].long(), torch.arange(60))


def test_tokens_without_a_match(op: Backend) -> None:
    x, y = torch.rand(3, 4, 8), torch.rand(3, 5, 8)
    x_mask, y_mask = torch.ones(3, 4), torch.ones(3, 5)
    x_mask[0] = 0  # an empty side
    y_mask[1, 2] = 0
    x[2, 1, 3] = torch.inf  # a document that is not finite
    found = check(op, x, y, x_mask, y_mask)
    assert found[3][[0, 2]].unique().tolist() == [-1]
    assert found[4][2].isnan().all()
    assert not found[6][0].any()
    assert found[5][1, 2] == -1


def test_zero_vectors_match_the_first_token(op: Backend) -> None:
    x, y = torch.randn(1, 3, 8), torch.randn(1, 4, 8)
    x[0, 1] = 0
    found = check(op, x, y)
    assert found[3][0, 1] == 0
    assert found[4][0, 1] == 0.0


def test_norms_of_extreme_scale(op: Backend) -> None:
    for n in (6, 600):
        if n == 600 and op.name == "cpu-scalar":
            continue
        scales = torch.tensor([1e-38, 1e-30, 1.0, 1e19, 1e30, 1e37])[torch.arange(n) % 6]
        x, y = torch.randn(1, n, 8), torch.randn(1, n + 1, 8)
        exact = op.aligned(x, y)
        found = op.aligned(x * scales[None, :, None], y)
        assert torch.equal(found[3], exact[3])
        assert torch.equal(found[5], exact[5])
        a, b = x.bfloat16(), y.bfloat16()
        powers = 2.0 ** torch.tensor([-120.0, -80.0, 0.0, 64.0, 120.0])[torch.arange(n) % 5]
        check(op, a * powers[None, :, None].bfloat16(), b)


def test_long_pairs_on_several_threads(op: Backend) -> None:
    if op.name == "cpu-scalar":
        pytest.skip("a scalar loop over the full product takes seconds and tests nothing more")
    x, y = torch.randn(1, 700, 128), torch.randn(1, 900, 128)
    y[0, 800] = y[0, 3]
    y[0, 500] = x[0, 650] = x[0, 20]
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            found = op.aligned(x, y)
            # Of two values that differ in their last bits either can win; the similarity tells.
            unit = [torch.nn.functional.normalize(v[0].double(), dim=1) for v in (x, y)]
            similarity = unit[0] @ unit[1].T
            for index, value, table in (
                (found[3][0], found[4][0], similarity),
                (found[5][0], found[6][0], similarity.T),
            ):
                best = table.amax(dim=1)
                chosen = table.gather(1, index.long()[:, None])[:, 0]
                torch.testing.assert_close(chosen, best, rtol=0, atol=1e-6)
                torch.testing.assert_close(value.double(), best, rtol=0, atol=1e-6)
            assert found[3][0, 20] == found[3][0, 650] == 500
            assert found[5][0, 500] == 20
    finally:
        torch.set_num_threads(threads)


def test_functional_returns_an_alignment_with_its_offsets() -> None:
    x, y = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    scores, alignment = functional.bertscore(x, y, return_alignment=True)
    assert torch.equal(scores.f1, functional.bertscore(x, y).f1)
    assert alignment.candidate_index.shape == (2, 3)
    assert alignment.candidate_offsets is None
    torch.testing.assert_close(scores.recall, alignment.reference_similarity.mean(1))
    a, b = pack([torch.randn(n, 8) for n in (3, 4)]), pack([torch.randn(n, 8) for n in (2, 6)])
    pairs = torch.tensor([[1, 0], [0, 1], [1, 1]])
    scores, alignment = functional.bertscore_packed(*a, *b, pairs, return_alignment=True)
    assert alignment.candidate_offsets is not None
    assert alignment.candidate_offsets.tolist() == [0, 4, 7, 11]
    assert alignment.reference_offsets is not None
    assert alignment.reference_offsets.tolist() == [0, 2, 8, 14]
    assert len(alignment.candidate_index) == 11
    mean = alignment.reference_similarity[2:8].mean()
    torch.testing.assert_close(scores.recall[1], mean)
    _, alignment = functional.bertscore_packed(*a, *a, return_alignment=True)
    assert alignment.candidate_offsets is not None
    assert alignment.candidate_offsets.tolist() == [0, 3, 7]
    assert torch.equal(alignment.candidate_index, torch.tensor([0, 1, 2, 0, 1, 2, 3]).int())
