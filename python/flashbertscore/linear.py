"""Our linear layers on packed weights, and whole layers of encoders made of them; on the CPU.

A weight [O, K] is packed once into panels [P, K, C]: panel p holds rows p * C to p * C + C - 1 of
it, transposed, and zeros beyond row O. C is that of the instruction set (:func:`columns`). A row of
a result depends on its own row of the input alone, to the bit: not on the rows beside it, and not
on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from flashbertscore import ops

__all__ = [
    "ACTIVATIONS",
    "LayerWeights",
    "Norm",
    "Packed",
    "columns",
    "encoder_layer",
    "linear",
    "pack",
    "serves",
    "unpack",
]

#: Activations that are applied while a result is in the caches, by the number that the kernels know
#: them by. GELU is the exact one, of the error function.
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2}

# Instruction sets without a fused multiply-add of 8 floats: there, oneDNN's product is faster.
_SLOW = frozenset({"generic", "scalar"})


def columns() -> int:
    """Columns of a panel."""
    return ops.core.linear_columns()


def serves(weight: Tensor) -> bool:
    """Whether our product is the one to take for a weight."""
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and ops.isa() not in _SLOW


def pack(weight: Tensor) -> Tensor:
    """Pack a weight.

    Args:
        weight: float32 [O, K] on the CPU.

    Returns:
        Panels [P, K, C].

    Raises:
        TypeError: another dtype.
        ValueError: another shape or device.
    """
    if weight.dtype != torch.float32:
        message = f"weight: expected dtype float32, got {str(weight.dtype).removeprefix('torch.')}"
        raise TypeError(message)
    if weight.dim() != 2 or weight.device.type != "cpu":
        message = f"weight: expected [O, K] on cpu, got {list(weight.shape)} on {weight.device}"
        raise ValueError(message)
    C = columns()
    padded = functional.pad(weight.detach(), (0, 0, 0, -weight.shape[0] % C))
    return padded.view(-1, C, weight.shape[1]).transpose(1, 2).contiguous()


def unpack(panels: Tensor, out_features: int) -> Tensor:
    """Return the weight [O, K] that `pack` made panels of."""
    return panels.transpose(1, 2).flatten(0, 1)[:out_features].clone()


def linear(
    x: Tensor,
    panels: Tensor,
    out_features: int,
    bias: Tensor | None = None,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """``activation(x weight^T + bias) + residual``, without gradients.

    Args:
        x: float32 [..., K] on the CPU.
        panels: a weight packed by :func:`pack`.
        out_features: O.
        bias: float32 [O].
        activation: one of `ACTIVATIONS`.
        residual: float32 [..., O].

    Returns:
        float32 [..., O], contiguous.

    Raises:
        KeyError: an activation that is none of `ACTIVATIONS`.
        TypeError: a dtype that is not float32.
        ValueError: shapes or devices that do not fit, or panels of another instruction set.
    """
    out: Tensor = torch.ops.flashbertscore.linear(
        x, panels, out_features, bias, ACTIVATIONS[activation], residual
    )
    return out


def _linear(
    x: Tensor,
    panels: Tensor,
    out_features: int,
    bias: Tensor | None,
    activation: int,
    residual: Tensor | None,
) -> Tensor:
    shape = (*x.shape[:-1], out_features)
    _check("x", x, (*x.shape[:-1], panels.shape[1]))
    _check("panels", panels, (-(-out_features // panels.shape[2]), *panels.shape[1:]))
    _check("bias", bias, (out_features,))
    _check("residual", residual, shape)
    out = x.new_empty(shape)
    if out.numel() == 0:
        return out
    rows = ops.rows(x.reshape(-1, x.shape[-1]))
    others = None if residual is None else ops.rows(residual.reshape(-1, out_features))
    panels, bias = panels.contiguous(), None if bias is None else bias.contiguous()
    ops.core.linear(
        rows.data_ptr(),
        rows.shape[0],
        rows.stride(0),
        (panels.data_ptr(), _address(bias), out_features, panels.shape[1]),
        panels.shape[2],
        activation,
        _address(others),
        0 if others is None else others.stride(0),
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def _meta(x: Tensor, _panels: Tensor, out_features: int, *_: object) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


ops.LIBRARY.define(
    "linear(Tensor x, Tensor panels, SymInt out_features, Tensor? bias, int activation, "
    "Tensor? residual) -> Tensor"
)
ops.LIBRARY.impl("linear", _linear, "CPU")
ops.LIBRARY.impl("linear", _meta, "Meta")


class Packed(NamedTuple):
    """A linear layer: panels [P, K, C], O, and a bias [O]."""

    panels: Tensor
    out_features: int
    bias: Tensor | None


class Norm(NamedTuple):
    """A layer norm: weight [D], bias [D] and what is added to the variance."""

    weight: Tensor
    bias: Tensor
    eps: float


class LayerWeights(NamedTuple):
    """What a layer of BERT's kind is made of; see transformers' ``BertLayer``."""

    heads: int
    query: Packed
    key: Packed
    value: Packed
    projection: Packed
    attention_norm: Norm
    up: Packed
    activation: str
    down: Packed
    norm: Norm


def encoder_layer(x: Tensor, lengths: Tensor, layer: LayerWeights) -> Tensor:
    """One layer of an encoder of BERT's kind (norms after the sums), without gradients.

    The result of a text has the same bits in any batch, and with any number of threads.

    Args:
        x: float32 [B, L, D] on the CPU.
        lengths: int64 [B] on the CPU, tokens of each text; padding is on the right, and not read.
        layer: weights that fit each other; float32 on the CPU.

    Returns:
        float32 [B, L, D], zero at the padding.

    Raises:
        TypeError: a dtype that is not float32.
        ValueError: shapes or devices that do not fit, a length beyond L, or panels of another
            instruction set.
    """
    B, L, D = x.shape
    C, wide = layer.query.panels.shape[2], layer.up.out_features
    kept = []  # what the addresses are of

    def address(name: str, value: Tensor | None, *shape: int) -> int:
        _check(name, value, shape)
        kept.append(None if value is None else value.contiguous())
        return _address(kept[-1])

    weights = []
    for name, rows, depth in (
        ("query", D, D),
        ("key", D, D),
        ("value", D, D),
        ("projection", D, D),
        ("up", wide, D),
        ("down", D, wide),
    ):
        packed: Packed = getattr(layer, name)
        panels = address(name, packed.panels, -(-rows // C), depth, C)
        weights.append((panels, address(f"{name}'s bias", packed.bias, rows), rows, depth))
    norms = []
    for name, norm in (("attention_norm", layer.attention_norm), ("norm", layer.norm)):
        norms.append((address(name, norm.weight, D), address(name, norm.bias, D), norm.eps))
    if D % layer.heads:
        message = f"heads: expected a divisor of {D}, got {layer.heads}"
        raise ValueError(message)
    if lengths.shape != (B,) or lengths.dtype != torch.int64 or lengths.device.type != "cpu":
        message = f"lengths: expected int64 [{B}] on cpu, got {lengths.dtype} {list(lengths.shape)}"
        raise ValueError(message)
    _check("x", x, (B, L, D))
    x, lengths = x.contiguous(), lengths.contiguous()
    out = torch.empty_like(x)
    ops.core.encode(
        x.data_ptr(),
        out.data_ptr(),
        B,
        L,
        lengths.data_ptr(),
        layer.heads,
        weights,
        C,
        ACTIVATIONS[layer.activation],
        norms,
        torch.get_num_threads(),
    )
    return out


def _check(name: str, x: Tensor | None, shape: tuple[int, ...]) -> None:
    if x is None:
        return
    if x.dtype != torch.float32:
        message = f"{name}: expected dtype float32, got {str(x.dtype).removeprefix('torch.')}"
        raise TypeError(message)
    if tuple(x.shape) != tuple(shape) or x.device.type != "cpu":
        message = f"{name}: expected {list(shape)} on cpu, got {list(x.shape)} on {x.device}"
        raise ValueError(message)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()
