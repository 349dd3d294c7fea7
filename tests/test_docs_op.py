"""Fear: an example of docs/op.md or examples/ does not run, or says what is not so."""

from __future__ import annotations

import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from flashbertscore import functional

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = (REPOSITORY / "docs" / "op.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^### (.+?)\n.*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))


def test_there_are_five_examples() -> None:
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs_and_its_claims_hold(name: str) -> None:
    code = EXAMPLES[name]
    assert "assert" in code
    exec(compile(code, f"docs/op.md: {name}", "exec"), {})  # noqa: S102 - that is the test


@pytest.mark.parametrize("name", ["bertscore", "bertscore_packed", "bertscore_matrix"])
def test_signatures_are_those_of_the_functions(name: str) -> None:
    text = re.search(rf"functional\.{name}\((.*?)\)\n", PAGE, re.DOTALL)
    assert text is not None
    arguments = re.sub(r"\[[^]]*\]", "", text[1])
    named = [part.split("=")[0].strip() for part in arguments.split(",")]
    parameters = inspect.signature(getattr(functional, name)).parameters
    assert [n for n in named if n != "*"] == list(parameters)


TRAIN = REPOSITORY / "examples" / "train_with_bertscore.py"


def test_the_training_example_learns() -> None:
    losses = runpy.run_path(str(TRAIN), run_name="example")["train"](50, 64, report=False)
    assert len(losses) == 50
    assert sum(losses[-5:]) / 5 < 0.6 * losses[0]


PROGRAM = """
import resource, runpy
train = runpy.run_path({path!r}, run_name="example")["train"]
train(2, 64, 2, report=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
train(2, {tokens}, 2, report=False)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_memory_of_training_grows_with_the_tokens_alone() -> None:
    """2 x 4,096 x 4,096 float32 similarities, kept for backward, would be 128 MiB and more."""
    program = PROGRAM.format(path=str(TRAIN), tokens=4096)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 90
