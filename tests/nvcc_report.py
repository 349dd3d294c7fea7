"""Compile the kernels for every GPU target and read what the compiler says about them.

Fails on a register spill, a stack frame, a ptxas warning of the C75xx kind (an instruction that was
not used as meant), local memory in a kernel's machine code, a matching kernel without tensor core
instructions, or a kernel of csrc/cuda that is in none of the objects. Needs nvcc; takes cuobjdump
and the nvdisasm that it calls from PATH, from beside nvcc, or from the packages
nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm.

    python tests/nvcc_report.py BUILD_FOLDER
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TARGETS = ("sm_80", "sm_90")
MATCHING = "5matchI"
FLAGS = ("-std=c++20", "-O3", "--fmad=false", "-Xptxas", "-v", "-Werror", "all-warnings")


def require(tool: str) -> str:
    """Path of a tool on PATH, of the CUDA toolkit around nvcc, or of the environment's packages."""
    nvcc = shutil.which("nvcc")
    beside = [Path(nvcc).resolve().parent] if nvcc else []
    packages = Path(sysconfig.get_path("purelib"), "nvidia").glob("*/bin")
    path = os.pathsep.join([os.environ["PATH"], *map(str, [*beside, *packages])])
    if found := shutil.which(tool, path=path):
        return found
    hints = {
        "nvcc": "install a CUDA toolkit 12.8 or newer and put its bin folder on PATH",
        "cuobjdump": "run `make venv`, or put a CUDA toolkit that has it on PATH",
        "nvdisasm": "run `make venv`, or put a CUDA toolkit that has it on PATH",
    }
    sys.exit(f"nvcc_report: {tool} not found: {hints[tool]}")


def compile_one(source: Path, target: str, folder: Path) -> tuple[Path, str]:
    """The object, and what nvcc printed."""
    out = folder / f"{source.stem}.{target}.o"
    command = [
        require("nvcc"),
        *FLAGS,
        f"-arch={target}",
        f"-I{REPOSITORY / 'csrc'}",
        "-c",
        str(source),
    ]
    done = subprocess.run([*command, "-o", str(out)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return out, done.stdout + done.stderr


def check_report(report: str, where: str) -> list[str]:
    """Complaints about ptxas -v."""
    problems = [
        f"{where}: {line}" for line in report.splitlines() if re.search(r"\(C75\d\d\)", line)
    ]
    kernel = "?"
    for line in report.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = match[1]
        numbers = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+)", line)
        if numbers and any(int(number) for number in numbers.groups()):
            problems.append(f"{where}: {kernel}: {line.strip()}")
    return problems


def kernel_names() -> set[str]:
    """Of all kernels in the headers."""
    pattern = re.compile(r"__global__ void (?:__launch_bounds__\([^()]*\)\s+)?(\w+)\(")
    headers = sorted((REPOSITORY / "csrc/cuda").glob("*.cuh"))
    return {name for header in headers for name in pattern.findall(header.read_text())}


def check_code(code: str, where: str) -> tuple[list[str], list[str]]:
    """Mangled names of the kernels, and complaints about their machine code."""
    problems, kernels = [], []
    for function in code.split("Function : ")[1:]:
        name, body = function.split("\n", 1)
        kernels.append(name)
        local = re.findall(r"\b(?:LDL|STL)\b", body)
        if local:
            problems.append(f"{where}: {name}: {len(local)} accesses to local memory")
        if re.search(MATCHING, name) and "HMMA" not in body:
            problems.append(f"{where}: {name}: no tensor core instruction")
    return kernels, problems


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    require("nvcc")
    disassemble = [require("cuobjdump"), "-sass"]
    os.environ["PATH"] += os.pathsep + str(Path(require("nvdisasm")).parent)
    sources = sorted((REPOSITORY / "csrc/cuda").glob("*.cu"))
    jobs = [(source, target) for target in TARGETS for source in sources]
    problems: list[str] = []
    kernels: dict[str, list[str]] = {target: [] for target in TARGETS}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda job: compile_one(*job, folder), jobs))
    for (source, target), (out, report) in zip(jobs, results, strict=True):
        where = f"{source.name} for {target}"
        problems += check_report(report, where)
        code = subprocess.run([*disassemble, str(out)], capture_output=True, text=True, check=True)
        found, complaints = check_code(code.stdout, where)
        kernels[target] += found
        problems += complaints
        registers = [int(n) for n in re.findall(r"Used (\d+) registers", report)]
        print(f"{where}: {len(registers)} kernels, at most {max(registers)} registers")
    for target, found in kernels.items():
        for name in sorted(kernel_names()):
            if not any(f"{len(name)}{name}" in mangled for mangled in found):
                problems.append(f"kernel {name}: in no object for {target}")
    every = [name for found in kernels.values() for name in found]
    matching = sum(bool(re.search(MATCHING, name)) for name in every)
    if matching == 0:
        problems.append("no matching kernel found: has its name changed?")
    names = ", ".join(sorted(kernel_names()))
    fine = (
        f"{len(every)} kernels ({names}): no spills, no local memory; "
        f"HMMA in all of {matching} matching ones"
    )
    print("\n".join(problems) or fine)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
