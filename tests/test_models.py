"""Defaults of model and layer: the reference's tables, its rules, and folders."""

import json
from pathlib import Path
from typing import Any

import bert_score.utils as reference
import numpy as np
import pytest

from flashbertscore import models


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    def write(name: str = "model", **config: dict[str, Any]) -> str:
        path = tmp_path / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return str(path)

    return write


def test_every_layer_default_is_the_references() -> None:
    assert list(models.model2layers.items()) == list(reference.model2layers.items())
    assert len(models.model2layers) == 140


def test_language_defaults_are_the_references() -> None:
    assert dict(models.lang2model) == {
        "en": "roberta-large",
        "zh": "bert-base-chinese",
        "tr": "dbmdz/bert-base-turkish-cased",
        "en-sci": "allenai/scibert_scivocab_uncased",
    }
    for lang in ("en", "zh", "tr", "en-sci", "de", "tlh"):
        assert models.lang2model[lang] == reference.lang2model[lang]
    assert "tlh" in models.lang2model  # looking up inserts, as in the reference
    del models.lang2model["tlh"], models.lang2model["de"]


@pytest.mark.parametrize(
    ("model_type", "lang", "num_layers", "expected"),
    [
        (None, "EN", None, ("roberta-large", 17)),
        (None, "en", 3, ("roberta-large", 3)),
        ("bert-base-uncased", None, None, ("bert-base-uncased", 9)),
        ("bert-base-uncased", "en", 0, ("bert-base-uncased", 0)),
        ("bert-base-uncased", None, np.int64(4), ("bert-base-uncased", 4)),
        ("amazon/bort", None, None, ("amazon/bort", 0)),
        ("no/such-model", None, 4, ("no/such-model", 4)),
        ("FacebookAI/roberta-large", None, None, ("FacebookAI/roberta-large", 17)),
        ("google-t5/t5-base", None, None, ("google-t5/t5-base", 11)),
        ("scibert-scivocab-cased", None, None, ("scibert-scivocab-cased", 9)),
        (Path("some") / "where", None, 2, (str(Path("some") / "where"), 2)),
    ],
)
def test_resolve(model_type: Any, lang: str | None, num_layers: int, expected: Any) -> None:
    assert models.resolve(model_type, lang, num_layers) == expected


def test_users_may_add_to_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.model2layers, "mine", 5)
    monkeypatch.setitem(models.lang2model, "xx", "mine")
    assert models.resolve(None, "xx", None) == ("mine", 5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, None, None), AssertionError, "^Either lang or model_type should be specified$"),
        ((None, 3, None), TypeError, "lang: expected str, got int"),
        ((3, "en", None), TypeError, "model_type: expected str or path, got int"),
        (("roberta-large", None, "17"), TypeError, "num_layers: expected int, got str"),
        (("roberta-large", None, 1.0), TypeError, "num_layers: expected int, got float"),
        (("robert-large", None, None), ValueError, "did you mean 'roberta-large'"),
        (("someone/roberta-large", None, None), ValueError, "Pass num_layers=K"),
        (("./not/there", None, None), ValueError, "nor a folder"),
    ],
)
def test_what_cannot_be_resolved_says_so(
    arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        models.resolve(*arguments)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"_name_or_path": "roberta-large", "num_hidden_layers": 24}, 17),
        ({"_name_or_path": "FacebookAI/roberta-large", "num_hidden_layers": 24}, 17),
        ({"_name_or_path": "t5-small", "num_layers": 6}, 6),
        ({"_name_or_path": "distilbert-base-uncased", "n_layers": 6}, 5),
    ],
)
def test_folder_takes_the_layer_of_the_name_in_its_config(
    folder: Any, config: dict[str, Any], expected: Any
) -> None:
    path = folder(**config)
    assert models.resolve(path, None, None) == (path, expected)
    assert models.resolve(path, "en", 2) == (path, 2)


def test_folder_in_the_hub_cache_takes_the_layer_of_its_name(folder: Any) -> None:
    path = folder("models--FacebookAI--roberta-large/snapshots/0123abc", num_hidden_layers=24)
    assert models.default_layer(path) == 17


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("model", {}, "Pass num_layers yourself"),
        ("model", {"_name_or_path": "me/mine", "n_layer": 3}, "Pass num_layers between 0 and 3"),
        # A model cut out of roberta-large has no layer 17.
        ("m", {"_name_or_path": "roberta-large", "num_hidden_layers": 6}, "between 0 and 6"),
        # A folder's own name is only a hint: what lies in it may be anything.
        ("roberta-large", {"num_hidden_layers": 24}, "the default of 'roberta-large' is 17"),
        ("model", {"_name_or_path": 7}, "Pass num_layers"),
    ],
)
def test_folder_of_an_unknown_model_says_what_to_pass(
    folder: Any, name: str, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        models.resolve(folder(name, **config), None, None)


@pytest.mark.parametrize("content", [None, b"{", b"[]", b"\xff\xfe"])
def test_folder_without_a_readable_config_is_just_unknown(
    tmp_path: Path, content: str | bytes
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match="Pass num_layers yourself"):
        models.resolve(str(tmp_path), None, None)
