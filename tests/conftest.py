"""Fixtures that every test file may use."""

from __future__ import annotations

import os
from collections.abc import Callable

# Nothing in the suite may ask a network for a model.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch

from backends import BACKENDS, Backend


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def op(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The op on one backend: each instruction set of this processor, and the tiled fall-back."""
    backend: Backend = request.param
    if reason := backend.skip_reason():
        pytest.skip(f"{backend.name}: {reason}")
    backend.select(monkeypatch)
    return backend


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20261129)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function: family -> path of a tiny random model with its tokenizer."""
    # The op's tests run where sentencepiece is not installed, too.
    from helpers.tiny_models import save_model  # noqa: PLC0415

    root = tmp_path_factory.mktemp("models")

    def path(family: str) -> str:
        folder = root / family
        return str(folder if folder.exists() else save_model(family, folder))

    return path
