"""What this machine can do at best: build and run peak.cpp."""

from __future__ import annotations

import functools
import json
import os
import subprocess

import cases

SOURCE = cases.REPOSITORY / "benchmarks" / "peak.cpp"
PROGRAM = cases.REPOSITORY / "build" / "peak"


@functools.cache
def _build() -> None:
    PROGRAM.parent.mkdir(exist_ok=True)
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-O2", "-march=native", "-std=c++20", str(SOURCE), "-o", str(PROGRAM)]
    subprocess.run(command, check=True)


def peak() -> dict[str, float]:
    """Multiply-add rates of one core in GFLOP/s (0: no such instruction), copy rate in GB/s."""
    _build()
    done = subprocess.run([str(PROGRAM)], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result
