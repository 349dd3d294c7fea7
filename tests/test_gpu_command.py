"""Fear: on a machine with a GPU the one command hangs, loses results, or calls a failure success.

benchmarks/gpu.sh runs here with stand-ins for the compiler, Python, and NVIDIA's tools: stages that
end at once, fail, or hang, also such as do not want to end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="for machines with NVIDIA's GPUs")

SCRIPT = Path(__file__).parent.parent / "benchmarks/gpu.sh"
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]
STAGES = ["build", "build-kernels", "import", "kernels", "pytest", "benchmark", *TOOLS, "e2e"]

# What a stage does: by the names that FAILS, HANGS and STAYS list; STAYS ignores SIGTERM.
ACT = """#!/bin/bash
act() {
    echo "$1 runs"
    case " $FAILS " in *" $1 "*) exit 3 ;; esac
    case " $STAYS " in *" $1 "*) trap '' TERM ;; esac
    case " $HANGS $STAYS " in
    *" $1 "*) for i in {1..600}; do sleep 0.1; done ;;
    esac
}
"""
STANDINS = {
    "nvidia-smi": "act nvidia-smi > /dev/null; echo 9.0",
    "nvcc": "",
    "make": """
act build-kernels
mkdir -p build/gpu
printf '%s' '{kernels}' > build/gpu/kernel_test
chmod +x build/gpu/kernel_test""",
    "compute-sanitizer": 'act "$2"',
    "python": """
for word; do [ "$previous" = --out ] && out=$word; previous=$word; done
case "$*" in
"- "*) act modules > /dev/null; echo -n "$LACKS" ;;
*hypothesis*) act hypothesis ;;
"-c "*) act import ;;
"-m pip"*) act build ;;
"-m pytest"*) act pytest; echo "$*: $TESTS" ;;
*gpu.py*) echo '{"rows": 1}' > "$out"; act benchmark; echo '{"rows": 2}' > "$out" ;;
*gpu_e2e.py*) act e2e; echo '{}' > "$out" ;;
*) exit 9 ;;
esac""",
}


@dataclass
class Run:
    """What came of it; ``root`` is where it ran."""

    status: int
    seconds: float
    output: str
    root: Path

    def line(self, stage: str) -> str:
        """What is said of a stage, in the one line that is."""
        (line,) = [x for x in self.output.splitlines() if x.startswith(f"== {stage}: ")]
        return line.removeprefix(f"== {stage}: ")

    def result(self, name: str) -> str:
        return (self.root / "build/gpu/results" / name).read_text()


def run(root: Path, **variables: str) -> Run:
    """Run the script in ``root`` with stand-ins alone on PATH, beside the system's tools."""
    folder = root / "bin"
    folder.mkdir(exist_ok=True)
    for name, body in STANDINS.items():
        program = folder / name
        program.write_text(
            ACT + body.replace("{kernels}", f"{ACT}act kernels".replace("'", "'\\''"))
        )
        program.chmod(0o755)
    (root / "benchmarks").mkdir(exist_ok=True)
    shutil.copy(SCRIPT, root / "benchmarks")
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "PYTHON": str(folder / "python"),
        "CXX": "bash",
        "TESTS": "3 passed",
        **dict.fromkeys(["FAILS", "HANGS", "STAYS", "LACKS"], ""),
        **variables,
    }
    start = time.monotonic()
    done = subprocess.run(
        ["/bin/bash", str(root / "benchmarks/gpu.sh")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=environment,
        timeout=60,
    )
    seconds = time.monotonic() - start
    assert not left_behind(folder)
    return Run(done.returncode, seconds, done.stdout, root)


def left_behind(folder: Path) -> list[str]:
    """Command lines of stand-ins that still run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if str(folder) in command and process.name != str(os.getpid()):
            found.append(command)
    return found


def test_everything_passes(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.status == 0, done.output
    assert [done.line(stage)[:6] for stage in STAGES] == ["ok in "] * len(STAGES)
    assert "== 0 stages failed: none; " in done.output
    assert done.result("gpu.json") == '{"rows": 2}\n'
    assert (tmp_path / "benchmarks/results/gpu-sm_90.json").read_text() == '{"rows": 2}\n'
    assert (tmp_path / "benchmarks/results/gpu-e2e-sm_90.json").read_text() == "{}\n"
    assert all(f"==== {stage}\n{stage} runs\n" in done.result("gpu.log") for stage in STAGES)


def test_a_stage_that_hangs_is_named_and_the_next_ones_run(tmp_path: Path) -> None:
    done = run(tmp_path, HANGS="pytest racecheck", STAGE_SECONDS="1")
    assert done.status == 1
    assert done.seconds < 2 + 4
    assert done.line("pytest").startswith("FAILED: out of time after ")
    assert done.line("racecheck").startswith("FAILED: out of time after ")
    for stage in set(STAGES) - {"pytest", "racecheck"}:
        assert done.line(stage).startswith("ok in "), stage
    assert "== 2 stages failed: pytest racecheck; " in done.output
    assert done.result("gpu.json") == '{"rows": 2}\n'


def test_a_failure_does_not_keep_the_next_stage_from_running(tmp_path: Path) -> None:
    done = run(tmp_path, FAILS="build build-kernels kernels benchmark e2e")
    assert done.status == 1
    for stage in STAGES:
        want = "FAILED (3) in " if stage in ("build", "benchmark", "e2e") else "ok in "
        # Its program was not built.
        want = {"build-kernels": "FAILED (3)", "kernels": "FAILED (127)"}.get(stage, want)
        assert done.line(stage).startswith(want), stage
    assert "== 5 stages failed: build build-kernels kernels benchmark e2e; " in done.output
    assert done.result("gpu.json") == '{"rows": 1}\n'  # what it had measured before
    assert "==== benchmark\nbenchmark runs\n" in done.result("gpu.log")


# One of two builds at once, and a later stage; told to end, and made to.
@pytest.mark.parametrize(
    ("stage", "how"), [("build", "HANGS"), ("build-kernels", "STAYS"), ("benchmark", "STAYS")]
)
def test_all_ends_when_the_time_is_over(tmp_path: Path, stage: str, how: str) -> None:
    total, grace = 3, 1
    done = run(tmp_path, TOTAL_SECONDS=str(total), GRACE_SECONDS=str(grace), **{how: stage})
    assert done.status == 1
    assert done.seconds < total + grace + 2
    assert done.line(stage).startswith("FAILED: out of time after ")
    before = {"build": 2, "build-kernels": 2, "benchmark": 6}[stage]
    for later in STAGES[before:]:
        assert done.line(later) == f"FAILED: not started: {total} s are over"
    for earlier in set(STAGES[:before]) - {stage}:
        assert done.line(earlier).startswith("ok in "), earlier
    if stage == "benchmark":
        assert done.result("gpu.json") == '{"rows": 1}\n'
        assert "==== benchmark\nbenchmark runs\n" in done.result("gpu.log")


@pytest.mark.parametrize("what", ["nvidia-smi", "modules"])
def test_a_driver_that_hangs_ends_it_at_once(tmp_path: Path, what: str) -> None:
    done = run(tmp_path, STAYS=what, STAGE_SECONDS="1", GRACE_SECONDS="1")
    assert done.status == 2
    assert done.seconds < 2 + 2
    assert "this machine lacks" in done.output
    lacks = {
        "nvidia-smi": "an NVIDIA GPU: nvidia-smi names none",
        "modules": "has not said what it lacks in time",
    }
    assert lacks[what] in done.output


def test_what_is_missing_is_said_before_anything_runs(tmp_path: Path) -> None:
    done = run(tmp_path, LACKS="Python package ninja: not installed for python\n")
    assert done.status == 2
    assert "  Python package ninja: not installed for python" in done.output.splitlines()
    assert not (tmp_path / "build/gpu/kernel_test").exists()


def test_tests_that_are_all_skipped_are_no_success(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS="7 skipped", STAGES="pytest")
    assert done.status == 1
    assert "no test passed" in done.output


def test_tests_that_need_what_is_not_installed_are_left_out(tmp_path: Path) -> None:
    done = run(tmp_path, STAGES="pytest")
    assert done.status == 0
    assert "tests/test_laws.py" in done.result("gpu.log")
    done = run(tmp_path, STAGES="pytest", FAILS="hypothesis")
    assert done.status == 0
    assert "== without tests/test_laws.py: hypothesis is not installed" in done.output
    assert "tests/test_laws.py" not in done.result("gpu.log")


def test_results_of_an_earlier_run_are_not_taken_for_new_ones(tmp_path: Path) -> None:
    assert run(tmp_path, STAGES="pytest benchmark e2e").status == 0
    published = [tmp_path / f"benchmarks/results/gpu{kind}-sm_90.json" for kind in ("", "-e2e")]
    for file in published:
        file.unlink()
    done = run(tmp_path, STAGES="pytest e2e", HANGS="pytest e2e", TOTAL_SECONDS="2")
    assert done.status == 1
    assert "no test passed" not in done.output  # but that time was out
    assert done.result("gpu.log").count("====") == 1
    assert not any(file.exists() for file in published)
