"""Compile the kernels for every GPU target and read what the compiler says about them.

Fails on a register spill, a stack frame, a ptxas warning of the C75xx kind (an instruction that was
not used as meant), local memory in a kernel's machine code, or a matching kernel without tensor
core instructions. Needs nvcc; takes cuobjdump from PATH, beside nvcc, or from the triton wheel.

    python tests/nvcc_report.py BUILD_FOLDER
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DISASSEMBLER = "13.2.78"
TARGETS = ("sm_80", "sm_90")
FLAGS = ("-std=c++20", "-O3", "-Xptxas", "-v", "-Werror", "all-warnings")


def disassembler(folder: Path) -> list[str]:
    """Command that prints the machine code of an object, fetched with pip if there is none.

    The CUDA toolkit has cuobjdump and the nvdisasm that it calls; machines with nvcc alone do not.
    """
    if shutil.which("cuobjdump") and shutil.which("nvdisasm"):
        return ["cuobjdump", "-sass"]
    tools = folder / "tools"
    if not (tools / "nvdisasm").exists():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        packages = [f"nvidia-cuda-{tool}=={DISASSEMBLER}" for tool in ("cuobjdump", "nvdisasm")]
        subprocess.run([*pip, "-d", str(tools), *packages], check=True)
        for wheel in tools.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(("bin/cuobjdump", "bin/nvdisasm")):
                        tool = tools / Path(name).name
                        tool.write_bytes(archive.read(name))
                        tool.chmod(0o755)
    os.environ["PATH"] += os.pathsep + str(tools.resolve())
    return ["cuobjdump", "-sass"]


def compile_one(source: Path, target: str, folder: Path) -> tuple[Path, str]:
    """The object, and what nvcc printed."""
    out = folder / f"{source.stem}.{target}.o"
    command = ["nvcc", *FLAGS, f"-arch={target}", f"-I{REPOSITORY / 'csrc'}", "-c", str(source)]
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


def check_code(code: str, where: str) -> tuple[int, list[str]]:
    """Number of matching kernels, and complaints about their machine code."""
    problems, kernels = [], 0
    for function in code.split("Function : ")[1:]:
        name, body = function.split("\n", 1)
        local = re.findall(r"\b(?:LDL|STL)\b", body)
        if local:
            problems.append(f"{where}: {name}: {len(local)} accesses to local memory")
        if re.search(r"5matchI", name):
            kernels += 1
            if "HMMA" not in body:
                problems.append(f"{where}: {name}: no tensor core instruction")
    return kernels, problems


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    disassemble = disassembler(folder)
    sources = sorted((REPOSITORY / "csrc/cuda").glob("*.cu"))
    jobs = [(source, target) for target in TARGETS for source in sources]
    problems: list[str] = []
    kernels = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda job: compile_one(*job, folder), jobs))
    for (source, target), (out, report) in zip(jobs, results, strict=True):
        where = f"{source.name} for {target}"
        problems += check_report(report, where)
        code = subprocess.run([*disassemble, str(out)], capture_output=True, text=True, check=True)
        found, complaints = check_code(code.stdout, where)
        kernels += found
        problems += complaints
        registers = [int(n) for n in re.findall(r"Used (\d+) registers", report)]
        print(f"{where}: {len(registers)} kernels, at most {max(registers)} registers")  # noqa: T201
    if kernels == 0:
        problems.append("no matching kernel found: has its name changed?")
    fine = f"{kernels} matching kernels: no spills, no local memory, HMMA in all"
    sys.stdout.write(("\n".join(problems) or fine) + "\n")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
