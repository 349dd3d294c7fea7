"""Fear: our linear layers give other numbers than torch's, or numbers that depend on the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from flashbertscore import isas, linear

# Rows around every size of a tile (1, 6, 12) and of a block (224); inputs and outputs beside
# vectors, panels (8, 16, 32) and runs of what is summed (384).
ROWS = (*range(14), 223, 225, 449)
SIZES = ((1, 1), (3, 7), (8, 16), (17, 31), (64, 32), (33, 33), (383, 40), (385, 65), (800, 96))

every_isa = pytest.mark.usefixtures("isa")


@pytest.fixture(params=isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHBERTSCORE_ISA", request.param)


@pytest.fixture(autouse=True)
def _threads() -> object:
    before = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def truth(x: Tensor, weight: Tensor, bias: Tensor | None, act: str, residual: Tensor) -> Tensor:
    """The definition, in float64."""
    out = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    out = {"none": lambda y: y, "relu": functional.relu, "gelu": functional.gelu}[act](out)
    return out + residual.double()


@every_isa
@pytest.mark.parametrize(("depth", "out"), SIZES)
def test_every_edge_of_tiles_and_panels(depth: int, out: int) -> None:
    N, K = out, depth
    weight, bias = torch.randn(N, K) / K**0.5, torch.randn(N)
    panels = linear.pack(weight)
    assert torch.equal(linear.unpack(panels, N), weight)
    for rows in ROWS if K * N < 10_000 else (1, 11, 13, 225):
        x, residual = torch.randn(rows, K), torch.randn(rows, N)
        for act in linear.ACTIVATIONS:
            found = linear.linear(x, panels, N, bias, act, residual)
            assert (found.shape, found.dtype) == ((rows, N), torch.float32)
            expected = truth(x, weight, bias, act, residual)
            torch.testing.assert_close(found.double(), expected, atol=4e-6, rtol=1e-6)
    x = torch.randn(2, 3, K)
    found = linear.linear(x, panels, N)
    expected = truth(x, weight, None, "none", torch.zeros(2, 3, N))
    torch.testing.assert_close(found.double(), expected, atol=4e-6, rtol=1e-6)


@every_isa
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_in_any_batch_and_with_any_threads(threads: int) -> None:
    K, N, rows = 400, 200, 1500  # blocks for each of 3 threads
    x, bias = torch.randn(rows, K), torch.randn(N)
    panels = linear.pack(torch.randn(N, K))
    torch.set_num_threads(1)
    alone = torch.cat([linear.linear(x[i : i + 1], panels, N, bias, "gelu") for i in range(rows)])
    torch.set_num_threads(threads)
    assert torch.equal(linear.linear(x, panels, N, bias, "gelu"), alone)
    assert torch.equal(linear.linear(x[7:90], panels, N, bias, "gelu"), alone[7:90])


@every_isa
def test_gelu_is_that_of_the_error_function() -> None:
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.tensor([0.0, -0.0, 1e-30, 1e30])])
    out = linear.linear(x[:, None], linear.pack(torch.ones(1, 1)), 1, activation="gelu")[:, 0]
    expected = functional.gelu(x.double())
    assert ((out - expected).abs() <= 2.5e-7 * x.double().abs() + 1e-37).all()
    positive = x > 0
    assert ((out - expected).abs() <= 2.5e-7 * expected.abs())[positive].all()


@every_isa
@pytest.mark.parametrize("act", list(linear.ACTIVATIONS))
def test_what_is_not_finite_is_as_in_torch_and_stays_in_its_row(act: str) -> None:
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0])
    x = bad[:, None].repeat(1, 20)
    weight = torch.ones(40, 20)
    out = linear.linear(x, linear.pack(weight), 40, activation=act)
    expected = truth(x, weight, None, act, torch.zeros(4, 40)).float()
    torch.testing.assert_close(out, expected, equal_nan=True)


@every_isa
def test_rows_that_are_not_contiguous() -> None:
    weight = torch.randn(40, 20)
    panels = linear.pack(weight)
    wide, residual = torch.randn(9, 50), torch.randn(40, 9).T
    for x in (wide[:, 7:27], wide[:, ::2][:, :20], torch.randn(20, 9).T):
        out = linear.linear(x, panels, 40, residual=residual)
        assert torch.equal(out, linear.linear(x.contiguous(), panels, 40, None, "none", residual))


def test_bad_arguments() -> None:
    panels, x = linear.pack(torch.randn(40, 20)), torch.randn(3, 20)
    with pytest.raises(TypeError, match="x: expected dtype float32, got float64"):
        linear.linear(x.double(), panels, 40)
    with pytest.raises(ValueError, match=r"x: expected \[3, 20\] on cpu, got \[3, 19\]"):
        linear.linear(x[:, 1:], panels, 40)
    with pytest.raises(ValueError, match=r"bias: expected \[40\]"):
        linear.linear(x, panels, 40, torch.randn(39))
    with pytest.raises(ValueError, match="panels: expected"):
        linear.linear(x, panels, 400)
    with pytest.raises(ValueError, match=r"residual: expected \[3, 40\]"):
        linear.linear(x, panels, 40, residual=torch.randn(3, 39))
    with pytest.raises(TypeError, match="weight: expected dtype float32, got bfloat16"):
        linear.pack(torch.randn(4, 4).bfloat16())
    with pytest.raises(ValueError, match=r"weight: expected \[O, K\] on cpu, got \[4\]"):
        linear.pack(torch.randn(4))


def test_panels_of_another_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHBERTSCORE_ISA", "generic")
    panels = linear.pack(torch.randn(40, 20))
    monkeypatch.setenv("FLASHBERTSCORE_ISA", "scalar")
    with pytest.raises(ValueError, match="packed: expected panels of 1 columns, got 8"):
        linear.linear(torch.randn(3, 20), panels, 40)
