"""`flashbertscore doctor`: what it says of the environment and of a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import flashbertscore
from flashbertscore import diagnostics, encoder, prepack
from flashbertscore.cli import main

TinyModel = Callable[[str], str]


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, str]:
    assert main.main(["doctor", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    width = len(lines[0]) - len(lines[0].split(maxsplit=1)[1])
    assert all(line[width - 1] == " " != line[width] for line in lines)  # a column that lines up
    return {line[:width].strip(): line[width:] for line in lines}


def test_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys)
    assert found["flashbertscore"] == flashbertscore.__version__
    assert found["torch"] == torch.__version__
    assert found["cpu kernels"].startswith(f"{flashbertscore.isa()} (")
    assert f"{torch.get_num_threads()} in torch" in found["threads"]
    assert found["devices"].split(", ")[0] == "cpu"
    assert "model" not in found


def test_a_model(capsys: pytest.CaptureFixture[str], tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    found = report(capsys, "-m", path, "-l", "3", "--device", "cpu")
    loaded = encoder.load(path, 3)
    count = prepack.numel(loaded.model)
    assert found["model"] == f"BertModel of {path}"
    assert found["weights"] == f"{count:,} float32 on cpu"
    assert found["attention"] == "3 layers by our kernel, else sdpa"
    packed, linears = prepack.count(loaded.model)
    assert linears == 3 * 6 + 1  # the pooler
    assert found["linear layers"] == f"{packed} of {linears} on packed weights"


def test_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "_PACKAGES", ("no-such-package",))
    assert diagnostics.environment()["no-such-package"] == "not installed"


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "-m", "robert-large"]) == 2
    assert "did you mean 'roberta-large'" in capsys.readouterr().err
