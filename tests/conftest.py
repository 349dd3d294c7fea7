"""Fixtures that every test file may use."""

from __future__ import annotations

import os

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
