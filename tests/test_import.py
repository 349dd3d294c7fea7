"""Fear: importing is slow, noisy, or a broken build does not say what is wrong."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flashbertscore

HEAVY = ("transformers", "matplotlib", "pandas", "tokenizers", "requests", "bert_score")
SITE = str(Path(sys.modules["torch"].__file__ or "").parent.parent)


def run(code: str, *, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter; with ``path`` without .pth files, so that it comes first."""
    environment = dict(os.environ)
    flags = []
    if path:
        environment["PYTHONPATH"] = os.pathsep.join([path, SITE])
        flags = ["-S"]
    return subprocess.run(
        [sys.executable, *flags, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_heavy_packages_load_on_first_use_only() -> None:
    done = run(
        f"import sys, torch; before = set(sys.modules); import flashbertscore; "
        f"print(sorted(set({HEAVY}) & (set(sys.modules) - before)))"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_only_ops_and_numpy_import_the_compiled_kernels() -> None:
    """What import-linter cannot see: a compiled module is no node of its graph."""
    package = Path(flashbertscore.__file__).parent
    users = [
        path.relative_to(package).as_posix()
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any("_core" in n.name for n in node.names))
        or (isinstance(node, ast.ImportFrom) and any("_core" in n.name for n in node.names))
    ]
    assert users == ["numpy.py", "ops.py"]


def copy_without_core(folder: Path) -> Path:
    package = folder / "flashbertscore"
    source = Path(flashbertscore.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("_core*.so", "__pycache__"))
    return package


def test_a_missing_core_is_explained(tmp_path: Path) -> None:
    copy_without_core(tmp_path)
    last = run("import flashbertscore", path=str(tmp_path)).stderr.strip().splitlines()[-1]
    assert last == (
        "ImportError: flashbertscore._core, the compiled part, is missing or does not load "
        "(No module named 'flashbertscore._core'): build it with `pip install .` from the source "
        "folder"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="extension modules end in .pyd there")
def test_a_broken_core_is_explained(tmp_path: Path) -> None:
    (copy_without_core(tmp_path) / "_core.so").write_text("not a library")
    last = run("import flashbertscore", path=str(tmp_path)).stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: flashbertscore._core, the compiled part, is missing or")
    assert last.endswith("build it with `pip install .` from the source folder")
