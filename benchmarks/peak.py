"""What this machine can do at best: build and run peak.cpp."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import cases

SOURCE = cases.REPOSITORY / "benchmarks" / "peak.cpp"
PROGRAM = cases.REPOSITORY / "build" / "peak"


def peak() -> dict[str, Any]:
    """Multiply-add rates of one core in GFLOP/s (0: no such instruction), copy rate in GB/s."""
    PROGRAM.parent.mkdir(exist_ok=True)
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-O2", "-march=native", "-std=c++20", str(SOURCE), "-o", str(PROGRAM)]
    subprocess.run(command, check=True)
    done = subprocess.run([str(PROGRAM)], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
