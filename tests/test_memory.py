"""Fear: memory grows with N x M."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import re, torch
from flashbertscore import functional, ops

def peak():  # KiB; not ru_maxrss, which begins with that of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

n = {n}
x = torch.randn(1, n, 16)
call = functional.bertscore if {kernel} else ops._padded_elsewhere
call(x[:, :100], x[:, :100])  # everything is loaded
torch.set_num_threads(2)
before = peak()
call(x, x.flip(1))
print((peak() - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kernel", [True, False], ids=["cpu", "tiled"])
def test_a_pair_of_12000_tokens_needs_no_similarity_matrix(kernel: bool) -> None:
    """12,000 x 12,000 float32 similarities would be 549 MiB."""
    program = PROGRAM.format(n=12_000, kernel=kernel)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 100
