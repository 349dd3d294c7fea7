"""Build wheels as users do and look at what is inside; `make wheel`.

With nvcc at hand the default wheel, built in an isolated environment, holds the CUDA kernels, needs
no CUDA library, and imports on a machine without a GPU; FLASHBERTSCORE_CUDA=OFF gives one without
them; ON without nvcc fails with a sentence that says what to do.

    python tests/check_wheels.py BUILD_FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
TARGETS = ["sm_80", "sm_90", "compute_90"]
# Scores something, so that the kernels are called and not only loaded.
LOOK = """
import json, torch, flashbertscore as f
from flashbertscore.functional import bertscore
x = torch.randn(2, 5, 16)
assert bertscore(x, x).f1.allclose(torch.ones(2))
print(json.dumps([f.__file__, f.__version__, f.isa(), f.build_info(),
                  hasattr(f.ops._core, "CudaPlan")]))
"""


def build(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`pip wheel` into `folder`, with environment variables."""
    shutil.rmtree(folder, ignore_errors=True)
    # A build folder of its own: the editable install of the working tree stays as it is.
    settings = ["-C", f"build-dir={folder}-cmake"]
    command = [*PIP, "wheel", "--no-deps", *options, *settings, "-w", str(folder), str(ROOT)]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def look(folder: Path) -> dict[str, Any]:
    """Install the wheel beside everything, import it, and return its build_info()."""
    site = Path(f"{folder}-site")
    shutil.rmtree(site, ignore_errors=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    # -S keeps the editable install of the working tree out of the way.
    path = os.pathsep.join([str(site), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [sys.executable, "-S", "-c", LOOK],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
    )
    file, version, isa, info, has_plan = json.loads(done.stdout)
    assert file.startswith(str(site)), file
    assert has_plan == bool(info["cuda"])
    (core,) = site.glob("flashbertscore/_core*.so")
    assert not list(site.glob("flashbertscore/_emulated*")), "the emulation is for tests only"
    command = [shutil.which("ldd") or "ldd", str(core)]
    libraries = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "libcuda" not in libraries.stdout, libraries.stdout
    size = wheel.stat().st_size / 2**20
    print(
        f"{version}, {size:.1f} MiB, {isa}, CUDA {info['cuda'] or 'none'}",
        *info["cuda_architectures"],
    )
    return info


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    done = build(folder / "auto")
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    info = look(folder / "auto")
    if shutil.which("nvcc") or "CUDACXX" in os.environ:
        assert info["cuda"], "nvcc is here, the kernels are not in the wheel"
        assert info["cuda_architectures"] == TARGETS, info
    else:
        print("no nvcc: the wheel with CUDA kernels is not checked")
        assert not info["cuda"]

    done = build(folder / "off", "--no-build-isolation", FLASHBERTSCORE_CUDA="OFF")
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    assert not look(folder / "off")["cuda"]

    missing = {"FLASHBERTSCORE_CUDA": "ON", "CUDACXX": str(folder / "nowhere/nvcc")}
    done = build(folder / "on", "--no-build-isolation", **missing)
    assert done.returncode != 0, "ON without nvcc has built a wheel"
    words = " ".join((done.stdout + done.stderr).split())
    sentence = (
        "FLASHBERTSCORE_CUDA=ON, and no nvcc: put it on PATH or in CUDACXX, "
        "or build with FLASHBERTSCORE_CUDA=OFF"
    )
    assert sentence in words, words
    print(f"ON without nvcc: {sentence}")


if __name__ == "__main__":
    main()
