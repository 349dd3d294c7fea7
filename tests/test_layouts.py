"""Fear: a mask pattern, a stride or the packed form changes a score, or an input is modified."""

from __future__ import annotations

import pytest
import torch

from backends import Backend, assert_matches_oracle, pack, transfer
from flashbertscore import oracle

MASKS = {
    "right padding": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]],
    "left padding": [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]],
    "holes": [[1, 0, 1, 0, 1], [0, 1, 0, 1, 0]],
    "one token": [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]],
    "nothing": [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]],
}


@pytest.mark.parametrize("pattern", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32], ids=str)
def test_masks(op: Backend, pattern: list[list[int]], dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 5, 12), torch.randn(2, 8, 12)
    mask, weights = torch.tensor(pattern).to(dtype), torch.rand(2, 5) + 0.1
    scores = op.bertscore(x, y, mask, candidate_weights=weights)
    expected = oracle.bertscore(x, y, mask, candidate_weights=weights)
    assert_matches_oracle(scores, expected, torch.float32)
    flipped = op.bertscore(y, x, reference_mask=mask, reference_weights=weights)
    assert_matches_oracle(flipped, expected[[1, 0, 2]], torch.float32)


def test_padded_and_packed_agree_to_the_bit(op: Backend) -> None:
    lengths = torch.tensor([1, 7, 19, 33]), torch.tensor([40, 2, 16, 5])
    x, y = torch.randn(4, 33, 20), torch.randn(4, 40, 20)
    w, v = torch.rand(4, 33), torch.rand(4, 40)
    masks = [
        torch.arange(width) < length[:, None]
        for width, length in zip((33, 40), lengths, strict=True)
    ]
    padded = op.bertscore(x, y, *masks, w, v)
    packed_x, x_offsets = pack([row[mask] for row, mask in zip(x, masks[0], strict=True)])
    packed_y, y_offsets = pack([row[mask] for row, mask in zip(y, masks[1], strict=True)])
    packed = op.bertscore_packed(
        packed_x,
        x_offsets,
        packed_y,
        y_offsets,
        candidate_weights=w[masks[0]],
        reference_weights=v[masks[1]],
    )
    op.assert_same(padded, packed)


def strided_views(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors equal to ``x`` [B, N, D] with other strides."""
    B, N, D = x.shape
    wide = torch.full((B, 2 * N, D + 3), torch.nan)
    wide[:, ::2, 1 : D + 1] = x
    every_third = torch.full((3 * B, N, D), torch.nan)
    every_third[::3] = x
    return {
        "rows and columns of a wider buffer": wide[:, ::2, 1 : D + 1],
        "every third document": every_third[::3],
        "transposed storage": x.transpose(1, 2).contiguous().transpose(1, 2),
        "batch innermost": x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
        "offset by one element": torch.cat([torch.zeros(1), x.flatten()])[1:].view(B, N, D),
    }


def test_strided_inputs(op: Backend) -> None:
    x, y = torch.randn(3, 6, 10), torch.randn(3, 9, 10)
    expected = op.bertscore(x, y)
    for name, view in strided_views(x).items():
        assert torch.equal(view, x), name
        moved = transfer(view, "cpu")  # what a backend on a device would see
        assert torch.equal(moved, x), name
        assert (moved.stride(), moved.storage_offset()) == (view.stride(), view.storage_offset())
        op.assert_same(op.bertscore(view, y), expected)


def test_expanded_inputs(op: Backend) -> None:
    x, y = torch.randn(1, 6, 10), torch.randn(4, 9, 10)
    mask = torch.tensor([[True, False, True, True, True, True]])
    weights = torch.rand(1, 6)
    arguments = x.expand(4, -1, -1), y, mask.expand(4, -1), None, weights.expand(4, -1)
    copies = [None if value is None else value.clone() for value in arguments]
    op.assert_same(op.bertscore(*arguments), op.bertscore(*copies))
    column = torch.rand(2, 3, 1)  # D expanded: stride 0 along a row
    op.assert_same(
        op.bertscore(column.expand(2, 3, 8), torch.ones(2, 2, 8)),
        op.bertscore(column.repeat(1, 1, 8), torch.ones(2, 2, 8)),
    )


def test_packed_rows_of_a_wider_buffer_and_int32_indices(op: Backend) -> None:
    x, offsets = pack([torch.randn(n, 10) for n in (4, 6)])
    wide = torch.full((len(x) * 2, 16), torch.nan)
    wide[::2, 2:12] = x
    pairs = torch.tensor([[0, 1], [1, 0], [1, 1]])
    expected = op.bertscore_packed(x, offsets, x, offsets, pairs)
    strided = wide[::2, 2:12]
    every_other = torch.stack([pairs, pairs], dim=2).to(torch.int32)[:, :, 0]
    got = op.bertscore_packed(strided, offsets.int(), strided, offsets.int(), every_other)
    op.assert_same(got, expected)


def test_negated_views(op: Backend) -> None:
    z = torch.complex(torch.randn(2, 5, 4), torch.randn(2, 5, 4))
    negated = z.conj().imag  # a view that torch negates lazily
    assert negated.is_neg()
    y = torch.randn(2, 5, 4)
    op.assert_same(op.bertscore(negated, y), op.bertscore(negated.resolve_neg().contiguous(), y))


def test_inputs_are_not_modified(op: Backend) -> None:
    x, y = torch.randn(2, 6, 10), torch.randn(2, 9, 10)
    arguments = [x, y, torch.rand(2, 6) > 0.5, torch.rand(2, 9) > 0.5]
    arguments += [torch.rand(2, 6), torch.rand(2, 9)]
    before = [value.clone() for value in arguments]
    op.bertscore(*arguments)
    packed, offsets = pack(list(x))
    op.bertscore_packed(packed, offsets, packed, offsets)
    for value, copy in zip(arguments, before, strict=True):
        assert torch.equal(value, copy)
    assert offsets.tolist() == [0, 6, 12]


def test_mask_addresses_of_any_alignment(op: Backend) -> None:
    """Inputs that start at every byte or element of a vector register."""
    for shift in range(16):
        store = torch.randn(shift + 2 * 7 * 33)
        x = store[shift:].view(2, 7, 33)
        mask = (torch.rand(shift + 14) > 0.3)[shift:].view(2, 7)
        mask[:, 0] = True
        y = torch.randn(2, 5, 33)
        assert_matches_oracle(op.bertscore(x, y, mask), oracle.bertscore(x, y, mask), torch.float32)
