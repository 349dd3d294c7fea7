"""Fear: a size next to a tile's edge, of one, or of zero is handled wrongly."""

from __future__ import annotations

import pytest
import torch

from backends import Backend, assert_matches_oracle, pack
from flashbertscore import oracle

# Edges of the row tiles (6, 12), of vectors (2 to 16), of panels (4 to 32 columns) and of short
# pairs (48).
LENGTHS = [1, 2, 5, 6, 7, 11, 12, 13, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65]
# Edges of the CUDA tiles of long pairs.
TILES = [127, 128, 129, 255, 256, 257, 511, 512, 513]
# Edges of vectors and of the 256-long chains that a dot product is summed in.
DIMS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 255, 256, 257, 384, 511, 512, 513, 1000]


@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(op: Backend, n: int) -> None:
    for m in LENGTHS:
        # All similarities negative: a column too many shows as a maximum of 0.
        x, y = torch.rand(1, n, 9) + 0.1, -torch.rand(1, m, 9) - 0.1
        assert_matches_oracle(op.bertscore(x, y), oracle.bertscore(x, y), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", TILES)
def test_tiles(op: Backend, n: int, dtype: torch.dtype) -> None:
    for m in (n, 1, 129):
        for count in (1, 4):  # four are more than the emulated device has multiprocessors
            x, y = torch.rand(count, n, 16) + 0.1, -torch.rand(count, m, 16) - 0.1
            x, y = x.to(dtype), y.to(dtype)
            assert_matches_oracle(op.bertscore(x, y), oracle.bertscore(x, y), dtype)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("m", [34, 50], ids=["short", "packed"])  # pairs up to 48 x 48 are short
def test_dims(op: Backend, dim: int, dtype: torch.dtype, m: int) -> None:
    x, y = torch.randn(2, 13, dim).to(dtype), torch.randn(2, m, dim).to(dtype)
    assert_matches_oracle(op.bertscore(x, y), oracle.bertscore(x, y), dtype)


@pytest.mark.parametrize(("n", "m"), [(511, 513), (512, 512), (513, 1), (1, 2049)])
def test_long_documents_cross_column_blocks(op: Backend, n: int, m: int) -> None:
    if op.name == "cpu-scalar":
        n = min(n, 24)  # a scalar loop over the full product takes seconds and tests nothing more
    x, y = torch.randn(1, n, 520), torch.randn(1, m, 520)
    assert_matches_oracle(op.bertscore(x, y), oracle.bertscore(x, y), torch.float32)


def test_no_pairs(op: Backend) -> None:
    for scores in (
        op.bertscore(torch.randn(0, 4, 8), torch.randn(0, 5, 8)),
        op.bertscore_packed(*pack([torch.randn(4, 8)]) * 2, torch.empty(0, 2, dtype=torch.int64)),
        op.bertscore_packed(
            torch.randn(0, 8), torch.tensor([0]), torch.randn(0, 8), torch.tensor([0])
        ),
    ):
        assert [tuple(values.shape) for values in scores] == [(0,)] * 3


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0), (0, 0)])
def test_padded_batches_of_width_zero_score_zero(op: Backend, n: int, m: int) -> None:
    scores = op.bertscore(torch.randn(2, n, 4), torch.randn(2, m, 4))
    assert torch.stack(scores).tolist() == [[0.0, 0.0]] * 3


def test_one_document_of_many_pairs(op: Backend) -> None:
    x, x_offsets = pack([torch.randn(7, 16)])
    y, y_offsets = pack([torch.randn(1 + d % 9, 16) for d in range(1000)])
    pairs = torch.stack([torch.zeros(1000, dtype=torch.int64), torch.arange(1000)], dim=1)
    arguments = (x, x_offsets, y, y_offsets, pairs)
    assert_matches_oracle(
        op.bertscore_packed(*arguments), oracle.bertscore_packed(*arguments), torch.float32
    )
