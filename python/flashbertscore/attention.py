"""Our self-attention kernel inside the encoders of transformers, where they are BERT's kind.

torch's ``scaled_dot_product_attention`` takes a fifth of an encoder's time on sentences. A layer is
served by ours where its attention is the plain bidirectional one and the caller says which tokens
are real (:func:`padded`): padding then costs nothing, and no mask is read. In every other call, in
training, with gradients and in a copy of the model the layer runs as transformers wrote it.

Layers are served by a subclass of their class, put in its place: transformers 4 has no attention
interface in these families, their layers call torch themselves.
"""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import CancelledError
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flashbertscore import architectures, ops

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

_log = logging.getLogger("flashbertscore")

#: Largest difference that our attention may make to the embedding of a real token, as a share of
#: the largest value. bfloat16 has 8 bits, and what is rounded in a layer goes through all others.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-2}

# Lengths of the texts on which a model is tried: below, at and above one vector of keys.
_TRIED = (19, 16, 5, 1)

# Arguments of a layer that say nothing about how it attends.
_INERT = frozenset(
    {"cache_position", "output_hidden_states", "position_ids", "return_dict", "use_cache"}
)
_INPUTS = ("hidden_states", "query", "key", "value")
_MASKS = frozenset({"attention_mask", "mask"})


class _Batch:
    """Lengths of the texts that a model is run on, and how many layers made use of them."""

    def __init__(self, lengths: Tensor, given_up: threading.Event | None = None) -> None:
        self.lengths = lengths.contiguous()
        self.given_up = given_up
        self.shape = (len(lengths), int(lengths.max()) if len(lengths) else 0)
        self.served = 0


_batch: ContextVar[_Batch | None] = ContextVar("flashbertscore_batch", default=None)


@contextlib.contextmanager
def padded(lengths: Tensor, given_up: threading.Event | None = None) -> Iterator[None]:
    """Let served layers use our kernel in the calls of a model that follow.

    Args:
        lengths: int64 [B] on the CPU. In the batch that the model gets text b is tokens 0 to
            lengths[b] - 1 of max(lengths), and its attention mask says the same.
        given_up: served layers raise CancelledError once it is set: nobody waits for the result.
    """
    with _running(_Batch(lengths, given_up)):
        yield


@contextlib.contextmanager
def _running(batch: _Batch) -> Iterator[None]:
    token = _batch.set(batch)
    try:
        yield
    finally:
        _batch.reset(token)


class _Served(nn.Module):
    """What stands before the class of an attention layer that our kernel serves."""

    plain: type[nn.Module]
    attends = True  # by itself: a whole layer has a module that does
    positional = 2  # arguments without a name that `batch` knows: the input, the mask

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        named = [kwargs[name] for name in _INPUTS if name in kwargs]
        hidden, *others = named or args[:1]
        batch = _batch.get()
        if (
            batch is None
            or self.training
            or torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or hidden.device.type != "cpu"
            or hidden.dtype not in TOLERANCE
            or hidden.shape[:2] != batch.shape
            or any(other is not hidden for other in others)
            or any(value is not None and value is not False for value in self.unknown(args, kwargs))
            or (found := self.served(hidden, batch)) is None
        ):
            return super().forward(*args, **kwargs)
        if batch.given_up is not None and batch.given_up.is_set():
            raise CancelledError
        batch.served += 1
        return self.result(found)

    def result(self, hidden: Tensor) -> Any:
        """What the plain layer returns."""
        return hidden, None

    def unknown(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Values of the arguments that would change what the layer does."""
        known = _INERT | _MASKS | set(_INPUTS)
        return [*args[self.positional :], *(v for k, v in kwargs.items() if k not in known)]

    def served(self, hidden: Tensor, batch: _Batch) -> Tensor | None:
        """The layer's output for a batch [B, L, D], with our kernel.

        None where the layer is no longer what the kernel was chosen for.
        """
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Make copies, and what is pickled, of the plain class again."""
        reduced: Any = super().__reduce_ex__(protocol)
        return (object.__new__, (self.plain,), *reduced[2:])


class _Bert(_Served):
    """BERT and its kin: three projections."""

    def served(self: Any, hidden: Tensor, batch: _Batch) -> Tensor:
        q, k, v = self.query(hidden), self.key(hidden), self.value(hidden)
        return _attend(q, k, v, self.num_attention_heads, batch)


class _Albert(_Bert):
    """ALBERT: the output's projection, the residual and the norm are in the same module."""

    def served(self: Any, hidden: Tensor, batch: _Batch) -> Tensor:
        attended = self.dense(super().served(hidden, batch))
        normed: Tensor = self.LayerNorm(hidden + attended)
        return normed


class _DistilBert(_Served):
    """DistilBERT: other names, and the output's projection."""

    positional = 1

    def served(self: Any, hidden: Tensor, batch: _Batch) -> Tensor:
        q, k, v = self.q_lin(hidden), self.k_lin(hidden), self.v_lin(hidden)
        projected: Tensor = self.out_lin(_attend(q, k, v, self.n_heads, batch))
        return projected


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int, batch: _Batch) -> Tensor:
    """Attention between projected [B, L, H * d]; the same shape, zero at the padding."""

    def split(x: Tensor) -> Tensor:
        return x.view(*batch.shape, heads, -1).transpose(1, 2)

    return ops.self_attention(split(q), split(k), split(v), batch.lengths)


#: Model types whose layers attend as softmax(Q K^T / sqrt(d)) V to all tokens of the text and to
#: nothing else (no relative positions, windows or causal mask), and the form their layers have.
FAMILIES: dict[str, type[_Served]] = {
    "albert": _Albert,
    "bert": _Bert,
    "bert-generation": _Bert,
    "camembert": _Bert,
    "data2vec-text": _Bert,
    "distilbert": _DistilBert,
    "electra": _Bert,
    "ernie": _Bert,
    "megatron-bert": _Bert,
    "rembert": _Bert,
    "roberta": _Bert,
    "roberta-prelayernorm": _Bert,
    "roc_bert": _Bert,
    "xlm-roberta": _Bert,
    "xlm-roberta-xl": _Bert,
    "xmod": _Bert,
}


def install(model: nn.Module) -> int:
    """Let our kernel serve the attention of a model, if it is of a kind that we know.

    The model is run twice on random ids, without our kernel and with it; where the embeddings of
    the two differ by more than `TOLERANCE` it stays as it was, and a line at INFO says so.

    Args:
        model: of transformers, on the CPU, in eval mode; anything else is left alone.

    Returns:
        How many layers are served, 0 if none.
    """
    layers = _candidates(model)
    if not layers:
        return 0
    name = type(model).__name__
    try:
        plain = _tried(model, _Batch(torch.tensor([])))
        classes = {type(layer): _served_class(form, type(layer)) for layer, form in layers}
        for layer, _ in layers:
            layer.__class__ = classes[type(layer)]
        batch = _Batch(_lengths(model))
        difference = float((_tried(model, batch) - plain).abs().max() / plain.abs().max())
    except Exception as error:  # noqa: BLE001 - not a model we know: it stays as it was
        uninstall(model)
        _log.info("attention of %s: torch's, since a trial failed: %r", name, error)
        return 0
    if batch.served < len(layers) or not difference <= TOLERANCE[plain.dtype]:
        uninstall(model)
        _log.info(
            "attention of %s: torch's, since ours served %d of %d layers and differed by %.1e",
            name,
            batch.served,
            len(layers),
            difference,
        )
        return 0
    return len(layers)


def uninstall(model: nn.Module) -> None:
    """Give every served layer its own class back."""
    for module in model.modules():
        if isinstance(module, _Served) and module.attends:
            served: Any = module
            served.__class__ = module.plain


def served_layers(model: nn.Module) -> int:
    """How many layers of a model our kernel serves."""
    return sum(isinstance(m, _Served) and m.attends for m in model.modules())


def _candidates(model: nn.Module) -> list[tuple[nn.Module, type[_Served]]]:
    """The attention layers of a model that our kernel could serve, and their forms."""
    config: Any = getattr(model, "config", None)
    form = FAMILIES.get(getattr(config, "model_type", ""))
    parameter = next(model.parameters(), None)
    if (
        form is None
        or parameter is None
        or model.training
        or parameter.device.type != "cpu"
        or parameter.dtype not in TOLERANCE
        or getattr(config, "is_decoder", False)
        or getattr(config, "position_embedding_type", None) not in {None, "absolute"}
    ):
        return []
    return [(module, form) for module in model.modules() if _attends(module, form)]


def _attends(module: nn.Module, form: type[_Served]) -> bool:
    names = {
        _Bert: ("query", "key", "value", "num_attention_heads"),
        _Albert: ("query", "key", "value", "num_attention_heads", "dense", "LayerNorm"),
        _DistilBert: ("q_lin", "k_lin", "v_lin", "out_lin", "n_heads"),
    }[form]
    return not isinstance(module, _Served) and all(hasattr(module, name) for name in names)


def _served_class(form: type[_Served], plain: type[nn.Module]) -> type[nn.Module]:
    return type(f"Flash{plain.__name__}", (form, plain), {"plain": plain})


def tried(model: nn.Module) -> tuple[Tensor, int]:
    """Embeddings of the tokens of random texts, [T, D], and how many layers were served."""
    batch = _Batch(_lengths(model))
    return _tried(model, batch), batch.served


def _lengths(model: nn.Module) -> Tensor:
    limit = architectures.position_limit(model) or max(_TRIED)
    return torch.tensor(_TRIED).clamp(max=limit)


def _tried(model: Any, batch: _Batch) -> Tensor:
    """Embeddings of the tokens of random texts, [T, D]."""
    lengths = _lengths(model)
    real = torch.arange(int(lengths.max())) < lengths[:, None]
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(model.get_input_embeddings().num_embeddings, real.shape, generator=random)
    with torch.inference_mode(), _running(batch):
        hidden: Tensor = model(ids, attention_mask=real.long())[0]
        return hidden[real]
