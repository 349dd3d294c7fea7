"""Models and tokenizers from files or the Hub: the one file that knows transformers."""

from __future__ import annotations

import importlib
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flashbertscore import architectures, models

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where a tokenizer carries whether texts get a space before their first word: its class does not
# say it, transformers 5 has one class for RoBERTa and BART.
_PREFIX_SPACE = "flashbertscore_prefix_space"


def load_tokenizer(model_type: str, revision: str | None = None) -> Any:
    """Return the tokenizer of a model, with the rules of transformers 4 under transformers 5 too.

    The fast one wherever the family has one. `wants_prefix_space` says how to call it.

    Raises:
        OSError: there is no such model, or it cannot be reached.
    """
    transformers = _transformers()
    name = models.hub_name(model_type)
    with _quiet(transformers.utils.logging):
        config = transformers.AutoConfig.from_pretrained(name, **_source(revision))
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            name, use_fast=True, **_source(revision)
        )
        auto: Any = importlib.import_module("transformers.models.auto.tokenization_auto")
        declared = auto.get_tokenizer_config(name, revision=revision or "main")
        if _version(transformers) >= (5, 0):
            _publish(transformers, tokenizer, name, revision)
    cls = declared.get("tokenizer_class") or getattr(config, "tokenizer_class", None)
    prefix_space = architectures.wants_prefix_space(
        cls, config.model_type, saved_by_5="backend" in declared
    )
    setattr(tokenizer, _PREFIX_SPACE, prefix_space)
    return tokenizer


def wants_prefix_space(tokenizer: Any) -> bool:
    """Whether texts get a space before their first word with this tokenizer.

    For one that `load_tokenizer` did not load, its class decides, as in the reference.
    """
    cls = type(tokenizer).__name__
    known = getattr(tokenizer, _PREFIX_SPACE, None)
    return architectures.wants_prefix_space(cls, None) if known is None else bool(known)


def load_model(
    model_type: str,
    num_layers: int | None,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
) -> Any:
    """Return a model up to a layer (None: all of them), without decoder, in eval mode.

    Raises:
        AssertionError: the model has not that many layers.
        OSError: there is no such model, or it cannot be reached.
        ValueError: the architecture is not supported.
    """
    transformers = _transformers()
    name = models.hub_name(model_type)
    with _quiet(transformers.utils.logging):
        config = transformers.AutoConfig.from_pretrained(name, **_source(revision))
        cls = getattr(
            transformers, architectures.ENCODER_CLASSES.get(config.model_type, "AutoModel")
        )
        # The argument was renamed in transformers 4.56.
        spelled = "dtype" if _version(transformers) >= (4, 56) else "torch_dtype"
        model, report = cls.from_pretrained(
            name,
            config=config,
            weights_only=True,
            output_loading_info=True,
            **{spelled: dtype},
            **_source(revision),
        )
    if hasattr(model, "decoder") and hasattr(model, "encoder"):
        model = model.encoder
    if num_layers is not None:
        architectures.keep_layers(model, num_layers, model_type)
    architectures.keep_block_sparse(model)
    # Checkpoints without a pooler are common, and nothing here reads it.
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        msg = (
            f"{name}: {len(missing)} weights of {type(model).__name__} are not in the checkpoint "
            f"and were drawn at random ({', '.join(missing[:3])}, ...): the scores mean nothing"
        )
        warnings.warn(msg, stacklevel=2)
    return model.eval().to(device)


def commit(model_type: str, revision: str | None = None) -> str | None:
    """Return the commit of the Hub that a loaded model is from, None for a folder.

    From where its config lies in the Hub's cache: configs themselves stopped saying it with
    transformers 5.
    """
    name = models.hub_name(model_type)
    if Path(name).is_dir():
        return None
    hub: Any = importlib.import_module("huggingface_hub")
    found = hub.try_to_load_from_cache(name, "config.json", revision=revision or "main")
    return Path(found).parent.name if isinstance(found, str) else None


def _transformers() -> Any:
    import transformers  # noqa: PLC0415 - a second of import time, only for those who encode

    return transformers


def _version(transformers: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in transformers.__version__.split(".")[:2])


def _source(revision: str | None) -> dict[str, Any]:
    return {"revision": revision or "main", "trust_remote_code": False}


def _publish(transformers: Any, tokenizer: Any, name: str, revision: str | None) -> None:
    """Give a tokenizer of transformers 5 the rules by which transformers 4 made ids.

    Version 4 took tokenizer.json as it is, and converted a sentencepiece file with the table of
    characters that is in it. Version 5 builds the rules anew from the class: DeBERTa-v2 then
    forgets that table, and "..." written as one character becomes unknown (docs/token_ids.md).
    """
    if not getattr(tokenizer, "is_fast", False):
        return
    file = transformers.utils.cached_file(
        name,
        "tokenizer.json",
        revision=revision or "main",
        _raise_exceptions_for_missing_entries=False,
    )
    if file is not None:
        tokenizer._tokenizer = _as_version_4(tokenizer, file)  # noqa: SLF001
        return
    convert: Any = importlib.import_module("transformers.convert_slow_tokenizer")
    converter = convert.SLOW_TO_FAST_CONVERTERS.get(type(tokenizer).__name__)
    if converter is None or not issubclass(converter, convert.SpmConverter):
        return
    if str(getattr(tokenizer, "vocab_file", "")).endswith(".model"):
        made = converter(tokenizer)
        backend = tokenizer.backend_tokenizer
        backend.normalizer = made.normalizer(made.proto)
        backend.pre_tokenizer = made.pre_tokenizer(
            replacement="\N{LOWER ONE EIGHTH BLOCK}", add_prefix_space=True
        )


def _as_version_4(tokenizer: Any, file: str) -> Any:
    """Return the rules in tokenizer.json, with what tokenizer_config.json says of them."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers  # noqa: PLC0415

    backend = Tokenizer.from_file(file)
    backend.no_truncation()
    backend.no_padding()
    normalizer = backend.normalizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        for rule, setting in (
            ("lowercase", "do_lower_case"),
            ("strip_accents", "strip_accents"),
            ("handle_chinese_chars", "tokenize_chinese_chars"),
        ):
            if hasattr(tokenizer, setting):
                setattr(normalizer, rule, getattr(tokenizer, setting))
    if isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        backend.pre_tokenizer.add_prefix_space = tokenizer.add_prefix_space
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for _, token in sorted(tokenizer.backend_tokenizer.get_added_tokens_decoder().items()):
        if token.content not in known:
            backend.add_tokens([token])
    return backend


@contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Keep `transformers.utils.logging` off the terminal; downloads still show their progress."""
    # Not typed: huggingface_hub exports these functions without saying so.
    hub: Any = importlib.import_module("huggingface_hub.utils")
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    hidden = hub.are_progress_bars_disabled()
    restore_hub = hub.disable_progress_bars if hidden else hub.enable_progress_bars
    log.set_verbosity_error()
    log.disable_progress_bar()  # the bar of "Loading weights", and with it those of downloads
    restore_hub()
    try:
        with warnings.catch_warnings():
            # What transformers makes of deprecated parts of torch is not for those who score texts.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
        restore_hub()
