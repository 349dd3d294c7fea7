"""Prove that `make emulate` can fail: break a copy of the kernels, see the right build object.

Each fault is one edit of one header of csrc/cuda. The file with the kernels that it breaks is
compiled from the broken copy, linked with everything else as it is, and run once through every
kernel on bfloat16; the build that is there to catch such a fault must fail with the words that it
has for it. The untouched kernels must
pass the same run in every build. Run by `make faults`, which passes compiler and flags:

    python tests/inject_faults.py BUILD_FOLDER COMPILER_AND_FLAGS BUILD=FLAGS...
"""

from __future__ import annotations

import concurrent.futures
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What each build says when it finds something.
VERDICTS = {
    "plain": ("FAILED",),
    "tsan": ("WARNING: ThreadSanitizer: data race",),
    "asan": ("ERROR: AddressSanitizer", "runtime error:"),
}
SECONDS = 300


@dataclass(frozen=True)
class Fault:
    """An edit of `file` and the build that must catch it, in one group of kernel_test.

    `source` is the file of csrc/cuda that is compiled with it.
    """

    name: str
    file: str
    old: str
    new: str
    build: str
    group: str = "tour"
    source: str = "kernels_bf16.cu"


FAULTS = [
    Fault(
        "a barrier is missing between the copy of a slice and its products",
        "match.cuh",
        "ptx::sync_block(); // the slice is whole, and the stage before it is free",
        "",
        "tsan",
    ),
    Fault(
        "a mask is off by one: the row after the last counts as a token",
        "numeric.cuh",
        "return i >= rows || is_masked",
        "return i > rows || is_masked",
        "plain",
    ),
    Fault(
        "a row beyond the last is read",
        "load.cuh",
        "pass * T::ROWS_A_PASS < rows && k_",
        "pass * T::ROWS_A_PASS <= rows && k_",
        "asan",
    ),
    Fault(
        "products do not wait for the copy of their slice",
        "match.cuh",
        "ptx::copy_async_wait<T::STAGES - 2>();",
        "ptx::copy_async_wait<T::STAGES>();",
        "plain",
    ),
    Fault(
        "ldmatrix takes the halves of B's rows in the wrong order",
        "tile.cuh",
        "b_next(place.lane / 8 % 2)",
        "b_next(1 - place.lane / 8 % 2)",
        "plain",
    ),
    Fault(
        "of equal maxima of a row the last one is taken",
        "match.cuh",
        "if (value > best) {\n                        best = value;\n"
        "                        column =",
        "if (value >= best) {\n                        best = value;\n"
        "                        column =",
        "plain",
        "matches_tour",
    ),
    Fault(
        "the alignment of padding is not written",
        "align.cuh",
        "i < all; i +=",
        "i < all && i < rows; i +=",
        "plain",
        "matches_tour",
        "plan.cu",
    ),
    Fault(
        "a barrier is missing between the flags of a pair and what sets them",
        "align.cuh",
        "if (thread < 3) flags[thread] = 0;\n        ptx::sync_block();",
        "if (thread < 3) flags[thread] = 0;",
        "tsan",
        "matches_tour",
        "plan.cu",
    ),
    Fault(
        "a row's list of edges is read one too far",
        "gradient.cuh",
        "for (index_t at = begin; at < end; ++at) {",
        "for (index_t at = begin; at <= end; ++at) {",
        "asan",
        "gradient_tour",
        "gradient.cu",
    ),
    Fault(
        "a barrier is missing between sums of warps and the sum of a block",
        "gradient.cuh",
        "partial[thread / 32] = total;\n        ptx::sync_block();",
        "partial[thread / 32] = total;",
        "tsan",
        "gradient_tour",
        "gradient.cu",
    ),
    Fault(
        "the gradient of F1 takes one mean for the other",
        "gradient.cuh",
        "const double part = other_mean / sum;",
        "const double part = mean / sum;",
        "plain",
        "gradient_tour",
        "gradient.cu",
    ),
]


def run(program: Path, group: str) -> tuple[int, str]:
    """Exit status and output of one group of the bfloat16 kernels."""
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    try:
        done = subprocess.run(
            [str(program), group, "bf16"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return 1, f"no end within {SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def broken_program(fault: Fault, folder: Path, compiler: list[str], builds: Path) -> Path:
    """kernel_test of the fault's build with broken kernels."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    header = folder / "csrc/cuda" / fault.file
    source = header.read_text()
    if source.count(fault.old) != 1:
        sys.exit(f"inject_faults: {fault.file} has not once: {fault.old}\nadapt FAULTS to it")
    header.write_text(source.replace(fault.old, fault.new))
    broken, program = folder / f"{fault.source}.o", folder / "kernel_test"
    kernels = folder / "csrc/cuda" / fault.source
    include = f"-I{folder / 'csrc'}"
    command = [*compiler, include, "-x", "c++", "-c", str(kernels), "-o", str(broken)]
    subprocess.run(command, check=True)
    # First, so that of inline functions that all objects have the broken ones are taken.
    own = {broken.name, "plan_test.o"}  # the latter has a main of its own
    others = sorted(path for path in builds.glob("*.o") if path.name not in own)
    objects = [str(path) for path in (broken, *others)]
    subprocess.run([*compiler, *objects, "-o", str(program)], check=True)
    return program


def attempt(
    number: int, compiler: list[str], flags: dict[str, list[str]], builds: Path
) -> tuple[bool, str]:
    """Whether a fault was caught, and a line about it."""
    fault = FAULTS[number]
    folder = (builds / "faults" / str(number)).resolve()
    command = [*compiler, *flags[fault.build]]
    program = broken_program(fault, folder, command, builds / fault.build)
    status, output = run(program, fault.group)
    words = VERDICTS[fault.build]
    lines = [line.strip() for line in output.splitlines() if any(word in line for word in words)]
    caught = status != 0 and bool(lines)
    verdict = f"caught: {lines[0]}" if caught else f"NOT CAUGHT, exit status {status}:\n{output}"
    return caught, f"{fault.build}: {fault.name}: {verdict}"


def main() -> None:
    builds, compiler = Path(sys.argv[1]), shlex.split(sys.argv[2])
    flags = {
        name: shlex.split(value) for name, _, value in (a.partition("=") for a in sys.argv[3:])
    }
    problems = 0
    for build in VERDICTS:
        status, output = run(builds / build / "kernel_test", "tour")
        problems += status != 0
        print(f"{build}: untouched kernels: {'pass' if status == 0 else output}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for caught, verdict in pool.map(
            lambda number: attempt(number, compiler, flags, builds), range(len(FAULTS))
        ):
            problems += not caught
            print(verdict, flush=True)
    print(f"{len(FAULTS)} faults, {problems} problems")
    sys.exit(problems != 0)


if __name__ == "__main__":
    main()
