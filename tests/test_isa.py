"""Fear: another instruction set runs than the one asked for, or than isa() tells."""

from __future__ import annotations

import pytest
import torch

from flashbertscore import functional, isa, isas


def test_the_best_runs_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASHBERTSCORE_ISA", raising=False)
    assert isa() == isas()[0]
    assert isas()[-2:] == ["generic", "scalar"]


@pytest.mark.parametrize("name", isas())
def test_environment_variable_forces_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("FLASHBERTSCORE_ISA", name)
    assert isa() == name


def test_unknown_name_is_refused_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHBERTSCORE_ISA", "avx1024")
    for call in (isa, lambda: functional.bertscore(torch.ones(1, 1, 1), torch.ones(1, 1, 1))):
        with pytest.raises(ValueError, match=r"FLASHBERTSCORE_ISA: expected one of .*scalar, got"):
            call()


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHBERTSCORE_ISA", "")
    assert isa() == isas()[0]
