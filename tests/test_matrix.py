"""Fear: a score of the grid is not that of its pair, or lies in the wrong place."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from backends import assert_matches_oracle, pack
from flashbertscore import functional, isas, matrix, ops, oracle
from flashbertscore.functional import Scores, TopScores

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def documents(lengths: list[int], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return pack([torch.randn(n, 24).to(dtype) for n in lengths])


def by_pairs(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor], *weights: Tensor | None) -> Tensor:
    """The equation in float64, [3, C x R]."""
    C, R = len(x[1]) - 1, len(y[1]) - 1
    pairs = torch.cartesian_prod(torch.arange(C), torch.arange(R))
    return oracle.bertscore_packed(*x, *y, pairs, *weights)


def flat(scores: Scores) -> Scores:
    return Scores(*(values.flatten() for values in scores))


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


def hard(lengths: list[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Documents with a NaN, an infinity, a zero vector, and norms that products cannot hold."""
    tokens, offsets = documents(lengths, torch.float64)
    scale = 1e-200 if dtype == torch.float64 else 1e-20
    tokens[offsets[2]] *= scale
    tokens = tokens.to(dtype)
    tokens[offsets[4]] = 0
    tokens[offsets[5] + 2, 3] = torch.nan
    tokens[offsets[6], 0] = torch.inf
    return tokens, offsets


@pytest.mark.usefixtures("_isa", "_tiles")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_pair(dtype: torch.dtype) -> None:
    # Around tiles and panels, longer than what shares a panel, and with rules of their own.
    x = hard([3, 0, 17, 60, 5, 12, 1, 130, 13], dtype)
    y = hard([33, 1, 8, 0, 2, 50, 7, 129, 128, 31], dtype)
    weights = torch.rand(len(x[0])), torch.rand(len(y[0]))
    weights[0][:3] = 0  # of the first document nothing counts
    got = functional.bertscore_matrix(*x, *y, *weights)
    assert_matches_oracle(flat(got), by_pairs(x, y, *weights), dtype)


@pytest.mark.usefixtures("_isa")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_bit_depends_on_what_else_is_in_the_grid(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [3, 0, 17, 60, 5, 12, 1, 130, 13, 30, 25, 48, 7, 22]
    x, y = hard(lengths, dtype), hard([33, 1, 8, 0, 2, 50, 7, 129, 128, 31], dtype)
    w, v = torch.rand(len(x[0])), torch.rand(len(y[0]))
    whole = functional.bertscore_matrix(*x, *y, w, v)
    back = functional.bertscore_matrix(*y, *x, v, w)
    assert_equal(whole, (back.recall.T, back.precision.T, back.f1.T))
    for c in (0, 4, 7, 9):  # one candidate on its own
        a, b = x[1][c], x[1][c + 1]
        alone = functional.bertscore_matrix(x[0][a:b], x[1][c : c + 2] - a, *y, w[a:b], v)
        assert_equal(tuple(values[c : c + 1] for values in whole), alone)
    for size in (1, 7):
        monkeypatch.setattr(matrix, "TILE_PAIRS", size)
        monkeypatch.setattr(matrix, "LEAST_REFERENCES", min(3, size))
        assert_equal(functional.bertscore_matrix(*x, *y, w, v), whole)


def test_no_bit_depends_on_threads() -> None:
    x = pack([torch.randn(n, 256) for n in torch.randint(20, 140, (60,)).tolist()])
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            found.append(functional.bertscore_matrix(*x, x[0].clone(), x[1]))
            found.append(functional.bertscore_matrix(*x, *x))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert_equal(other, found[0])


def test_views_and_gradients_get_the_same_scores() -> None:
    x, y = documents([3, 0, 17, 60, 5]), documents([33, 1, 8, 0, 2, 50, 7])
    expected = functional.bertscore_matrix(*x, *y)
    wide = torch.randn(len(x[0]), 2 * 24)
    wide[:, ::2] = x[0]
    for view in (wide[:, ::2], torch._neg_view(-x[0]), torch.nn.Parameter(x[0], False)):
        assert_equal(functional.bertscore_matrix(view, x[1], *y), expected)
    with_gradients = functional.bertscore_matrix(x[0].clone().requires_grad_(), x[1], *y)
    assert with_gradients.f1.requires_grad
    for a, b in zip(with_gradients, expected, strict=True):  # pair by pair, in another order
        torch.testing.assert_close(a.detach(), b, rtol=0, atol=1e-6)


def test_opcheck() -> None:
    x, y = documents([3, 0, 17]), documents([33, 1, 8, 0])
    arguments = (*x, *y, None, torch.rand(len(y[0])), 3)
    results = torch.library.opcheck(torch.ops.flashbertscore.bertscore_grid.default, arguments)
    assert set(results.values()) == {"SUCCESS"}


def test_modes_transforms_and_tracing_see_the_grid() -> None:
    x, y = documents([3, 0, 17]), documents([33, 1, 8, 0])

    def grid(tokens: Tensor) -> Tensor:
        return functional.bertscore_matrix(tokens, x[1], *y).f1

    expected = grid(x[0])
    seen: list[str] = []

    class Noting(TorchDispatchMode):
        """Takes note of the ops that reach it."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            """Note the name and go on."""
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Noting():
        grid(x[0])
    assert "flashbertscore.bertscore_grid.default" in seen
    assert torch.equal(torch.func.functionalize(grid)(x[0]), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing is deprecated, and warns of Python values
        traced = torch.jit.trace(grid, (torch.randn_like(x[0]),))
    assert torch.equal(traced(x[0]), expected)


@pytest.mark.usefixtures("_isa", "_tiles")
def test_the_same_set_on_both_sides() -> None:
    x = documents([3, 0, 17, 60, 5, 1, 9, 33, 140])
    x[0][4] = torch.nan
    w = torch.rand(len(x[0]))
    got = functional.bertscore_matrix(*x, *x, w, w)
    assert_equal(got, functional.bertscore_matrix(*x, x[0].clone(), x[1], w, w))
    assert_equal(got, (got.recall.T, got.precision.T, got.f1.T))
    # Other weights on the other side: no symmetry to use.
    other = functional.bertscore_matrix(*x, *x, w, torch.rand(len(x[0])))
    assert not torch.equal(other.recall.T.nan_to_num(), other.precision.nan_to_num())


def test_the_same_set_with_gradients_takes_half_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, offsets = documents([3, 0, 17, 60, 5, 1, 9, 33])
    x.requires_grad_()
    computed = []
    call = matrix._score_pairs

    def counted(*arguments: Tensor) -> tuple[Tensor, ...]:
        computed.append(len(arguments[4]))
        return call(*arguments)  # type: ignore[no-any-return]

    monkeypatch.setattr(matrix, "_score_pairs", counted)
    functional.bertscore_matrix(x, offsets, x, offsets)
    assert sum(computed) == 8 * 9 / 2
    functional.bertscore_matrix(x, offsets, x.clone(), offsets)
    assert sum(computed) == 8 * 9 / 2 + 64


def test_the_same_set_takes_half_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    x = documents([30] * 200)

    def sevens(candidate: Tensor, count: int) -> tuple[Tensor, ...]:
        del candidate
        return tuple(torch.full((count,), 7.0) for _ in range(3))

    monkeypatch.setattr(ops, "_outputs", sevens)
    found = ops.match_grid(*x, *x, None, None, 0)
    assert 0.4 < (found[2] == 7).float().mean() < 0.5
    assert (found[2].triu() != 7).all()


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
