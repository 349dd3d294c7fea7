"""The op on a GPU beside a device copy, a matrix product and what plain torch does.

Writes one JSON file and prints a table: ``python benchmarks/gpu.py --out FILE [--quick]``. A case
that fails is a row that says so; the rest is measured all the same. Kernels of others, where they
are installed, come last (gpu_peers.py).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import flashbertscore
import gpu_peers
from flashbertscore import functional
from gpu_cases import LONG, SHORT, TARGETS, Case
from gpu_measure import embeddings, measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

BLOCK_BYTES = 4 << 30  # of similarities that torch's chain may hold at once


def chain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Normalize, multiply, take both maxima, means: [B, N, D] and [B, M, D] to P and R."""
    x = torch.nn.functional.normalize(x, dim=-1)
    y = torch.nn.functional.normalize(y, dim=-1)
    s = x @ y.transpose(1, 2)
    return s.amax(dim=2).float().mean(dim=1), s.amax(dim=1).float().mean(dim=1)


def chain_in_blocks(
    step: Callable[..., Any], x: Tensor, y: Tensor, size: int
) -> Callable[[], object]:
    """``step`` over slices of pairs, or for one long pair of rows, so that it fits the memory.

    A block of rows has the work of the whole; merging its column maxima is left out, in torch's
    favour.
    """
    b, n, m = x.shape[0], x.shape[1], y.shape[1]
    pairs = max(1, min(b, BLOCK_BYTES // (n * m * size)))
    rows = max(1, min(n, BLOCK_BYTES // (m * size)))

    def run() -> None:
        for first in range(0, b, pairs):
            for row in range(0, n, rows):
                step(x[first : first + pairs, row : row + rows], y[first : first + pairs])

    return run


def error(case: Case, x: Tensor, y: Tensor, scores: functional.Scores) -> dict[str, float]:
    """Largest error of F against float64 on a few pairs, ours and that of torch's chain."""
    x, y = x[:4, :2048], y[:4, :2048]
    if x.shape[1] < case.length:
        scores = functional.bertscore(x, y)
    p, r = (value.double() for value in chain(x.double(), y.double()))
    truth = 2 * p * r / (p + r)
    q, s = (value.double() for value in chain(x.float(), y.float()))
    plain = 2 * q * s / (q + s)
    return {
        "error": (scores.f1[:4].double() - truth).abs().max().item(),
        "error_torch_fp32": (plain - truth).abs().max().item(),
    }


def copy_bandwidth() -> float:
    """TB/s, bytes read and bytes written, of a large copy on the device."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    milliseconds, _ = measure(lambda: target.copy_(source))
    return 2 * source.nbytes / milliseconds / 1e9


def run_case(case: Case, copy: float, *, quick: bool) -> dict[str, Any]:
    x, y = embeddings(case)
    row: dict[str, Any] = {"case": case.name, "dtype": case.dtype, "pairs": case.pairs}
    row |= {"length": case.length, "dim": case.dim}
    scores = functional.bertscore(x, y)
    row |= error(case, x, y, scores)
    row["ms"], row["peak_mib"] = measure(lambda: functional.bertscore(x, y))
    row["tb_per_s"] = case.bytes / row["ms"] / 1e9
    row["of_copy"] = row["tb_per_s"] / copy
    row["tflop_per_s"] = case.flop / row["ms"] / 1e9
    long = case.pairs == 1
    if long:
        half = (x[0].bfloat16(), y[0].bfloat16().T)
        rows = min(case.length, 16384)
        product, _ = measure(lambda: half[0][:rows] @ half[1])
        row["cublas_bf16_tflop_per_s"] = case.flop * rows / case.length / product / 1e9
    if case.chain and not quick:
        size = x.element_size()
        plain = chain_in_blocks(chain, x, y, size)
        row["torch_ms"], row["torch_peak_mib"] = measure(plain)
        row["times_torch"] = row["torch_ms"] / row["ms"]
        # Compiling takes seconds a shape; the middle dimension stands for all.
        if case.dim == 768 and (long or case.length in (32, 128)) and case.length <= 16384:
            torch._dynamo.reset()  # noqa: SLF001 - or it gives up after a few shapes
            compiled = torch.compile(chain, dynamic=False)
            row["compiled_ms"], row["compiled_peak_mib"] = measure(
                chain_in_blocks(compiled, x, y, size)
            )
            row["times_compiled"] = row["compiled_ms"] / row["ms"]
    return row


def ragged(copy: float) -> dict[str, Any]:
    """10,000 packed pairs of 8 to 64 tokens, as sentences are, schedule and its copy included."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 65, (2, 10_000), generator=generator)
    offsets = [torch.cat([torch.zeros(1, dtype=torch.long), one.cumsum(0)]) for one in lengths]
    x, y = (torch.randn(int(one[-1]), 768, device="cuda", dtype=torch.bfloat16) for one in offsets)
    milliseconds, peak = measure(lambda: functional.bertscore_packed(x, offsets[0], y, offsets[1]))
    rate = (x.nbytes + y.nbytes) / milliseconds / 1e9
    return {
        "case": "bf16 packed 10000x8..64 D=768",
        "ms": milliseconds,
        "peak_mib": peak,
        "tb_per_s": rate,
        "of_copy": rate / copy,
    }


def latency() -> dict[str, Any]:
    """One pair of 32 tokens: from Python to the result, and replayed from a CUDA graph."""
    x, y = (torch.randn(1, 32, 768, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    functional.bertscore(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        functional.bertscore(x, y)
    calls = 200
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        functional.bertscore(x, y)
    queued = (time.perf_counter() - start) / calls
    torch.cuda.synchronize()
    replay, _ = measure(lambda: [graph.replay() for _ in range(calls)])
    return {"case": "bf16 1x32 D=768", "call_us": queued * 1e6, "graph_us": replay * 1e3 / calls}


def compare(peer: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A peer's row, with how many times our time for the same case it took."""
    ours = next((row["ms"] for row in rows if row["case"] == peer["case"] and "ms" in row), None)
    return {**peer, "times_ours": peer["ms"] / ours} if ours and "ms" in peer else peer


def text(row: dict[str, Any]) -> str:
    if "peer" in row:
        head = f"{row['case']:<30}{row['peer']}: "
        if "failed" in row:
            known = row["failed"] == "not installed"
            return head + (row["failed"] if known else f"failed: {row['failed']}")
        times = f"{row['times_ours']:.1f}x our time, " if "times_ours" in row else ""
        return (
            f"{head}{row['ms']:.3f} ms, {times}{row['peak_mib']:.1f} MiB, "
            f"P and R {row['difference']:.1e} from ours"
        )
    if "failed" in row:
        return f"{row['case']:<30} FAILED {row['failed']}"
    if "graph_us" in row:
        return f"{row['case']:<30} {row['call_us']:.1f} us a call, {row['graph_us']:.1f} in a graph"
    cells = [f"{row['case']:<30}{row['ms']:9.3f} ms {row['tb_per_s']:6.2f} TB/s"]
    cells.append(f"{100 * row['of_copy']:4.0f}% copy")
    for key, form in (
        ("tflop_per_s", "{:6.1f} TF"),
        ("cublas_bf16_tflop_per_s", "cublas {:.0f}"),
        ("times_torch", "torch x{:.1f}"),
        ("times_compiled", "compiled x{:.1f}"),
        ("peak_mib", "{:.1f} MiB"),
        ("error", "err {:.1e}"),
        ("error_torch_fp32", "({:.1e})"),
    ):
        if key in row:
            cells.append(form.format(row[key]))
    return " ".join(cells)


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return "unknown"
    return done.stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="without torch's chain")
    parser.add_argument("--seconds", type=float, default=240, help="start no case after this")
    parser.add_argument("--peer-seconds", type=float, default=40, help="for each other kernel")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu.py: no CUDA device", file=sys.stderr)
        return 2
    start = time.perf_counter()
    torch.manual_seed(0)
    copy = copy_bandwidth()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "date": dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "torch": torch.__version__,
        "build": flashbertscore.build_info(),
        "targets": TARGETS,
        "copy_tb_per_s": copy,
        "rows": [],
        "peers": [],
    }

    def save() -> None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")

    print(f"{report['device']}, torch {torch.__version__}, copy {copy:.2f} TB/s")
    failed = 0
    # bf16 first, and short before long: what the targets are about.
    jobs: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("latency", latency),
        ("ragged", lambda: ragged(copy)),
    ]
    for case in [*(c for c in SHORT + LONG if c.dtype == "bf16"), *SHORT, *LONG]:
        if not any(name == case.name for name, _ in jobs):
            jobs.append((case.name, lambda case=case: run_case(case, copy, quick=arguments.quick)))
    for name, job in jobs:
        if time.perf_counter() - start > arguments.seconds:
            row: dict[str, Any] = {"case": name, "failed": "not started: time is up"}
        else:
            try:
                row = job()
            except Exception as problem:  # noqa: BLE001 - one case must not hide the others
                row = {"case": name, "failed": f"{type(problem).__name__}: {str(problem)[:200]}"}
        failed += "failed" in row
        report["rows"].append(row)
        print(text(row), flush=True)
        torch.cuda.empty_cache()
        save()
    for peer in gpu_peers.PEERS:
        for found in gpu_peers.run(peer, arguments.peer_seconds):
            report["peers"].append(compare(found, report["rows"]))
            print(text(report["peers"][-1]), flush=True)
        save()
    print(f"{time.perf_counter() - start:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
