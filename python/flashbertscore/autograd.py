"""Gradients, vmap and autocast of the ops; importing it registers them.

Where an input needs a gradient, the op without an alignment is computed by the one with it: what
backward needs is the inputs, the scores, and index and similarity of each token's best match
(8 bytes a token). Backward is an op of its own (:mod:`.backward`); it has no gradient itself.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from flashbertscore import backward, ops  # noqa: F401 - importing backward registers its ops

if TYPE_CHECKING:
    from collections.abc import Callable

_OPS = torch.ops.flashbertscore
_AFTER = torch._C._after_autograd_keyset  # noqa: SLF001 - as torch.library does
_PLAIN = (
    torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)  # noqa: SLF001 - torch has no public name for it
    | torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)  # noqa: SLF001 - nor for this
).raw_repr()
"""The dispatcher's keys where all is tensors on the CPU, and no mode or wrapper has a say."""
_TOKENS = {"bertscore": (0, 1, 4, 5), "bertscore_packed": (0, 2, 5, 6)}
"""Which arguments of an op are candidate, reference and their weights."""


def _below(op: Any, keyset: Any, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """The op as the dispatcher's next key has it."""
    with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - as torch.library does
        found: tuple[Tensor, ...] = op.redispatch(keyset & _AFTER, *arguments)
        return found


# As torch.library.register_autograd makes them, but for the base: its functions do not work under
# torch.func.grad. There, as everywhere, this runs at one level of autograd.
class _Aligned(torch.autograd.function._SingleLevelFunction):  # noqa: SLF001
    """An aligned op, differentiable in tokens and weights."""

    @staticmethod
    def forward(ctx: Any, name: str, keyset: Any, *arguments: Any) -> tuple[Tensor, ...]:
        output = _below(getattr(_OPS, f"{name}_aligned").default, keyset, arguments)
        ctx.name = name
        # Masks are in the alignment: a masked token has no match.
        kept = [arguments[i] for i in _TOKENS[name]] if name == "bertscore" else arguments
        precision, recall, _, *matches = output
        ctx.save_for_backward(*kept, precision, recall, *matches)
        ctx.mark_non_differentiable(matches[0], matches[2])
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        name = ctx.name
        places = _TOKENS[name]
        saved = ctx.saved_tensors
        arguments, known = saved[:-6], saved[-6:]
        scores = [torch.zeros_like(known[0]) if g is None else g for g in gradients[:3]]
        wanted = [ctx.needs_input_grad[2 + i] for i in places]
        op = getattr(_OPS, f"{name}_backward")
        found = op(*arguments, *known, *scores, gradients[4], gradients[6], wanted)
        result: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        tensors = arguments if name == "bertscore" else [arguments[i] for i in places]
        for place, needed, value, tensor in zip(places, wanted, found, tensors, strict=True):
            if needed:
                result[2 + place] = value.to(tensor.dtype)
        return tuple(result)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        del ctx, tangents
        message = "flashbertscore: forward-mode derivatives are not supported, use backward()"
        raise NotImplementedError(message)


class _Backward(torch.autograd.function._SingleLevelFunction):  # noqa: SLF001
    """A backward op: what it returns has no gradient."""

    @staticmethod
    def forward(ctx: Any, op: str, keyset: Any, *arguments: Any) -> tuple[Tensor, ...]:
        del ctx
        return _below(getattr(_OPS, op).default, keyset, arguments)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        del ctx, gradients
        message = "flashbertscore: double backward is not supported, gradients have no gradient"
        raise NotImplementedError(message)


def _requires_grad(arguments: tuple[Any, ...]) -> bool:
    # A loop: a generator in any() would cost a tenth of a call on a short pair. And isinstance of
    # what is no tensor takes four times as long as of one.
    for value in arguments:
        if value is not None and isinstance(value, Tensor) and value.requires_grad:
            return True
    return False


def _kernel(op: str) -> Callable[..., tuple[Tensor, ...]]:
    """What the dispatcher calls for an op where autograd has its place."""
    overload = getattr(_OPS, op).default
    on_cpu = ops.CPU.get(op)

    def kernel(keyset: Any, *arguments: Any) -> tuple[Tensor, ...]:
        wanted = torch.is_grad_enabled() and _requires_grad(arguments)
        if wanted or forward_ad._current_level >= 0:  # noqa: SLF001 - tangents must not be lost
            return _differentiable(op, keyset, arguments)
        if on_cpu and keyset.raw_repr() == _PLAIN:
            return on_cpu(*arguments)  # as the dispatcher would, in a fifth less of a short call
        found: tuple[Tensor, ...] = overload.redispatch(keyset & _AFTER, *arguments)
        return found

    return kernel


def _differentiable(op: str, keyset: Any, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
    second = op.endswith("_backward")
    function: Any = _Backward if second else _Aligned
    if not second:  # the dispatcher drops trailing arguments that have their default, None
        name = op.removesuffix("_aligned")
        arguments += (None,) * (_TOKENS[name][-1] + 1 - len(arguments))
    with enable_single_level_autograd_function():
        found: tuple[Tensor, ...] = function.apply(op if second else name, keyset, *arguments)
    return found if op.endswith(("_aligned", "_backward")) else found[:3]


def _autocast(name: str, *arguments: Any) -> tuple[Tensor, ...]:
    """Under autocast a layer gives float32 and another bfloat16: take both in the wider."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)  # noqa: SLF001
    keys |= torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)  # noqa: SLF001
    values = list(arguments)
    x, y = _TOKENS[name.removesuffix("_aligned")][:2]
    if values[x].dtype != values[y].dtype:
        wide = torch.promote_types(values[x].dtype, values[y].dtype)
        values[x], values[y] = values[x].to(wide), values[y].to(wide)
    with torch._C._ExcludeDispatchKeyGuard(keys):  # noqa: SLF001
        found: tuple[Tensor, ...] = getattr(_OPS, name)(*values)
        return found


def _fold(value: Any, dim: int | None, size: int) -> Any:
    """A batched argument with the batch folded into its first dimension."""
    if not isinstance(value, Tensor):
        return value
    value = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
    return value.flatten(0, 1)


def _unfold(found: tuple[Tensor, ...], size: int) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    parts = tuple(value.reshape(size, len(value) // size, *value.shape[1:]) for value in found)
    return parts, (0,) * len(parts)


def _vmap_padded(
    op: str, info: Any, in_dims: tuple[Any, ...], *arguments: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """A batch of padded batches is one larger padded batch."""
    size = info.batch_size
    folded = [
        _fold(value, dim if isinstance(value, Tensor) else None, size)
        for value, dim in zip(arguments, in_dims, strict=True)
    ]
    return _unfold(getattr(_OPS, op)(*folded), size)


def _vmap_packed(
    op: str, info: Any, in_dims: tuple[Any, ...], *arguments: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """A batch of packed batches is one longer packed batch.

    Between two batches stands a document that no pair names, from the last offset of one to the
    first of the next: empty, if the offsets are right.
    """
    size = info.batch_size
    missing = [None] * (7 - len(arguments))  # the dispatcher drops trailing defaults
    values, dims = [*arguments, *missing], [*in_dims, *missing]
    counts = []
    for tokens, place in ((0, 1), (2, 3)):
        x, offsets = values[tokens], values[place]
        shape = [n for i, n in enumerate(x.shape) if i != dims[tokens]]
        counts.append(offsets.shape[-1 if dims[place] != offsets.dim() - 1 else 0])
        values[place] = _shift(offsets, dims[place], size, shape[0])
    pairs, dim = values[4], dims[4]
    if pairs is None:
        documents = torch.arange(counts[0] - 1)
        pairs, dim = torch.stack([documents, documents], dim=1), None
    pairs = pairs.expand(size, *pairs.shape) if dim is None else pairs.movedim(dim, 0)
    steps = torch.arange(size, device=pairs.device)[:, None, None]
    values[4] = (pairs + steps * torch.tensor(counts, device=pairs.device)).flatten(0, 1)
    for i, value in enumerate(values):
        if i not in {1, 3, 4}:
            values[i] = _fold(value, dims[i] if isinstance(value, Tensor) else None, size)
    return _unfold(getattr(_OPS, op)(*values), size)


def _shift(offsets: Tensor, dim: int | None, size: int, rows: int) -> Tensor:
    """Offsets of every batch, moved to where its rows are."""
    offsets = offsets.expand(size, -1) if dim is None else offsets.movedim(dim, 0)
    return (offsets + torch.arange(size, device=offsets.device)[:, None] * rows).flatten()


def _register(name: str, vmap: Callable[..., Any]) -> None:
    register: Any = torch.library
    library = ops.LIBRARY
    aligned, gradient = f"{name}_aligned", f"{name}_backward"
    for op in (name, aligned, gradient):
        library.impl(op, _kernel(op), "Autograd", with_keyset=True)
        register.register_vmap(f"flashbertscore::{op}", functools.partial(vmap, op), lib=library)
        if op != gradient:
            for key in ("AutocastCPU", "AutocastCUDA"):
                library.impl(op, functools.partial(_autocast, op), key)


_register("bertscore", _vmap_padded)
_register("bertscore_packed", _vmap_packed)
