"""Fear: on a GPU the op waits, runs on the wrong stream or device, or takes memory."""

from __future__ import annotations

import pytest
import torch

from backends import Backend
from flashbertscore import functional

CUDA = Backend("cuda")


@pytest.fixture(autouse=True)
def _device() -> None:
    if reason := CUDA.skip_reason():
        pytest.skip(f"cuda: {reason}")


def pair(dtype: torch.dtype = torch.bfloat16, n: int = 40, dim: int = 64) -> list[torch.Tensor]:
    return [torch.randn(3, n + k, dim, device="cuda").to(dtype) for k in (0, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [20, 200, 900])
def test_captures_into_a_graph(dtype: torch.dtype, n: int) -> None:
    x, y = pair(dtype, n)
    mask = torch.rand(3, n, device="cuda") < 0.8
    expected = functional.bertscore(x, y, mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = functional.bertscore(x, y, mask)
    for value in captured:
        value.fill_(7)
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(captured, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_packed_documents_are_not_captured_into_a_graph() -> None:
    """A replay would copy their schedule from memory of the host that is free by then."""
    x, offsets = torch.randn(40, 64, device="cuda"), torch.tensor([0, 15, 40])
    expected = functional.bertscore_packed(x, offsets, x, offsets)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        assert (2 * x).shape == x.shape  # torch warns of an empty graph
        with pytest.raises(RuntimeError, match=r"^packed documents cannot be scored in a stream"):
            functional.bertscore_packed(x, offsets, x, offsets)
    after = functional.bertscore_packed(x, offsets, x, offsets)
    for got, want in zip(after, expected, strict=True):
        assert torch.equal(got, want)


def test_names_the_argument_that_is_on_another_device() -> None:
    x, y = pair()
    with pytest.raises(ValueError, match=r"^reference: expected device cpu, got cuda:0"):
        functional.bertscore(x.cpu(), y)
    with pytest.raises(ValueError, match=r"^reference: expected device cuda:0, got cpu"):
        functional.bertscore(x, y.cpu())


def test_never_waits_for_the_device() -> None:
    x, y = pair()
    functional.bertscore(x, y)
    torch.cuda.set_sync_debug_mode("error")
    try:
        functional.bertscore(x, y, torch.ones(3, 40, device="cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_runs_on_the_current_stream() -> None:
    x, y = pair(n=600)
    expected = functional.bertscore(x, y)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late = torch.zeros_like(x)
        late.copy_(x)
        got = functional.bertscore(late, y)
    stream.synchronize()
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("n", [20, 300])
def test_gradients_on_another_stream_are_those_of_the_cpu(n: int) -> None:
    """Autograd calls the op from a thread of its own."""
    x, y = (value.float() for value in pair(n=n))
    here = [value.cpu().requires_grad_() for value in (x, y)]
    functional.bertscore(*here).f1.sum().backward()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        there = [value.clone().requires_grad_() for value in (x, y)]
        functional.bertscore(*there).f1.sum().backward()
    torch.cuda.synchronize()
    for ours, want in zip(there, here, strict=True):
        assert ours.grad is not None
        assert want.grad is not None
        torch.testing.assert_close(ours.grad.cpu(), want.grad, rtol=0, atol=1e-6)


def test_memory_does_not_grow_with_the_similarities() -> None:
    x, y = (torch.randn(1, 32768, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    functional.bertscore(x, y)
    assert torch.cuda.max_memory_allocated() - before < 4 << 20


def test_same_bits_in_every_run() -> None:
    x, y = pair(n=1000, dim=768)
    first = functional.bertscore(x, y)
    for _ in range(20):
        for a, b in zip(functional.bertscore(x, y), first, strict=True):
            assert torch.equal(a, b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_runs_on_the_device_of_its_tensors() -> None:
    x, y = (value.to("cuda:1") for value in pair())
    assert functional.bertscore(x, y).f1.device == x.device
