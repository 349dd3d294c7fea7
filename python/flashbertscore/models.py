"""Which model and which layer: the defaults of bert-score 0.3.13 and the rules that apply them.

`model2layers` and `lang2model` are plain mutable tables, as in the reference: programs add their
own entries and both are read at every call.
"""

from __future__ import annotations

import difflib
import json
import operator
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

_LAYERS = Path(__file__).parent / "data" / "model_layers.tsv"


def _read_layers() -> dict[str, int]:
    lines = _LAYERS.read_text(encoding="utf-8").splitlines()[1:]
    return {model: int(layer) for model, layer in (line.split("\t") for line in lines)}


#: Default layer of each known model (the reference tuned them on WMT16 correlations).
model2layers: dict[str, int] = _read_layers()

#: Default model of each language; a language without an entry gets the multilingual BERT.
lang2model: defaultdict[str, str] = defaultdict(
    lambda: "bert-base-multilingual-cased",
    {
        "en": "roberta-large",
        "zh": "bert-base-chinese",
        "tr": "dbmdz/bert-base-turkish-cased",
        "en-sci": "allenai/scibert_scivocab_uncased",
    },
)

# Organisations to which the Hub moved models that once had a bare name: "FacebookAI/roberta-large"
# is "roberta-large".
_HUB_OWNERS = {
    "FacebookAI",
    "albert",
    "distilbert",
    "google-bert",
    "google-t5",
    "openai-community",
    "xlnet",
}

#: Names that the reference fetches as archives; the Hub has the same weights under these names.
SCIBERT = {
    "scibert-scivocab-uncased": "allenai/scibert_scivocab_uncased",
    "scibert-scivocab-cased": "allenai/scibert_scivocab_cased",
    "scibert-basevocab-uncased": "nfliu/scibert_basevocab_uncased",
    "scibert-basevocab-cased": "nfliu/scibert_basevocab_cased",
}

# How the configurations of transformers spell the number of (encoder) layers.
_DEPTH_KEYS = ("encoder_layers", "num_hidden_layers", "n_layers", "n_layer", "num_layers")


def hub_name(model_type: str) -> str:
    """Return the name to load `model_type` by: legacy "scibert-*" names become Hub names."""
    return SCIBERT.get(model_type, model_type)


def resolve(
    model_type: str | os.PathLike[str] | None,
    lang: str | None,
    num_layers: int | None,
) -> tuple[str, int]:
    """Settle model and layer as the reference does, and for local folders where it cannot.

    Args:
        model_type: a name on the Hub, or the path of a folder. None takes the default of `lang`.
        lang: language code, any case; only read when `model_type` is None.
        num_layers: the layer to use. None takes the default of the model: by its name, by its
            name before the Hub moved it under an organisation, or for a folder by the name that
            its config.json (or the Hub's cache layout) gives.

    Returns:
        `(model_type, num_layers)`, the model's name as it was given (it is part of the hash).
        Whether the model has that many layers is known, and checked, once it is loaded.

    Raises:
        AssertionError: neither `lang` nor `model_type` is given (as in the reference).
        TypeError: an argument of a wrong type.
        ValueError: no default layer is known; says what to pass.
    """
    if lang is None and model_type is None:
        msg = "Either lang or model_type should be specified"
        raise AssertionError(msg)
    if model_type is None:
        if not isinstance(lang, str):
            msg = f"lang: expected str, got {type(lang).__name__}"
            raise TypeError(msg)
        model_type = lang2model[lang.lower()]
    elif not isinstance(model_type, (str, os.PathLike)):
        msg = f"model_type: expected str or path, got {type(model_type).__name__}"
        raise TypeError(msg)
    model_type = os.fspath(model_type)
    if num_layers is None:
        return model_type, default_layer(model_type)
    try:
        return model_type, operator.index(num_layers)
    except TypeError:
        msg = f"num_layers: expected int, got {type(num_layers).__name__}"
        raise TypeError(msg) from None


def default_layer(model_type: str) -> int:
    """Return the default layer of `model_type`; ValueError where none is known (see resolve)."""
    layer = _known_layer(model_type)
    if layer is not None:
        return layer
    folder = Path(model_type)
    if not folder.is_dir():
        raise ValueError(_unknown_name(model_type))
    config = _read_config(folder)
    depth = next((config[key] for key in _DEPTH_KEYS if isinstance(config.get(key), int)), None)
    origin = config.get("_name_or_path") or _name_in_hub_cache(folder)
    layer = _known_layer(origin) if isinstance(origin, str) else None
    if layer is not None and (depth is None or layer <= depth):
        return layer
    raise ValueError(_unknown_folder(folder, depth))


def _known_layer(name: str) -> int | None:
    name = hub_name(name)
    if name in model2layers:
        return model2layers[name]
    owner, _, bare = name.partition("/")
    return model2layers.get(bare) if owner in _HUB_OWNERS else None


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # loading the model will say what is wrong with it; here it is just not known
    return config if isinstance(config, dict) else {}


def _name_in_hub_cache(folder: Path) -> str | None:
    """Read "org/name" out of .../models--org--name/snapshots/<revision>."""
    match = re.search(r"models--([^/\\]+)[/\\]snapshots[/\\][^/\\]+[/\\]?$", str(folder.absolute()))
    return match[1].replace("--", "/") if match else None


def _unknown_name(model_type: str) -> str:
    near = difflib.get_close_matches(model_type, model2layers, n=3)
    hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
    return (
        f"num_layers: no default layer is known for model_type={model_type!r}{hint}; it is "
        f"neither one of the {len(model2layers)} names in flashbertscore.models.model2layers nor "
        "a folder. Pass num_layers=K, the layer to take embeddings from."
    )


def _unknown_folder(folder: Path, depth: int | None) -> str:
    span = f"between 0 and {depth}, its number of layers" if depth is not None else "yourself"
    same = model2layers.get(folder.name)
    hint = f"; the default of {folder.name!r} is {same}" if same is not None else ""
    return (
        f"num_layers: no default layer is known for the model in {str(folder)!r}. "
        f"Pass num_layers {span}{hint}."
    )
