"""Fear: the op breaks in a corner of torch: export, inference mode, subclasses, streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import flashbertscore
from backends import pack
from flashbertscore import functional

gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and flashbertscore.build_info()["cuda"]),
    reason="CUDA streams and graphs: no CUDA device, or built without CUDA",
)


class Loss(torch.nn.Module):
    """1 - F1, and where the matches are."""

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Of padded batches."""
        scores, alignment = functional.bertscore(x, y, mask, return_alignment=True)
        return 1 - scores.f1, alignment.candidate_index


class Packed(torch.nn.Module):
    """Recall of packed documents."""

    def forward(self, x: Tensor, a: Tensor, y: Tensor, b: Tensor) -> Tensor:
        """One to one."""
        return functional.bertscore_packed(x, a, y, b).recall


@pytest.mark.filterwarnings("ignore:.*deprecated.*:FutureWarning")
def test_export_and_load(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    arguments = torch.randn(4, 5, 8), torch.randn(4, 7, 8), torch.rand(4, 5) > 0.3
    program = torch.export.export(Loss(), arguments, dynamic_shapes=({0: batch},) * 3)
    torch.export.save(program, tmp_path / "loss.pt2")
    loaded = torch.export.load(tmp_path / "loss.pt2").module()
    for count in (4, 9):
        x, y = torch.randn(count, 5, 8), torch.randn(count, 7, 8)
        mask = torch.rand(count, 5) > 0.3
        for a, b in zip(loaded(x, y, mask), Loss()(x, y, mask), strict=True):
            assert torch.equal(a, b)
    x, y = pack([torch.randn(n, 8) for n in (3, 4)]), pack([torch.randn(n, 8) for n in (2, 6)])
    exported = torch.export.export(Packed(), (*x, *y)).module()
    assert torch.equal(exported(*x, *y), Packed()(*x, *y))


def test_inference_tensors_are_scored_and_make_inference_tensors() -> None:
    with torch.inference_mode():
        x, y = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
        assert functional.bertscore(x, y).f1.is_inference()
    scores, alignment = functional.bertscore(x, y, return_alignment=True)
    assert torch.equal(scores.f1, functional.bertscore(x.clone(), y.clone()).f1)
    assert alignment.candidate_index.shape == (2, 3)
    offsets = torch.tensor([0, 3])
    grid = functional.bertscore_matrix(x[0], offsets, x[0], offsets)
    assert grid.f1.item() == pytest.approx(1)


def test_a_parameter_and_other_subclasses_are_tensors() -> None:
    x = torch.nn.Parameter(torch.randn(2, 3, 8))
    functional.bertscore(x, torch.randn(2, 5, 8)).f1.sum().backward()
    assert x.grad is not None

    class Named(torch.Tensor):
        """A subclass without a mind of its own."""

    named = torch.randn(2, 3, 8).as_subclass(Named)  # type: ignore[no-untyped-call]
    plain = named.as_subclass(torch.Tensor)
    y = torch.randn(2, 5, 8)
    assert torch.equal(functional.bertscore(named, y).f1, functional.bertscore(plain, y).f1)


def test_a_subclass_with_torch_function_sees_the_call() -> None:
    seen: list[str] = []

    class Counting(torch.Tensor):
        """Takes note of what is called with it."""

        @classmethod
        def __torch_function__(
            cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            """Note the name and go on."""
            seen.append(getattr(func, "__name__", str(func)))
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    x = torch.randn(2, 3, 8).as_subclass(Counting)  # type: ignore[no-untyped-call]
    functional.bertscore(x, torch.randn(2, 5, 8))
    assert any("bertscore" in name for name in seen)


def test_modes_and_the_profiler_see_a_call_without_gradients() -> None:
    seen: list[str] = []

    class Noting(TorchDispatchMode):
        """Takes note of the ops that reach it."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            """Note the name and go on."""
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x, y, w = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.rand(2, 3)
    with Noting():
        functional.bertscore(x, y, candidate_weights=w)
        functional.bertscore(x, y, return_alignment=True)
    assert seen[0] == "flashbertscore.bertscore.default"
    assert "flashbertscore.bertscore_aligned.default" in seen
    with torch.profiler.profile() as profile:
        functional.bertscore(x, y, candidate_weights=w)
    names = [event.key for event in profile.key_averages()]
    assert "flashbertscore::bertscore" in names


def test_fake_tensors_of_every_function() -> None:
    with FakeTensorMode():
        x, offsets = torch.empty(9, 8), torch.empty(4, dtype=torch.int64)
        found = torch.ops.flashbertscore.bertscore_packed_aligned(x, offsets, x, offsets)
        assert [v.shape for v in found] == [(3,), (3,), (3,), (9,), (9,), (9,), (9,)]
        b = torch.empty(2, 3, 8, requires_grad=True)
        functional.bertscore(b, torch.empty(2, 5, 8)).f1.sum().backward()
        assert b.grad is not None
        assert b.grad.shape == (2, 3, 8)


def test_two_threads_at_once() -> None:
    x, y = torch.randn(4, 60, 64), torch.randn(4, 70, 64)
    expected = functional.bertscore(x, y).f1
    found: list[Tensor] = []

    def run(_: int) -> None:
        leaf = x.clone().requires_grad_()
        scores = functional.bertscore(leaf, y).f1
        scores.sum().backward()
        found.append(scores.detach())

    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(8)))
    assert all(torch.equal(value, expected) for value in found)


@gpu
def test_streams_of_their_own() -> None:
    x, y = (torch.randn(8, 200, 64, device="cuda") for _ in range(2))
    expected = functional.bertscore(x, y)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    found = []
    for stream in streams:
        with torch.cuda.stream(stream):
            leaf = x.clone().requires_grad_()
            scores = functional.bertscore(leaf, y)
            scores.f1.sum().backward()
            found.append(scores)
    torch.cuda.synchronize()
    for scores in found:
        for a, b in zip(scores, expected, strict=True):
            assert torch.equal(a, b)


@gpu
def test_forward_and_backward_in_a_cuda_graph() -> None:
    x = torch.randn(8, 100, 64, device="cuda", requires_grad=True)
    y = torch.randn(8, 90, 64, device="cuda")
    (warm,) = torch.autograd.grad(functional.bertscore(x, y).f1.sum(), x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (captured,) = torch.autograd.grad(functional.bertscore(x, y).f1.sum(), x)
    graph.replay()
    assert torch.equal(captured, warm)
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    (again,) = torch.autograd.grad(functional.bertscore(x, y).f1.sum(), x)
    assert torch.equal(captured, again)


def test_the_package_is_typed() -> None:
    package = Path(flashbertscore.__file__).parent
    assert (package / "py.typed").exists()
    assert (package / "_core.pyi").exists()
