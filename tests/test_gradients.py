"""Fear: a gradient is wrong, or depends on threads or batch, for some dtype, shape, mask, scale."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from backends import Backend, pack
from flashbertscore import oracle

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# A gradient is rounded to the dtype of its input; before that it is off by a few roundings of sums.
ROUNDING = {
    torch.float32: 1e-6,
    torch.float64: 1e-13,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-10,
}


def loss_gradients(found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Random gradients of precision, recall, F1 and both sides' similarities."""
    return tuple(torch.randn(found[i].shape).to(found[0].dtype) for i in (0, 1, 2, 4, 6))


def expected(
    args: tuple[Tensor | None, ...], grads: tuple[Tensor | None, ...]
) -> tuple[Tensor, ...]:
    """Of autograd through the oracle: gradients of tokens and weights, float64."""
    assert args[0] is not None
    packed = args[0].dim() == 2
    places = (0, 2, 5, 6) if packed else (0, 1, 4, 5)
    values = [*args, *(None,) * (7 - len(args))]
    leaves = []
    for tokens, weights in zip(places[:2], places[2:], strict=True):
        x = values[tokens]
        assert x is not None
        given = values[weights]
        w = x.new_ones(x.shape[:-1], dtype=torch.float64) if given is None else given.double()
        values[tokens] = x.detach().double().requires_grad_()
        values[weights] = w.detach().requires_grad_()
        leaves.append((values[tokens], values[weights]))
    op = oracle.bertscore_packed_aligned if packed else oracle.bertscore_aligned
    scores, _, row, _, column = op(*values[: 7 if packed else 6])
    outputs = [*scores, row, column]
    loss = torch.zeros((), dtype=torch.float64)
    for value, gradient in zip(outputs, grads, strict=True):
        if gradient is not None:
            ours = torch.where(value.isnan(), 0.0, value) * gradient.double().view(value.shape)
            loss = loss + ours.sum()
    leaf = [side[0] for side in leaves] + [side[1] for side in leaves]
    if not loss.requires_grad:
        return tuple(torch.zeros_like(x) for x in leaf)
    found = torch.autograd.grad(loss, leaf, allow_unused=True, materialize_grads=True)
    return tuple(found)


def check(
    op: Backend, *args: Tensor | None, scale: Tensor | float = 1.0, terms: int = 1
) -> tuple[Tensor, ...]:
    """Compare all gradients with the oracle's.

    ``scale``: norms of the rows of x. ``terms``: matches that meet in one token; their sum is off
    by their square root of roundings.
    """
    assert args[0] is not None
    packed = args[0].dim() == 2
    found = op.packed_aligned(*args) if packed else op.aligned(*args)
    grads = loss_gradients(found)
    got = op.backward(args, found, grads)
    for i, (ours, exact) in enumerate(zip(got, expected(args, grads), strict=True)):
        assert ours.shape == exact.shape
        dtype = args[0].dtype if i < 2 else found[0].dtype
        assert ours.dtype == dtype
        size = (exact.abs() * (scale if i == 0 else 1.0)).max() if exact.numel() else 0.0
        error = (ours.double() - exact).abs() * (scale if i == 0 else 1.0)
        bound = ROUNDING[dtype] * max(float(size), 1.0) * terms**0.5
        assert not error.numel() or error.max() <= bound
    return got


def sides(
    n: int, m: int, dim: int, dtype: torch.dtype = torch.float32, batch: int = 3
) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, n, dim).to(dtype), torch.randn(batch, m, dim).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "m", "dim"), [(5, 9, 16), (33, 65, 100), (40, 12, 384), (1, 1, 2)])
def test_padded_with_masks_and_weights(
    op: Backend, dtype: torch.dtype, n: int, m: int, dim: int
) -> None:
    masks = torch.rand(3, n) > 0.3, torch.rand(3, m) > 0.3
    check(op, *sides(n, m, dim, dtype), *masks, torch.rand(3, n), torch.rand(3, m))


def documents(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    x = pack([torch.randn(n, 48).to(dtype) for n in (3, 0, 17, 60, 5)])
    y = pack([torch.randn(n, 48).to(dtype) for n in (33, 1, 8)])
    pairs = torch.cartesian_prod(torch.arange(4), torch.arange(3)).flip(0)  # document 4 in none
    return *x, *y, torch.cat([pairs, pairs[:2]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_with_pairs_that_share_documents(op: Backend, dtype: torch.dtype) -> None:
    args = documents(dtype)
    got = check(op, *args, torch.rand(len(args[0])), torch.rand(len(args[2])))
    assert not got[0][-5:].any()


def test_packed_one_to_one(op: Backend) -> None:
    x, y = (pack([torch.randn(n, 24) for n in lengths]) for lengths in ((4, 9, 1), (7, 2, 3)))
    check(op, *x, *y)


def test_strided_and_expanded_tokens(op: Backend) -> None:
    x = torch.randn(2, 3, 9, 8)[:, 1].transpose(1, 2).contiguous().transpose(1, 2)
    check(op, x, torch.randn(7, 16)[::2, ::2].expand(2, -1, -1))


def test_a_token_that_many_match(op: Backend) -> None:
    hub = torch.randn(1, 1, 16)
    check(op, torch.cat([hub, -hub], dim=1), hub + 0.3 * torch.randn(1, 500, 16), terms=500)


def test_norms_of_extreme_scale(op: Backend) -> None:
    scales = torch.tensor([1e-38, 1e-30, 1.0, 1e19, 1e30, 1e37])[None, :, None]
    x, y = torch.randn(1, 6, 8), torch.randn(1, 7, 8)
    # Gradients are as large as norms are small: the loss is kept small enough for both.
    args = x * scales, y
    found = op.aligned(*args)
    grads = tuple(1e-3 * g for g in loss_gradients(found))
    got = op.backward(args, found, grads)
    for ours, exact, factor in zip(got, expected(args, grads), (scales, 1, 1, 1), strict=True):
        torch.testing.assert_close(
            (ours.double() * factor), exact * factor, rtol=1e-5, atol=1e-8, check_dtype=False
        )
    x, y = x.double(), y.double()
    scales = torch.tensor([1e-200, 1e-160, 1.0, 1e100, 1e200, 1e300], dtype=torch.float64)
    check(op, x * scales[None, :, None], y, scale=scales[None, :, None])


def test_rules_give_zero(op: Backend) -> None:
    """P + R = 0 for F, an empty side, zero vectors, no weight, a document that is not finite."""
    ones = torch.ones(1)
    opposite = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    found = op.aligned(*opposite)
    only_f1 = (0 * ones, 0 * ones, ones, None, None)
    assert not torch.cat(op.backward(opposite, found, only_f1)[:2]).any()

    x, y = sides(4, 5, 8, batch=5)
    x_mask, y_mask = torch.ones(5, 4), torch.ones(5, 5)
    x_mask[0] = y_mask[1] = 0
    x[2, 1] = y[2, 3] = 0
    w = torch.rand(5, 4)
    w[3] = 0
    x[4, 2, 3] = torch.nan
    args = (x, y, x_mask, y_mask, w, None)
    found = op.aligned(*args)
    got = op.backward(args, found, (*(torch.ones(5),) * 3, None, None))
    assert not got[0][[0, 1, 4]].any()
    assert not got[1][[0, 1, 4]].any()
    assert not got[0][2, 1].any()
    assert not got[1][2, 3].any()
    assert not got[2][[0, 1, 3, 4]].any()
    assert all(value.isfinite().all() for value in got)
    assert got[0][2, 0].any()
    assert got[1][3].any()  # recall has its gradient where the candidate has no weight


def test_only_what_is_wanted_is_computed(op: Backend) -> None:
    args = sides(6, 7, 8)
    found = op.aligned(*args)
    grads = loss_gradients(found)
    everything = op.backward(args, found, grads)
    for i in range(4):
        got = op.backward(args, found, grads, tuple(j == i for j in range(4)))
        for j, value in enumerate(got):
            assert torch.equal(value, everything[j]) if j == i else value.shape == (0,)


def test_sides_change_places_and_no_bit_with_them(op: Backend) -> None:
    x, y = sides(30, 50, 40)
    found = op.aligned(x, y)
    swapped = (found[1], found[0], found[2], *found[5:], *found[3:5])
    grads = loss_gradients(found)
    back = (grads[1], grads[0], grads[2], grads[4], grads[3])
    here = op.backward((x, y), found, grads)
    there = op.backward((y, x), swapped, back)
    for i, j in ((0, 1), (1, 0), (2, 3), (3, 2)):
        bound = 0.0 if op.bitwise else 1e-6
        torch.testing.assert_close(here[i], there[j], rtol=0, atol=bound)


def test_same_bits_alone_in_any_order_and_with_any_number_of_threads(op: Backend) -> None:
    if not op.bitwise:
        pytest.skip(f"{op.name} promises no bits")
    x, y = sides(70, 90, 256, batch=6)
    found = op.aligned(x, y)
    grads = loss_gradients(found)
    together = op.backward((x, y), found, grads)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 7):
            torch.set_num_threads(count)
            for a, b in zip(op.backward((x, y), found, grads), together, strict=True):
                assert torch.equal(a, b)
    finally:
        torch.set_num_threads(threads)
    for b in range(6):
        one = slice(b, b + 1)
        alone = op.backward(
            (x[one], y[one]), tuple(v[one] for v in found), tuple(g[one] for g in grads)
        )
        for a, whole in zip(alone, together, strict=True):
            assert torch.equal(a, whole[one])


def test_an_index_out_of_range_is_refused() -> None:
    op = Backend("cpu-scalar")
    args = sides(3, 4, 8, batch=1)
    found = list(op.aligned(*args))
    grads = loss_gradients(tuple(found))
    for i, name, most in ((3, "candidate", 4), (5, "reference", 3)):
        for wrong in (-2, most):
            broken = list(found)
            broken[i] = found[i].clone()
            broken[i][0, 1] = wrong
            message = rf"{name}_index: expected values in \[-1, {most}\), got {wrong}"
            with pytest.raises(ValueError, match=message):
                op.backward(args, tuple(broken), grads)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (3, torch.zeros(1, 3), "candidate_index: expected dtype int32, got float32"),
        (4, torch.zeros(1, 2), r"candidate_similarity: expected 3 values, got shape \[1, 2\]"),
        (0, torch.zeros(1).double(), "precision: expected dtype float32, got float64"),
        (1, torch.zeros(2), r"recall: expected 1 values, got shape \[2\]"),
    ],
)
def test_other_mistakes_are_refused(place: int, value: Any, message: str) -> None:
    op = Backend("tiled")
    args = sides(3, 4, 8, batch=1)
    found = list(op.aligned(*args))
    grads = loss_gradients(tuple(found))
    found[place] = value
    with pytest.raises((TypeError, ValueError), match=message):
        op.backward(args, tuple(found), grads)


PROGRAM = """
import resource, torch
from flashbertscore import functional
x, y = (torch.randn(1, 12_000, 16, requires_grad=True) for _ in range(2))
functional.bertscore(x[:, :100], y[:, :100]).f1.sum().backward()  # everything is loaded
scores = functional.bertscore(x, y)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(1 - scores.f1).sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_a_pair_of_12000_tokens_needs_no_matrix() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 60
