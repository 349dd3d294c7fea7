"""Where the op's time goes on one core, beside what the machine would need at least.

python benchmarks/gaps.py

For each size: the time that its multiply-adds take at the measured peak, the time that reading its
tokens from memory once takes at the measured rate, the time of the op on one pair again and again
(nothing comes from memory), and on pairs that do come from memory.
"""

from __future__ import annotations

import statistics
import time

import torch

import cases
from flashbertscore import functional
from peak import peak


def seconds(x: torch.Tensor, y: torch.Tensor) -> float:
    times = []
    for _ in range(15):
        start = time.perf_counter()
        functional.bertscore(x, y)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    torch.set_num_threads(1)
    limits = peak()
    print(f"{limits}\n")
    print("dtype, pairs x L x L         products    reading   in cache   of peak   op      of peak")
    for dtype in ("float32", "bfloat16"):
        for length, pairs in cases.SIZES.items():
            shape = (pairs, length, 768)
            x, y = (torch.randn(shape).to(getattr(torch, dtype)) for _ in range(2))
            products = 2.0 * pairs * length**2 * 768 / (limits[f"{dtype}_gflops"] * 1e9)
            reading = (x.nbytes + y.nbytes) / (limits["read_gbytes"] * 1e9)
            cached = seconds(x[:1].expand(shape), y[:1].expand(shape))
            whole = seconds(x, y)
            times = "".join(f"{1e3 * t:7.2f} ms" for t in (products, reading, cached))
            print(
                f"{dtype:9}{pairs:6,} x {length:3} x {length:3} {times} {products / cached:7.2f}"
                f"{1e3 * whole:9.2f} ms {products / whole:7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
