"""Compare two commits on the op's cases: each built in a worktree of its own, run in turn.

    python benchmarks/compare.py OLD NEW [--only op-float32-768] [--rounds 3]

Prints the median time of each commit and the ratio OLD / NEW (above 1: NEW is faster). Runs
alternate, so that a machine that drifts does so for both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
from pathlib import Path

import cases
from run import git

FOLDER = cases.REPOSITORY / "build" / "compare"


def build(commit: str) -> Path:
    """Check a commit out and build its extension in place; return its Python folder."""
    name = git("rev-parse", "--short", commit)
    tree = FOLDER / name
    if not tree.exists():
        git("worktree", "add", "--detach", str(tree), commit)
    command = ["make", "-C", str(tree), "inplace", f"PYTHON={sys.executable}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return tree / "python"


def time_of(package: Path, case: cases.OpCase, threads: int) -> float:
    """Median seconds of a case with the package of one commit, in a process of its own."""
    # -S and PYTHONPATH: an editable install of the working tree would come first otherwise.
    paths = [str(package), sysconfig.get_path("purelib")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(threads),
    }
    run = str(Path(__file__).parent / "run.py")
    command = [sys.executable, "-S", run, "--one", case.name, "flashbertscore", str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(json.loads(done.stdout.strip().splitlines()[-1])["median"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--only", default="op-float32-768", help="cases whose name begins so")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    packages = [build(options.old), build(options.new)]
    print(f"{'case':24} {'threads':>7} {options.old:>12} {options.new:>12}   ratio")
    for case in cases.OP:
        if not case.name.startswith(options.only) or case is cases.HUGE:
            continue
        for threads in case.threads:
            count = threads or os.cpu_count() or 1
            times: list[list[float]] = [[], []]
            for _ in range(options.rounds):
                for side, package in zip(times, packages, strict=True):
                    side.append(time_of(package, case, count))
            old, new = (statistics.median(side) for side in times)
            shown = f"{1e3 * old:9.2f} ms {1e3 * new:9.2f} ms {old / new:6.2f}x"
            print(f"{case.name:24} {count:7} {shown}", flush=True)


if __name__ == "__main__":
    main()
