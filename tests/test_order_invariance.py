"""Fear: a score's bits depend on the batch, on the order of pairs or on the number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from backends import Backend, assert_matches_oracle, pack
from flashbertscore import oracle
from flashbertscore.functional import Scores


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bitwise(op: Backend) -> Backend:
    if not op.bitwise:
        pytest.skip("tiled torch leaves the order of its sums to the device's matrix product")
    return op


def ragged(count: int, dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(1 + (7 * d) % 37, dim).to(dtype) for d in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_alone_as_in_the_batch(bitwise: Backend, dtype: torch.dtype) -> None:
    xs, ys = ragged(40, 24, dtype), ragged(40, 24, dtype)[::-1]
    together = bitwise.bertscore_packed(*pack(xs), *pack(ys))
    alone = [bitwise.bertscore_packed(*pack([x]), *pack([y])) for x, y in zip(xs, ys, strict=True)]
    bitwise.assert_same(together, Scores(*map(torch.cat, zip(*alone, strict=True))))


def test_order_of_pairs(bitwise: Backend) -> None:
    x, x_offsets = pack(ragged(12, 24, torch.float32))
    pairs = torch.cartesian_prod(torch.arange(12), torch.arange(12))
    expected = bitwise.bertscore_packed(x, x_offsets, x, x_offsets, pairs)
    order = torch.randperm(len(pairs))
    shuffled = bitwise.bertscore_packed(x, x_offsets, x, x_offsets, pairs[order])
    bitwise.assert_same(shuffled, Scores(*(values[order] for values in expected)))


def test_padding_width(bitwise: Backend) -> None:
    x, y = torch.randn(3, 9, 24), torch.randn(3, 11, 24)
    expected = bitwise.bertscore(x, y)
    for extra in (1, 30):
        wide = torch.cat([x, torch.full((3, extra, 24), 1e6)], dim=1)
        mask = torch.arange(9 + extra) < 9
        bitwise.assert_same(bitwise.bertscore(wide, y, mask.expand(3, -1)), expected)


@pytest.mark.usefixtures("threads")
def test_number_of_threads(bitwise: Backend) -> None:
    """Enough work that threads start: many pairs, and one pair whose rows they share."""
    if bitwise.name == "cpu-scalar":
        shapes, large = [(300, 20, 128)], (600, 900, 128)
    elif bitwise.name == "cuda-emulated":  # has one thread, whatever torch is told
        shapes, large = [(30, 33, 64)], (150, 300, 64)
    else:
        shapes, large = [(400, 33, 256)], (900, 1300, 256)
    for count, length, dim in shapes:
        x, y = torch.randn(count, length, dim), torch.randn(count, length, dim)
        big_x, big_y = torch.randn(large[0], dim), torch.randn(large[1], dim)
        documents = [torch.randn(30, dim) for _ in range(60)]
        mixed_x, mixed_y = pack([*documents, big_x]), pack([*documents[::-1], big_y])
        expected = None
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            got = (
                bitwise.bertscore(x, y),
                bitwise.bertscore(big_x[None], big_y[None]),
                bitwise.bertscore_packed(*mixed_x, *mixed_y),
            )
            expected = expected or got
            for a, b in zip(got, expected, strict=True):
                bitwise.assert_same(a, b)


@pytest.mark.usefixtures("threads")
def test_a_short_pair_in_a_wide_batch(bitwise: Backend) -> None:
    """The mask leaves so few tokens that the pair is short; by its rows all threads share it."""
    dim, width = 384, 1000
    for _ in range(1 if bitwise.name == "cuda-emulated" else 8):
        x, y = torch.randn(1, 40, dim), torch.randn(1, 48, dim)
        expected = bitwise.bertscore(x, y)
        wide_x, wide_y = torch.zeros(2, 1, width, dim)
        x_mask, y_mask = torch.zeros(2, 1, width, dtype=torch.bool)
        wide_x[:, 7:807:20], x_mask[:, 7:807:20] = x, True
        wide_y[:, 3:963:20], y_mask[:, 3:963:20] = y, True
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            bitwise.assert_same(bitwise.bertscore(wide_x, wide_y, x_mask, y_mask), expected)


def test_candidate_and_reference_change_places(bitwise: Backend) -> None:
    x, y = pack(ragged(20, 24, torch.float32)), pack(ragged(20, 24, torch.float32)[::-1])
    there, back = bitwise.bertscore_packed(*x, *y), bitwise.bertscore_packed(*y, *x)
    bitwise.assert_same(there, Scores(back.recall, back.precision, back.f1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [1, 22, 70, 768])
def test_tokens_read_before_or_while_they_are_matched(
    bitwise: Backend, dim: int, dtype: torch.dtype
) -> None:
    """A list of pairs has all tokens read first; one to one, they are read where they are met."""
    xs = [torch.randn(length, dim).to(dtype) for length in (1, 5, 13, 48, 50, 60)]
    ys = [torch.randn(length, dim).to(dtype) for length in (4, 3, 18, 48, 7, 70)]
    listed = torch.arange(len(xs)).repeat(2, 1).T
    one_to_one = bitwise.bertscore_packed(*pack(xs), *pack(ys))
    bitwise.assert_same(bitwise.bertscore_packed(*pack(xs), *pack(ys), listed), one_to_one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("place", [0, 3, 4, 17, 20])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("exponent", [None, -30, 30], ids=["zero", "small", "large"])
def test_a_token_that_is_not_multiplied_as_it_is(
    bitwise: Backend, side: int, place: int, exponent: int | None, dtype: torch.dtype
) -> None:
    """It is found while the pair is matched, which then begins again; in a list, before."""
    tokens = [torch.randn(2, 21, 24).to(dtype), torch.randn(2, 21, 24).to(dtype)]
    before = bitwise.bertscore(*tokens)
    wide = 7 if dtype == torch.float64 else 1
    tokens[side][0, place] *= 0.0 if exponent is None else 10.0 ** (exponent * wide)
    got = bitwise.bertscore(*tokens)
    assert_matches_oracle(got, oracle.bertscore(*tokens), dtype)
    bitwise.assert_same(Scores(*(s[1:] for s in got)), Scores(*(s[1:] for s in before)))
    packed = [pack(list(side)) for side in tokens]
    listed = torch.tensor([[0, 0], [1, 1]])
    bitwise.assert_same(bitwise.bertscore_packed(*packed[0], *packed[1], listed), got)
