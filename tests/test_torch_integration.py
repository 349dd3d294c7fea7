"""Fear: the op is no citizen of torch: fake tensors, compile, dispatch, registration."""

from __future__ import annotations

import contextlib
import functools
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from backends import pack
from flashbertscore import functional, ops

OPS = torch.ops.flashbertscore
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
CHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


def padded_arguments() -> dict[str, tuple[Any, ...]]:
    cases: dict[str, tuple[Any, ...]] = {}
    for dtype in DTYPES:
        x, y = torch.randn(2, 3, 8).to(dtype), torch.randn(2, 5, 8).to(dtype)
        name = str(dtype).removeprefix("torch.")
        cases[name] = (x, y)
        cases[f"{name} masks"] = (x, y, torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 5))
        cases[f"{name} weights"] = (x, y, None, None, torch.rand(2, 3), torch.rand(2, 5))
    x, y = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    cases["no pairs"] = (x[:0], y[:0])
    cases["no tokens"] = (x[:, :0], y)
    cases["strided"] = (x.transpose(1, 2).contiguous().transpose(1, 2), y[:, ::2])
    cases["expanded"] = (x[:1].expand(2, -1, -1), y)
    return cases


def packed_arguments() -> dict[str, tuple[Any, ...]]:
    cases: dict[str, tuple[Any, ...]] = {}
    pairs = torch.tensor([[0, 1], [1, 0], [1, 1]])
    for dtype in DTYPES:
        x = pack([torch.randn(n, 8).to(dtype) for n in (3, 4)])
        y = pack([torch.randn(n, 8).to(dtype) for n in (2, 6)])
        name = str(dtype).removeprefix("torch.")
        cases[name] = (*x, *y)
        cases[f"{name} pairs"] = (*x, *y, pairs)
        cases[f"{name} weights"] = (*x, *y, None, torch.rand(7), torch.rand(8))
    cases["int32 indices"] = (x[0], x[1].int(), y[0], y[1].int(), pairs.int())
    cases["no pairs"] = (*x, *y, pairs[:0])
    return cases


PADDED, PACKED = padded_arguments(), packed_arguments()


def check(op: Any, arguments: tuple[Any, ...]) -> None:
    results = torch.library.opcheck(op, arguments, test_utils=CHECKS)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("arguments", PADDED.values(), ids=PADDED)
def test_opcheck_padded(arguments: tuple[Any, ...]) -> None:
    check(OPS.bertscore.default, arguments)


@pytest.mark.parametrize("arguments", PACKED.values(), ids=PACKED)
def test_opcheck_packed(arguments: tuple[Any, ...]) -> None:
    check(OPS.bertscore_packed.default, arguments)


def test_there_are_at_least_24_argument_sets() -> None:
    assert len(PADDED) + len(PACKED) >= 24


# Some versions of torch's own compiler use what torch itself deprecates.
compiles = pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")


@compiles
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_compile_padded(dtype: torch.dtype) -> None:
    def loss(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return 1 - functional.bertscore(2 * x, y, candidate_mask=mask).f1

    compiled = torch.compile(loss, fullgraph=True, dynamic=True)
    for B, N, M in ((2, 3, 5), (4, 9, 7), (3, 2, 8)):
        arguments = (
            torch.randn(B, N, 8, dtype=dtype),
            torch.randn(B, M, 8, dtype=dtype),
            torch.rand(B, N) > 0.3,
        )
        torch.testing.assert_close(compiled(*arguments), loss(*arguments))


@compiles
def test_compile_packed() -> None:
    def scores(
        x: torch.Tensor, x_offsets: torch.Tensor, y: torch.Tensor, y_offsets: torch.Tensor
    ) -> torch.Tensor:
        return functional.bertscore_packed(x + 1, x_offsets, y, y_offsets).recall * 2

    compiled = torch.compile(scores, fullgraph=True, dynamic=True)
    for lengths in ((3, 4), (5, 6, 7), (2, 9, 4, 8)):
        arguments = (
            *pack([torch.randn(n, 8) for n in lengths]),
            *pack([torch.randn(n + 1, 8) for n in lengths]),
        )
        torch.testing.assert_close(compiled(*arguments), scores(*arguments))


def test_fake_tensors_give_shapes_dtypes_and_the_same_errors() -> None:
    with FakeTensorMode():
        x, y = (
            torch.empty(6, 3, 8, dtype=torch.bfloat16),
            torch.empty(6, 5, 8, dtype=torch.bfloat16),
        )
        for values in functional.bertscore(x, y):
            assert values.shape == (6,)
            assert values.dtype == torch.float32
        with pytest.raises(ValueError, match=r"^reference: expected B = 6"):
            functional.bertscore(x, y[:5])
        offsets = torch.empty(7, dtype=torch.int64)
        pairs = torch.empty(11, 2, dtype=torch.int64)
        wide = x[0].double()
        for values in functional.bertscore_packed(wide, offsets, wide, offsets, pairs):
            assert values.shape == (11,)
            assert values.dtype == torch.float64


def test_a_device_without_a_kernel_gets_the_tiled_path_and_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which function each dispatch key runs, and the one line it logs."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for op in ("flashbertscore::bertscore", "flashbertscore::bertscore_packed"):
        assert has(op, "CPU")
        assert has(op, "CompositeExplicitAutograd")
        for key in ("MPS", "XPU"):
            assert not has(op, key)
            assert torch._C._dispatch_has_computed_kernel_for_dispatch_key(op, key)
    monkeypatch.setattr(ops, "_told", set())
    with caplog.at_level(logging.INFO, logger="flashbertscore"):
        for _ in range(3):
            ops._padded_elsewhere(torch.ones(1, 2, 3), torch.ones(1, 2, 3))
    assert caplog.messages == ["no FlashBERTScore kernel for cpu: using tiled torch operations"]


def test_a_gpu_that_the_kernels_were_not_built_for_gets_the_tiled_path_and_says_why_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plan:
        @staticmethod
        def why_unusable() -> str:
            return "no kernel image is available"

    def kernel(*_: object) -> None:
        pytest.fail("a kernel that cannot run was started")

    monkeypatch.setattr(ops._core, "CudaPlan", Plan, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(ops, "_cuda_runs_on", functools.cache(ops._cuda_runs_on.__wrapped__))
    candidate: Any = SimpleNamespace(device=torch.device("cuda", 3))
    with caplog.at_level(logging.INFO, logger="flashbertscore"):
        for _ in range(3):
            arguments = ops._on_cuda(kernel, lambda *given, **_: given, candidate, "reference")
            assert arguments == (candidate, "reference")
    assert caplog.messages == [
        "FlashBERTScore's kernels do not run on cuda:3: no kernel image is available"
    ]


def test_tensors_on_two_devices_are_named_whichever_comes_first() -> None:
    """The dispatcher takes the CUDA function also where only another argument is there."""
    x, elsewhere = torch.ones(1, 2, 3), torch.ones(1, 2, 3, device="meta")
    with pytest.raises(ValueError, match=r"^reference: expected device cpu, got meta"):
        ops._on_cuda(ops._padded, ops._padded_elsewhere, x, elsewhere)
