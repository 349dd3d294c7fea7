"""Fear: a score of the grid is not that of its pair, or lies in the wrong place."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from backends import pack
from flashbertscore import functional, isas, matrix
from flashbertscore.functional import Scores, TopScores

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def documents(lengths: list[int], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return pack([torch.randn(n, 24).to(dtype) for n in lengths])


def by_pairs(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor], *weights: Tensor | None) -> Scores:
    C, R = len(x[1]) - 1, len(y[1]) - 1
    pairs = torch.cartesian_prod(torch.arange(C), torch.arange(R))
    found = functional.bertscore_packed(*x, *y, pairs, *weights)
    return Scores(*(values.view(C, R) for values in found))


def assert_equal(got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.fixture(params=isas())
def _isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHBERTSCORE_ISA", request.param)


@pytest.fixture(params=[1, 7, 1 << 17], ids=lambda n: f"tiles of {n}")
def _tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "TILE_PAIRS", request.param)
    monkeypatch.setattr(matrix, "LEAST_REFERENCES", min(3, request.param))


@pytest.mark.usefixtures("_isa", "_tiles")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_pair(dtype: torch.dtype) -> None:
    x, y = documents([3, 0, 17, 60, 5], dtype), documents([33, 1, 8, 0, 2, 50, 7], dtype)
    weights = torch.rand(len(x[0])), torch.rand(len(y[0]))
    assert_equal(functional.bertscore_matrix(*x, *y, *weights), by_pairs(x, y, *weights))


@pytest.mark.usefixtures("_isa", "_tiles")
def test_the_same_set_on_both_sides_takes_half_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    x = documents([3, 0, 17, 60, 5, 1, 9, 33])
    x[0][4] = torch.nan
    w = torch.rand(len(x[0]))
    computed = []
    call = matrix._score_pairs

    def counted(*arguments: Tensor) -> tuple[Tensor, ...]:
        computed.append(len(arguments[4]))
        return call(*arguments)  # type: ignore[no-any-return]

    monkeypatch.setattr(matrix, "_score_pairs", counted)
    got = functional.bertscore_matrix(*x, *x, w, w)
    assert sum(computed) == 8 * 9 / 2
    apart = functional.bertscore_matrix(*x, x[0].clone(), x[1], w, w)
    assert sum(computed) == 8 * 9 / 2 + 64
    monkeypatch.undo()
    assert_equal(got, apart)
    assert_equal(got, (got.recall.T, got.precision.T, got.f1.T))
    # Other weights on the other side: no symmetry to use.
    other = functional.bertscore_matrix(*x, *x, w, torch.rand(len(x[0])))
    assert not torch.equal(other.recall.T.nan_to_num(), other.precision.nan_to_num())


def best(scores: Scores, k: int) -> TopScores:
    order = scores.f1.nan_to_num(-2.0).sort(dim=1, descending=True, stable=True).indices[:, :k]
    return TopScores(*(values.gather(1, order) for values in scores), order)


@pytest.mark.usefixtures("_tiles")
@pytest.mark.parametrize("k", [1, 2, 5, 100])
@pytest.mark.parametrize("symmetric", [False, True])
def test_top_k(k: int, symmetric: bool) -> None:
    x, y = documents([3, 0, 17, 6, 5, 4]), documents([9, 1, 8, 0, 2, 5, 7, 8])
    y[0][1] = torch.nan  # document 0
    y[0][32:] = y[0][10:18]  # document 7 is document 2 again: a tie
    x = y if symmetric else x
    scores = functional.bertscore_matrix(*x, *y)
    assert_equal(functional.bertscore_matrix(*x, *y, top_k=k), best(scores, k))


def test_gradients_flow() -> None:
    x, y = documents([3, 4, 2], torch.float64), documents([5, 1], torch.float64)
    leaves = x[0].requires_grad_(), y[0].requires_grad_()

    def grid(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return functional.bertscore_matrix(a, x[1], b, y[1])

    assert torch.autograd.gradcheck(grid, leaves)
    assert torch.autograd.gradcheck(lambda a: functional.bertscore_matrix(a, x[1], a, x[1]), x[0])


def test_nothing_to_score() -> None:
    x, none = documents([3, 4]), (torch.randn(0, 24), torch.tensor([0]))
    assert functional.bertscore_matrix(*x, *none).f1.shape == (2, 0)
    assert functional.bertscore_matrix(*none, *x).f1.shape == (0, 2)
    assert functional.bertscore_matrix(*none, *none).f1.shape == (0, 0)
    assert functional.bertscore_matrix(*x, *none, top_k=3).reference.shape == (2, 0)


def test_mistakes_are_named() -> None:
    x = documents([3, 4])
    with pytest.raises(ValueError, match=r"^top_k: expected at least 1, got 0$"):
        functional.bertscore_matrix(*x, *x, top_k=0)
    with pytest.raises(ValueError, match="reference_offsets: expected the last value to be"):
        functional.bertscore_matrix(*x, x[0], torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"^candidate_weights: expected \[T\] = \[7\], got \[6\]"):
        functional.bertscore_matrix(*x, *x, torch.ones(6))
    with pytest.raises(
        TypeError,
        match=r"^reference: expected a torch.Tensor or an array with __dlpack__, got NoneType",
    ):
        functional.bertscore_matrix(*x, None, x[1])  # type: ignore[call-overload]


PROGRAM = """
import resource, torch
from flashbertscore import functional
n = 1024
x = torch.randn(n * 4, 64)
offsets = torch.arange(n + 1) * 4
y = x.clone()
functional.bertscore_matrix(x[:40], offsets[:11], y[:40], offsets[:11])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
functional.bertscore_matrix(x, offsets, {y}, offsets, top_k={k})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
@pytest.mark.parametrize(("y", "k", "most"), [("y", None, 60), ("x", None, 60), ("y", 4, 60)])
def test_a_million_pairs_in_little_memory(y: str, k: int | None, most: float) -> None:
    program = PROGRAM.format(y=y, k=k)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < most
