"""Linear layers of a loaded encoder on weights that were packed once, on CPUs.

torch gives nn.Linear in float32 to a matrix product that packs the weight at every call and, on
some processors, uses half of the vector width. oneDNN's own product on a packed weight reaches the
machine's limit, and applies the activation while the result is in registers. Where whole layers
are ours (`flashbertscore.layers`) the weights are packed for `flashbertscore.linear` instead.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from flashbertscore import linear as own

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PackedLinear", "available", "count", "nbytes", "numel", "prepack"]

_log = logging.getLogger("flashbertscore")

# Largest difference to nn.Linear, relative to the largest value, that a packed layer may have: some
# ten roundings of a sum in the dtype.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}

# Below this many weights a product costs less than the call around it.
_FEWEST_WEIGHTS = 512


class _Activation(NamedTuple):
    """How oneDNN names an activation (ours has the same names), and the module that computes it."""

    name: str
    algorithm: str
    module: nn.Module


class PackedLinear(nn.Module):
    """An nn.Linear, and the activation behind it if there is one, on a packed weight.

    It is the plain layer again, for good, as soon as someone reads its weight, moves it, trains it
    or feeds it what the packed product does not take.

    Args:
        linear: the layer, float32 or bfloat16, on a CPU.
        activation: applied to what the layer gives.

    Raises:
        RuntimeError: this build of torch, or this processor, cannot do it.
    """

    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear, activation: _Activation | None = None) -> None:
        """Pack the weight of `linear`."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.dtype = linear.weight.dtype
        self.register_parameter("bias", linear.bias)
        self._trainable = linear.weight.requires_grad
        self.activation = activation.module if activation else nn.Identity()
        self._name, self._algorithm = activation[:2] if activation else ("none", "")
        self._ours = False
        self._packed: torch.Tensor | None = _pack(linear.weight)
        self.train(linear.training)

    @property
    def fused(self) -> str:
        """Name of the activation that `forward` applies, "none" without."""
        return self._name

    @property
    def could_be_ours(self) -> bool:
        """Whether our kernels can take the layer as it is packed now."""
        return self._packed is not None and self._suits(self._packed)

    def _suits(self, weight: torch.Tensor) -> bool:
        return own.serves(weight) and self._name in own.ACTIVATIONS and self._algorithm != "tanh"

    def pack_for(self, *, ours: bool) -> None:
        """Pack the weight for our kernels, or for oneDNN again."""
        packed = self._packed
        if packed is None or ours == self._ours:
            return
        weight = self._dense(packed)
        self._ours, self._packed = ours, own.pack(weight) if ours else _pack(weight)

    def in_panels(self) -> own.Packed | None:
        """Return the layer as our kernels take it, None where it is not packed for them now."""
        packed = self._packed
        if packed is None or packed.is_mkldnn or packed.shape[2] != own.columns():
            return None
        return own.Packed(packed, self.out_features, self.bias)

    @property
    def packed(self) -> torch.Tensor | None:
        """The packed weight, None in a layer that is plain again."""
        return self._packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activation(x weight^T + bias); x is [..., in_features]."""
        packed = self._packed  # once: another thread may unpack it meanwhile
        if packed is not None:
            if x.dtype == self.dtype and x.numel() > 0 and not self._needs_gradient(x):
                if packed.is_mkldnn:
                    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
                        x, packed, self.bias, self._name, [], self._algorithm
                    )
                    return out
                if packed.shape[2] == own.columns():
                    return own.linear(x, packed, self.out_features, self.bias, self._name)
            self.unpack()
        plain: torch.Tensor = self.activation(functional.linear(x, self.weight, self.bias))
        return plain

    def unpack(self) -> None:
        """Become the plain layer."""
        packed = self._packed
        if packed is None:
            return
        with torch.inference_mode(mode=False):  # T5 reads weights in it, and may be trained later
            weight = nn.Parameter(self._dense(packed), requires_grad=self._trainable)
        # In this order, and the first thread's: others may be here, or wait for the weight.
        self._parameters.setdefault("weight", weight)
        self._packed = None

    def _dense(self, packed: torch.Tensor) -> torch.Tensor:
        return packed.to_dense() if packed.is_mkldnn else own.unpack(packed, self.out_features)

    def _needs_gradient(self, x: torch.Tensor) -> bool:
        if not torch.is_grad_enabled():
            return False
        return x.requires_grad or self._trainable or getattr(self.bias, "requires_grad", False)

    def train(self, mode: bool = True) -> PackedLinear:  # noqa: FBT001, FBT002 - as in nn.Module
        """Set the mode; a layer that is trained is a plain one."""
        if mode:
            self.unpack()
        return super().train(mode)

    def extra_repr(self) -> str:
        """Return what nn.Linear says of itself."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, packed={self.packed is not None}"
        )

    def _apply(self, fn: Any, recurse: bool = True) -> PackedLinear:  # noqa: FBT001, FBT002
        self.unpack()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: FBT001
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._packed is not None:
            destination[prefix + "weight"] = self._dense(self._packed)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.unpack()
        super()._load_from_state_dict(*args)

    def __getattr__(self, name: str) -> Any:
        """Return the weight, which a packed layer has only from here on."""
        if name == "weight" and self.__dict__.get("_packed") is not None:
            self.unpack()
        return super().__getattr__(name)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with a weight that can be copied and pickled."""
        state = dict(self.__dict__)
        if self._packed is not None:
            state["_packed"] = self._dense(self._packed)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Pack the weight again, where that can be done."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        weight = self._packed
        if weight is None:
            return
        self._ours = self._ours and self._suits(weight)
        try:
            self._packed = own.pack(weight) if self._ours else _pack(weight)
        except (RuntimeError, NotImplementedError):  # another processor, device or build of torch
            self._packed = None
            self.register_parameter("weight", nn.Parameter(weight, self._trainable))


def prepack(model: nn.Module) -> int:
    """Replace the linear layers of a model that is to be read only; return how many.

    Those are replaced that are nn.Linear itself, in float32 or bfloat16 on a CPU, in a model in
    eval mode, and give on random input what they gave before. All others stay as they are.
    """
    if model.training or not available():
        return 0
    places = _places(model)
    while places:  # one after another: of a large model there is no room for a second copy
        linear, parents = places.popitem()
        replacement = _replacement(linear, [parent for parent, _ in parents])
        for parent, name in parents:
            setattr(parent, name, replacement)
    packed, total = count(model)
    _log.debug("%d of %d linear layers of %s are packed", packed, total, type(model).__name__)
    return packed


def count(model: nn.Module) -> tuple[int, int]:
    """Return how many linear layers of a model are packed, and how many it has."""
    linears = [m for m in model.modules() if isinstance(m, (nn.Linear, PackedLinear))]
    return sum(isinstance(m, PackedLinear) and m.packed is not None for m in linears), len(linears)


def nbytes(model: nn.Module) -> int:
    """Return the bytes of a model's weights, packed ones included."""
    return sum(weight.numel() * weight.element_size() for weight in _weights(model))


def numel(model: nn.Module) -> int:
    """Return the number of a model's weights, packed ones included."""
    packed = (m for m in model.modules() if isinstance(m, PackedLinear) and m.packed is not None)
    return sum(weight.numel() for weight in model.parameters()) + sum(
        module.in_features * module.out_features for module in packed
    )


def _weights(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    for module in model.modules():
        if isinstance(module, PackedLinear) and module.packed is not None:
            yield module.packed


def available() -> bool:
    """Whether this build of torch can pack weights."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    names = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
    return all(hasattr(torch.ops.mkldnn, name) for name in names)


def _pack(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)  # noqa: SLF001
    return packed


def _places(model: nn.Module) -> dict[nn.Linear, list[tuple[nn.Module, str]]]:
    """Return the linear layers worth packing, each with its parents and its name in them."""
    places: dict[nn.Linear, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent._modules.items():  # noqa: SLF001 - named_children skips
            if type(child) is nn.Linear and child.weight.numel() >= _FEWEST_WEIGHTS:
                places.setdefault(child, []).append((parent, name))
    return places


def _replacement(linear: nn.Linear, parents: list[nn.Module]) -> nn.Module:
    """Return the packed layer, or `linear` itself where that would not do."""
    weight = linear.weight
    supported = weight.dtype in _TOLERANCE and weight.device.type == "cpu"
    if weight.dtype == torch.bfloat16:
        supported = supported and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
    if not supported or _has_hooks(linear):
        return linear
    # With several parents each applies an activation of its own.
    activation = _activation_behind(parents[0], linear) if len(parents) == 1 else None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, linear.in_features, generator=generator).to(weight.dtype)
    with torch.inference_mode():
        expected = linear(x) if activation is None else activation.module(linear(x))
        try:
            packed = PackedLinear(linear, activation)
            found = packed(x)
        except (RuntimeError, NotImplementedError) as error:
            _log.info("a linear layer stays as it is: %s", str(error).partition("\n")[0])
            return linear
        difference = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    if not difference <= _TOLERANCE[weight.dtype]:
        _log.info("a linear layer stays as it is: packed, it differs by %.1e", difference)
        return linear
    if activation is not None:
        parents[0].intermediate_act_fn = nn.Identity().eval()  # as the model is
    return packed


def _has_hooks(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks)  # noqa: SLF001
    return any(hooks)


def _activation_behind(parent: nn.Module, linear: nn.Linear) -> _Activation | None:
    """Return the activation that `parent` applies to what `linear` gives, if oneDNN has it.

    Known of one structure, which BERT and most families after it share: a module of nothing but a
    linear layer `dense` and its activation `intermediate_act_fn`.
    """
    children = dict(parent.named_children())
    if set(children) != {"dense", "intermediate_act_fn"} or children["dense"] is not linear:
        return None
    module = children["intermediate_act_fn"]
    # transformers' GELUActivation holds the function that it calls.
    function = getattr(module, "act", None)
    if isinstance(module, nn.GELU):
        return _Activation("gelu", module.approximate, module)
    if type(module).__name__ == "GELUActivation" and function is functional.gelu:
        return _Activation("gelu", "none", module)
    if isinstance(module, nn.ReLU):
        return _Activation("relu", "", module)
    return None
