"""Token ids to embeddings: models of transformers, loaded once a process."""

from __future__ import annotations

import copy
import functools
import importlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from flashbertscore import architectures, models
from flashbertscore.tokens import Tokens, tokenize

# Padded tokens of a batch: enough to keep the matrix units busy, little enough that a batch's
# activations stay in the caches of a CPU.
TOKEN_BUDGET = 4096

# Models kept loaded. More would only serve a caller who walks through many models, and would hold
# on to the memory of each.
CACHE_SIZE = 4

# Tokenizers without a limit declare int(1e30).
_NO_LIMIT = 1_000_000_000


@dataclass(frozen=True)
class Encoder:
    """A model cut at a layer, and its tokenizer.

    Attributes:
        name: what it was loaded by.
        tokenizer: of transformers, the fast one wherever the family has one.
        model: of transformers, in eval mode.
        prefix_space: whether the ids of the family have a space before the first word.
        all_layers: whether `encode` returns every hidden state.
        revision: commit of the Hub that the files are from; None for a folder.
    """

    name: str
    tokenizer: Any
    model: Any
    prefix_space: bool
    all_layers: bool
    revision: str | None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def max_length(self) -> int | None:
        """Ids a text may have: what the tokenizer declares, at most what the model can take."""
        declared = self.tokenizer.model_max_length
        limits = [declared if declared < _NO_LIMIT else None, self.position_limit]
        return min((int(limit) for limit in limits if limit is not None), default=None)

    @property
    def position_limit(self) -> int | None:
        """Tokens that the model's table of positions can tell apart, None if it has none."""
        return architectures.position_limit(self.model)

    @property
    def depth(self) -> int:
        """How many hidden states there are with all layers: layers + 1."""
        every = replace(self, all_layers=True)
        return len(every.encode(every.tokenize(["a"])))

    def with_parts(self, model: Any, tokenizer: Any, *, all_layers: bool) -> Encoder:  # noqa: ANN401
        """Return an encoder of these parts."""
        prefix_space = self.prefix_space
        if type(tokenizer) is not type(self.tokenizer):
            prefix_space = architectures.wants_prefix_space(type(tokenizer).__name__, None)
        return replace(
            self,
            model=model,
            tokenizer=tokenizer,
            prefix_space=prefix_space,
            all_layers=all_layers,
        )

    def own_tokenizer(self) -> Any:  # noqa: ANN401
        """Return a copy of the tokenizer whose settings others do not see."""
        return copy.copy(self.tokenizer)

    def of_last_layer(self) -> Encoder:
        """Return the encoder for the last layer that the model has."""
        return replace(self, all_layers=False)

    def own_positions(self, ids: list[int]) -> slice:
        """Where the text's own tokens are, without the special ones before and after them."""
        special = set(self.tokenizer.all_special_ids)
        own = [i for i, token in enumerate(ids) if token not in special]
        return slice(own[0], own[-1] + 1) if own else slice(0, 0)

    def tokenize(self, texts: list[str]) -> Tokens:
        """Return the ids of `texts` (see `flashbertscore.tokens.tokenize`)."""
        return tokenize(
            texts, self.tokenizer, prefix_space=self.prefix_space, max_length=self.max_length
        )

    def encode(
        self,
        tokens: Tokens,
        *,
        batch_size: int = 64,
        token_budget: int = TOKEN_BUDGET,
        progress: Callable[[int], object] | None = None,
    ) -> torch.Tensor:
        """Return the embedding of every token, packed as `tokens` packs the ids.

        Texts go through the model sorted by length, so that little of a batch is padding.

        Args:
            tokens: ids of n texts.
            batch_size: most texts of a batch.
            token_budget: most tokens of a batch, padding included; one text may have more.
            progress: called with the number of texts of each batch that is done.

        Returns:
            [T, D], or [L, T, D] with `all_layers` (L = layers + 1, the first the embedding layer);
            of the model's dtype, on its device. [0, 0] where there is no token at all.
        """
        packed = torch.empty(0, 0, device=self.device)
        if self.all_layers:
            packed = packed.unsqueeze(0)
        for texts in batches(tokens.lengths, batch_size, token_budget):
            hidden = self._forward(tokens, texts)
            if packed.shape[-1] == 0:
                packed = hidden.new_empty(*hidden.shape[:-2], len(tokens.ids), hidden.shape[-1])
            packed[..., tokens.rows(texts).to(hidden.device), :] = hidden
            if progress is not None:
                progress(len(texts))
        return packed

    def _forward(self, tokens: Tokens, texts: torch.Tensor) -> torch.Tensor:
        """Return [t, D] or [L, t, D], the t tokens of `texts` one text after another."""
        lengths = tokens.lengths[texts]
        real = torch.arange(int(lengths.max())) < lengths[:, None]  # [texts, longest]
        pad = self.tokenizer.pad_token_id
        # A tokenizer without a padding id: any id will do, the mask hides it.
        ids = torch.full(real.shape, 0 if pad is None else pad)
        ids[real] = tokens.ids[tokens.rows(texts)]
        mask: torch.Tensor | None = real.to(self.device, torch.int64)
        if bool(real.all()) and self.model.config.model_type in architectures.MASK_OPTIONAL:
            mask = None
        with torch.inference_mode():
            out = self.model(
                ids.to(self.device), attention_mask=mask, output_hidden_states=self.all_layers
            )
            real = real.to(self.device)
            if not self.all_layers:
                hidden: torch.Tensor = out[0][real]
                return hidden
            return torch.stack([state[real] for state in out.hidden_states])


def batches(lengths: torch.Tensor, batch_size: int, token_budget: int) -> Iterator[torch.Tensor]:
    """Split texts into batches of similar length, longest first; int64 [k] each.

    Texts without a token are in no batch.

    Raises:
        ValueError: `batch_size` is below 1.
    """
    if batch_size < 1:
        msg = f"batch_size: expected at least 1, got {batch_size}"
        raise ValueError(msg)
    order = lengths.argsort(descending=True, stable=True)
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        size = max(1, min(batch_size, token_budget // longest))
        yield order[start : start + size]
        start += size


_Key = tuple[str, int | None, str, torch.dtype, str | None]
_cache: OrderedDict[_Key, Encoder] = OrderedDict()
_lock = threading.RLock()


def load(
    model_type: str,
    num_layers: int,
    *,
    all_layers: bool = False,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
) -> Encoder:
    """Return the encoder for a model and layer, loading it at the first call.

    A process keeps the models it used last; `clear_cache` frees them. Safe to call from several
    threads: a model is loaded once.

    Weights come from safetensors where the model has them, else from a file that torch reads
    without running code in it; code that comes with a model is never run. They are float32 whatever
    the checkpoint holds, as under transformers 4, with which the published scores were made
    (transformers 5 would compute a half-precision checkpoint in half precision).

    Args:
        model_type: name on the Hub or path of a folder.
        num_layers: layers to keep; not read when `all_layers` is set.
        all_layers: let `Encoder.encode` return every hidden state.
        device: where the model goes.
        dtype: of weights and embeddings.
        revision: branch, tag or commit of the Hub; None takes the newest.

    Raises:
        AssertionError: the model has not that many layers.
        OSError: there is no such model, or it cannot be reached.
        ValueError: the architecture is not supported.
    """
    depth = None if all_layers else num_layers
    key: _Key = (model_type, depth, str(torch.device(device)), dtype, revision)
    with _lock:
        if key not in _cache:
            _cache[key] = _load(model_type, depth, torch.device(device), dtype, revision)
            while len(_cache) > CACHE_SIZE:
                _cache.popitem(last=False)
        _cache.move_to_end(key)
        return _cache[key]


def clear_cache() -> None:
    """Forget the loaded models; one that a scorer still uses is freed with the scorer."""
    with _lock:
        _cache.clear()


def evict(encoder: Encoder) -> None:
    """Forget one loaded model."""
    with _lock:
        for key in [key for key, kept in _cache.items() if kept.model is encoder.model]:
            del _cache[key]


def _load(
    model_type: str,
    num_layers: int | None,
    device: torch.device,
    dtype: torch.dtype,
    revision: str | None,
) -> Encoder:
    import transformers  # noqa: PLC0415 - a second of import time, only for those who encode

    name = models.hub_name(model_type)
    source = {"revision": revision or "main", "trust_remote_code": False}
    with _quiet(transformers.utils.logging):
        config = transformers.AutoConfig.from_pretrained(name, **source)
        tokenizer, prefix_space = _load_tokenizer(transformers, name, config, source)
        model = _load_model(transformers, name, config, dtype, source)
    return Encoder(
        name=model_type,
        tokenizer=tokenizer,
        model=_cut(model, num_layers, model_type).eval().to(device),
        prefix_space=prefix_space,
        all_layers=num_layers is None,
        revision=getattr(config, "_commit_hash", None),
    )


def load_model(model_type: str, num_layers: int | None) -> Any:  # noqa: ANN401
    """Return a model of transformers for the caller to own: not from the cache, on the CPU.

    Cut to `num_layers` layers, or whole where that is None; raises what `load` raises.
    """
    import transformers  # noqa: PLC0415

    name = models.hub_name(model_type)
    with _quiet(transformers.utils.logging):
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        model = _load_model(
            transformers, name, config, torch.float32, {"trust_remote_code": False}
        )
    return _cut(model, num_layers, model_type).eval()


def load_tokenizer(model_type: str) -> Any:  # noqa: ANN401
    """Return the tokenizer that `load` would give the encoder."""
    import transformers  # noqa: PLC0415

    with _quiet(transformers.utils.logging):
        return transformers.AutoTokenizer.from_pretrained(
            models.hub_name(model_type), use_fast=True, trust_remote_code=False
        )


def wants_prefix_space(tokenizer: Any) -> bool:  # noqa: ANN401
    """Whether ids of a tokenizer's family have a space before the first word (see `Encoder`).

    Read from the files that it was loaded from; where those are gone, from its class.
    """
    return _wants_prefix_space(str(tokenizer.name_or_path), type(tokenizer).__name__)


@functools.lru_cache(maxsize=64)
def _wants_prefix_space(name: str, cls: str) -> bool:
    import transformers  # noqa: PLC0415
    from transformers.models.auto.tokenization_auto import get_tokenizer_config  # noqa: PLC0415

    try:
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True)
        declared = get_tokenizer_config(name, local_files_only=True)
    except (OSError, ValueError):
        return architectures.wants_prefix_space(cls, None)
    declared_cls = declared.get("tokenizer_class") or getattr(config, "tokenizer_class", None)
    return architectures.wants_prefix_space(declared_cls, config.model_type)


def _cut(model: Any, num_layers: int | None, name: str) -> Any:  # noqa: ANN401
    if hasattr(model, "decoder") and hasattr(model, "encoder"):
        model = model.encoder
    if num_layers is not None:
        architectures.keep_layers(model, num_layers, name)
    return model


def _load_tokenizer(
    transformers: Any,  # noqa: ANN401
    name: str,
    config: Any,  # noqa: ANN401
    source: dict[str, Any],
) -> tuple[Any, bool]:
    from transformers.models.auto.tokenization_auto import get_tokenizer_config  # noqa: PLC0415

    tokenizer = transformers.AutoTokenizer.from_pretrained(name, use_fast=True, **source)
    declared = get_tokenizer_config(name, revision=source["revision"])
    cls = declared.get("tokenizer_class") or getattr(config, "tokenizer_class", None)
    return tokenizer, architectures.wants_prefix_space(cls, config.model_type)


def _load_model(
    transformers: Any,  # noqa: ANN401
    name: str,
    config: Any,  # noqa: ANN401
    dtype: torch.dtype,
    source: dict[str, Any],
) -> Any:  # noqa: ANN401
    cls = getattr(transformers, architectures.ENCODER_CLASSES.get(config.model_type, "AutoModel"))
    # The argument was renamed in transformers 4.56.
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    spelled = "dtype" if version >= (4, 56) else "torch_dtype"
    model, report = cls.from_pretrained(
        name,
        config=config,
        weights_only=True,
        output_loading_info=True,
        **{spelled: dtype},
        **source,
    )
    # Checkpoints without a pooler are common, and nothing here reads it.
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        msg = (
            f"{name}: {len(missing)} weights of {type(model).__name__} are not in the checkpoint "
            f"and were drawn at random ({', '.join(missing[:3])}, ...): the scores mean nothing"
        )
        warnings.warn(msg, stacklevel=2)
    return model


@contextmanager
def _quiet(log: Any) -> Iterator[None]:  # noqa: ANN401
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
