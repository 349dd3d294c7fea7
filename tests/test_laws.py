"""Fear: a property of the equation fails somewhere no example looks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends import Backend, pack
from flashbertscore.functional import Scores

laws = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def documents(draw: st.DrawFn, dim: int, count: int) -> list[torch.Tensor]:
    """``count`` documents of 1 to 70 tokens, with values that collide and vanish now and then."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    lengths = draw(st.lists(st.integers(1, 70), min_size=count, max_size=count))
    rounded = draw(st.booleans())
    made = [torch.randn(n, dim, generator=generator) for n in lengths]
    return [x.round() if rounded else x for x in made]


@st.composite
def two_sides(draw: st.DrawFn) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    dim, count = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    return draw(documents(dim, count)), draw(documents(dim, count))


def close(a: Scores, b: Scores) -> None:
    """P and R agree to rounding (F can amplify it without bound where P is close to -R)."""
    for left, right in zip(a[:2], b[:2], strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=0, equal_nan=True)


@laws
@given(sides=two_sides())
def test_precision_of_one_direction_is_recall_of_the_other(
    op: Backend, sides: tuple[list[torch.Tensor], list[torch.Tensor]]
) -> None:
    x, y = pack(sides[0]), pack(sides[1])
    there, back = op.bertscore_packed(*x, *y), op.bertscore_packed(*y, *x)
    swapped = Scores(back.recall, back.precision, back.f1)
    if op.bitwise:
        op.assert_same(there, swapped)
    close(there, swapped)


@laws
@given(sides=two_sides())
def test_adding_pairs_changes_nothing(
    op: Backend, sides: tuple[list[torch.Tensor], list[torch.Tensor]]
) -> None:
    xs, ys = sides
    first = op.bertscore_packed(*pack(xs[:1]), *pack(ys[:1]))
    with_others = op.bertscore_packed(*pack(xs), *pack(ys))
    again = Scores(*(values[:1] for values in with_others))
    if op.bitwise:
        op.assert_same(again, first)
    close(again, first)


@laws
@given(sides=two_sides(), seed=st.integers(0, 1000))
def test_order_of_tokens_does_not_matter(
    op: Backend, sides: tuple[list[torch.Tensor], list[torch.Tensor]], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    xs, ys = sides
    shuffled = [x[torch.randperm(len(x), generator=generator)] for x in xs]
    close(
        op.bertscore_packed(*pack(shuffled), *pack(ys)), op.bertscore_packed(*pack(xs), *pack(ys))
    )


@laws
@given(sides=two_sides(), exponent=st.integers(-60, 60), factor=st.floats(1.0, 2.0))
def test_length_of_vectors_does_not_matter(
    op: Backend,
    sides: tuple[list[torch.Tensor], list[torch.Tensor]],
    exponent: int,
    factor: float,
) -> None:
    xs, ys = sides
    scaled = [x * (factor * 2.0**exponent) for x in xs]
    close(op.bertscore_packed(*pack(scaled), *pack(ys)), op.bertscore_packed(*pack(xs), *pack(ys)))


@laws
@given(sides=two_sides())
def test_scores_stay_within_one(
    op: Backend, sides: tuple[list[torch.Tensor], list[torch.Tensor]]
) -> None:
    scores = op.bertscore_packed(*pack(sides[0]), *pack(sides[1]))
    for values in scores[:2]:
        assert (values.abs() <= 1 + 1e-6).all()


@laws
@given(
    n=st.integers(1, 80),
    m=st.integers(1, 80),
    dim=st.integers(1, 600),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 1000),
)
def test_backends_agree(n: int, m: int, dim: int, dtype: torch.dtype, seed: int) -> None:
    from backends import BACKENDS  # noqa: PLC0415

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, n, dim, generator=generator).to(dtype)
    y = torch.randn(1, m, dim, generator=generator).to(dtype)
    bound = 1e-14 if dtype == torch.float64 else 1e-6
    results = []
    for backend in BACKENDS:
        if backend.skip_reason():
            continue
        with pytest.MonkeyPatch.context() as patch:
            backend.select(patch)
            results.append(backend.bertscore(x, y))
    for other in results[:-1]:
        for a, b in zip(other[:2], results[-1][:2], strict=True):
            torch.testing.assert_close(a, b, atol=bound, rtol=0)
