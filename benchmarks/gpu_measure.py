"""Time and peak memory of one call on a GPU, and the embeddings of a case."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import torch

from gpu_cases import DTYPES, Case

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SECONDS = 0.12  # of runs per measurement


def measure(call: Callable[[], object]) -> tuple[float, float]:
    """Median milliseconds by CUDA events, and peak MiB beyond what was allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    once = max(time.perf_counter() - start, 1e-5)
    runs = min(50, max(3, round(SECONDS / once)))
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times), peak


def embeddings(case: Case, device: str = "cuda") -> tuple[Tensor, Tensor]:
    """Random tokens [pairs, length, dim] of either side."""
    shape = (case.pairs, case.length, case.dim)
    x, y = (torch.randn(shape, device=device, dtype=DTYPES[case.dtype]) for _ in range(2))
    return x, y
