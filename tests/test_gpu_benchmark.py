"""Fear: another kernel that is missing, fails or hangs stops the benchmark, or is misused."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from flashbertscore import functional

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_peers")


def best(query: Tensor, document: Tensor) -> Tensor:
    """[..., Lq, d] and [..., Ld, d]: sum over query tokens of the best product."""
    return (query @ document.transpose(-1, -2)).amax(-1).sum(-1)


# The documented functions of flash-maxsim 0.3.0 and late-interaction-kernels 0.4.5.
def flash_maxsim(query: Tensor, document: Tensor) -> Tensor:
    assert (query.dim(), document.dim()) == (2, 3)
    return best(query, document)


def flash_maxsim_pairs(query: Tensor, document: Tensor) -> Tensor:
    assert query.shape[::2] == document.shape[::2]
    return best(query, document)


def maxsim(query: Tensor, document: Tensor, *, normalize: bool = False) -> Tensor:
    assert (query.dim(), document.dim(), normalize) == (3, 3, True)
    return best(unit(query)[:, None], unit(document)[None])


def maxsim_pairs(query: Tensor, document: Tensor, *, normalize: bool = False) -> Tensor:
    assert (query.shape[::2], normalize) == (document.shape[::2], True)
    return best(unit(query), unit(document))


def unit(x: Tensor) -> Tensor:
    return normalize(x, dim=-1)


@pytest.mark.parametrize("pairs", [1, 3])
@pytest.mark.parametrize("peer", ["flash-maxsim", "late-interaction-kernels"])
def test_two_calls_give_precision_and_recall(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, peer: str, pairs: int
) -> None:
    functions = flash_maxsim, flash_maxsim_pairs, maxsim, maxsim_pairs
    fake = SimpleNamespace(**{function.__name__: function for function in functions})
    monkeypatch.setitem(sys.modules, peer.replace("-", "_"), fake)
    x, y = torch.randn(pairs, 7, 16), torch.randn(pairs, 5, 16)
    precision, recall = peers.both_directions(peers.PEERS[peer](), x, y)
    expected = functional.bertscore(x, y)
    torch.testing.assert_close(precision, expected.precision)
    torch.testing.assert_close(recall, expected.recall)


def test_a_peer_that_is_not_installed_is_one_row(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(peers.importlib.metadata, "version", missing)
    assert peers.run("flash-maxsim", 5) == [
        {"case": "all cases", "peer": "flash-maxsim", "failed": "not installed"}
    ]


def test_a_peer_that_cannot_do_a_case_goes_on_with_the_next(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load() -> None:
        message = "no\nshared memory"
        raise RuntimeError(message)

    monkeypatch.setitem(peers.PEERS, "other", load)
    peers.rows("other")
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["case"] for row in printed] == [case.name for case in peers.PEER_CASES]
    assert {row["failed"] for row in printed} == {"RuntimeError: no shared memory"}


ENDS = {
    "crashes": ("sys.exit('illegal access')", "ended with status 1: illegal access"),
    "hangs": ("time.sleep(60)", "no result within 2 s"),
}


@pytest.mark.parametrize(("program", "ended"), ENDS.values(), ids=ENDS)
def test_what_a_peer_measured_before_it_ends_is_kept(
    peers: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    program: str,
    ended: str,
) -> None:
    first, *others = (case.name for case in peers.PEER_CASES)
    row = {"case": first, "ms": 3.0, "peak_mib": 1.5, "difference": 1e-4}
    script = tmp_path / "peer.py"
    lines = "import sys, time", "print('Autotuning...')", f"print({json.dumps(row)!r}, flush=True)"
    script.write_text("\n".join([*lines, program]))
    monkeypatch.setattr(peers, "__file__", str(script))
    monkeypatch.setattr(peers.importlib.metadata, "version", lambda _: "1.2")
    rows: list[dict[str, Any]] = peers.run("other", 2)
    assert rows[0] == {"peer": "other 1.2", **row}
    assert rows[1:] == [{"peer": "other 1.2", "case": name, "failed": ended} for name in others]

    gpu = importlib.import_module("gpu")
    table = [gpu.text(gpu.compare(found, [{"case": first, "ms": 1.5}])) for found in rows]
    assert table[0].removeprefix(f"{first:<30}") == (
        "other 1.2: 3.000 ms, 2.0x our time, 1.5 MiB, P and R 1.0e-04 from ours"
    )
    assert table[1].endswith(f"other 1.2: failed: {ended}")


def test_a_peer_ends_with_the_benchmark(tmp_path: Path) -> None:
    """`make gpu` ends a benchmark that is out of time; the device is then another stage's."""
    script, mark = tmp_path / "peer.py", tmp_path / "pid"
    script.write_text(
        "import os, sys, time\n"
        "open(sys.argv[1] + '~', 'w').write(str(os.getpid()))\n"
        "os.rename(sys.argv[1] + '~', sys.argv[1])\n"
        "time.sleep(60)\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import gpu_peers\n"
        f"gpu_peers._ended([sys.executable, {str(script)!r}, {str(mark)!r}], 60)"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as benchmark:
        while not mark.exists() and benchmark.poll() is None:
            time.sleep(0.05)
        benchmark.terminate()
        assert benchmark.wait(20) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
