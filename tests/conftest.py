"""Fixtures that several test files share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.tiny_models import save_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function: family -> path of a tiny random model with its tokenizer."""
    root = tmp_path_factory.mktemp("models")

    def path(family: str) -> str:
        folder: Path = root / family
        return str(folder if folder.exists() else save_model(family, folder))

    return path
