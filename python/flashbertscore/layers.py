"""Whole layers of encoders of BERT's kind in one call, where every part of them is ours already.

Between two modules of transformers all tokens of a batch go through memory, which is slower than
our products on it: in one call a few texts go through a layer in the caches of one core
(:func:`flashbertscore.linear.encoder_layer`), padding is not computed, and the embedding of a text
has the same bits in any batch. A layer is served where its attention is
(`flashbertscore.attention`), its linear layers are packed (`flashbertscore.prepack`) and its
modules are put together as in BERT. In any other call the layer runs as transformers wrote it.

Its weights are packed for our kernels then. Module by module oneDNN's product is some 3 % faster
than ours, so in other models it stays.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flashbertscore import attention, linear
from flashbertscore.prepack import PackedLinear

if TYPE_CHECKING:
    from flashbertscore.attention import _Batch

_log = logging.getLogger("flashbertscore")

# Children of the modules of a layer; of the attention those that hold weights, or compute nothing.
_LAYER = {"attention", "intermediate", "output"}
_ATTENTION = {"self", "output"}
_SELF = {"query", "key", "value"}
_OUTPUT = {"dense", "LayerNorm"}
_INTERMEDIATE = {"dense", "intermediate_act_fn"}
_IDLE = {"dropout"}  # nothing in eval mode


class _Layer(attention._Served):  # noqa: SLF001 - the same conditions, for a whole layer
    """What stands before the class of a layer that one call serves."""

    attends = False
    as_tuple: bool  # whether the plain layer returns one

    def served(self, hidden: Tensor, batch: _Batch) -> Tensor | None:
        weights = _weights(self)
        return None if weights is None else linear.encoder_layer(hidden, batch.lengths, weights)

    def result(self, hidden: Tensor) -> Any:
        return (hidden,) if self.as_tuple else hidden


# The modules inside each served layer, as they were when it was tried: with others in their place
# it is another layer.
_parts: weakref.WeakKeyDictionary[nn.Module, tuple[nn.Module, ...]] = weakref.WeakKeyDictionary()


def _inside(layer: nn.Module) -> tuple[nn.Module, ...]:
    return tuple(layer.modules())[1:]


def _expects_a_call(module: nn.Module) -> bool:
    """Whether a call of this module does more than what it was made for: it has to be called."""
    return bool(
        module.training  # dropout that is on, as in Monte Carlo dropout
        or module._forward_hooks  # noqa: SLF001
        or module._forward_pre_hooks  # noqa: SLF001
        or "forward" in module.__dict__
    )


def _denses(layer: Any) -> list[Any]:
    own = layer.attention.self
    others = (layer.attention.output, layer.intermediate, layer.output)
    return [own.query, own.key, own.value, *(module.dense for module in others)]


def _weights(layer: Any) -> linear.LayerWeights | None:
    """The weights of a layer, None where it is not, or no longer, one that a call can serve."""
    inside = _inside(layer)
    if inside != _parts.get(layer) or any(map(_expects_a_call, inside)):
        return None
    own, denses = layer.attention.self, _denses(layer)
    norms = [layer.attention.output.LayerNorm, layer.output.LayerNorm]
    panels = [p for m in denses if (p := m.in_panels())]
    if (
        len(panels) < len(denses)
        or not isinstance(own, attention._Served)  # noqa: SLF001
        or not all(map(_is_norm, norms))
    ):
        return None
    query, key, value, projected, up, down = panels
    first, last = (linear.Norm(norm.weight, norm.bias, norm.eps) for norm in norms)
    return linear.LayerWeights(
        layer.attention.self.num_attention_heads,
        query,
        key,
        value,
        projected,
        first,
        up,
        layer.intermediate.dense.fused,
        down,
        last,
    )


def install(model: nn.Module) -> int:
    """Let one call serve each layer of a model, where all of them are of the kind we know.

    The model is run twice on random ids, before and after; where the embeddings of the two differ
    by more than `attention.TOLERANCE` it stays as it was, and a line at INFO says so.

    Args:
        model: after `prepack.prepack` and `attention.install`; any other is left alone.

    Returns:
        How many layers are served, 0 if none.
    """
    layers: list[Any] = [module for module in model.modules() if _is_layer(module)]
    if not layers or len(layers) != attention.served_layers(model):
        return 0
    name = type(model).__name__
    try:
        returned: list[Any] = []
        hook = layers[0].register_forward_hook(lambda _, __, out: returned.append(out))
        try:
            plain = attention.tried(model)[0]
        finally:
            hook.remove()
        as_tuple = isinstance(returned[0], tuple)
        for layer in layers:
            for dense in _denses(layer):
                dense.pack_for(ours=True)
            layer.__class__ = _served_class(type(layer), as_tuple=as_tuple)
            _parts[layer] = _inside(layer)
        found, served = attention.tried(model)
        difference = float((found - plain).abs().max() / plain.abs().max())
    except Exception as error:  # noqa: BLE001 - not a model we know: it stays as it was
        uninstall(model)
        _log.info("layers of %s: module by module, since a trial failed: %r", name, error)
        return 0
    if served != len(layers) or not difference <= attention.TOLERANCE[plain.dtype]:
        uninstall(model)
        _log.info(
            "layers of %s: module by module, since one call served %d of %d and differed by %.1e",
            name,
            served,
            len(layers),
            difference,
        )
        return 0
    return len(layers)


def uninstall(model: nn.Module) -> None:
    """Give every served layer its own class back, and its weights to oneDNN."""
    for module in model.modules():
        if isinstance(module, _Layer):
            served: Any = module
            served.__class__ = module.plain
        elif isinstance(module, PackedLinear):
            module.pack_for(ours=False)


def served_layers(model: nn.Module) -> int:
    """How many layers of a model run in one call."""
    return sum(isinstance(m, _Layer) and _weights(m) is not None for m in model.modules())


def _served_class(plain: type[nn.Module], *, as_tuple: bool) -> type[nn.Module]:
    return type(f"Flash{plain.__name__}", (_Layer, plain), {"plain": plain, "as_tuple": as_tuple})


def _is_layer(module: nn.Module) -> bool:
    """Whether a module is put together as BERT's layer, of parts that our kernels know."""
    layer: Any = module
    if isinstance(module, _Layer) or not _has(layer, _LAYER):
        return False
    if not _has(layer.attention, _ATTENTION):
        return False
    parts = (
        (layer.attention.self, _SELF),
        (layer.attention.output, _OUTPUT),
        (layer.intermediate, _INTERMEDIATE),
        (layer.output, _OUTPUT),
    )
    up = layer.intermediate.dense
    return (
        all(_has(part, names) for part, names in parts)
        and all(_is_norm(part.LayerNorm) for part in (layer.attention.output, layer.output))
        and all(isinstance(m, PackedLinear) and m.could_be_ours for m in _denses(layer))
        and all(dense.fused == "none" for dense in _denses(layer) if dense is not up)
        and type(layer.intermediate.intermediate_act_fn) is nn.Identity
    )


def _has(module: nn.Module, names: set[str]) -> bool:
    return {name for name, _ in module.named_children()} - _IDLE == names


def _is_norm(module: nn.Module) -> bool:
    return (
        type(module) is nn.LayerNorm
        and len(module.normalized_shape) == 1
        and module.weight is not None
        and module.weight.dtype == torch.float32
        and module.bias is not None
    )
