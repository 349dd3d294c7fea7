"""The backward ops: gradients of scores and similarities from the alignment of the forward pass.

``bertscore_backward`` and ``bertscore_packed_backward`` take O(tokens x D) work, no similarity
matrix, and give the same bits in every run: matches are sorted by row instead of added up in the
order in which threads come. :mod:`.autograd` calls them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from flashbertscore import checks, ops, tiled
from flashbertscore.ops import core

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # Views of both sides with the rows of their buffers, address of the pairs, count of pairs,
    # what the gradients follow from, the outputs.
    Native = Callable[
        [core.TokenBatch, int, core.TokenBatch, int, int, int, "checks.Gradient", "Output"], None
    ]

# Gradients of candidate, reference, candidate_weights and reference_weights; [0] if not wanted.
Output = tuple[Tensor, Tensor, Tensor, Tensor]


class _Call(NamedTuple):
    """Arguments of a backward op, checked."""

    layout: checks.Padded | checks.Packed
    gradient: checks.Gradient
    wanted: Sequence[bool]

    def outputs(self) -> Output:
        """Uninitialized, contiguous."""
        tokens = self.layout.candidate, self.layout.reference
        real = self.gradient.precision
        shapes = [
            *((x.shape, x.dtype) for x in tokens),
            *((x.shape[:-1], real.dtype) for x in tokens),
        ]
        made = [
            x.new_empty(shape if wanted else (0,), dtype=dtype)
            for x, (shape, dtype), wanted in zip(tokens * 2, shapes, self.wanted, strict=True)
        ]
        return made[0], made[1], made[2], made[3]


def _padded_call(
    candidate: Tensor, reference: Tensor, w: Tensor | None, v: Tensor | None, *rest: Any
) -> _Call:
    layout = checks.Padded(candidate, reference, None, None, w, v)
    layout.check()
    gradient = checks.Gradient(*rest[:-1])
    entries = tuple(x.shape[0] * x.shape[1] for x in (candidate, reference))
    gradient.check(candidate, layout.pair_count, entries)
    return _Call(layout, gradient, rest[-1])


def _packed_call(*arguments: Any) -> _Call:
    layout = checks.Packed(*arguments[:7])
    layout.check()
    gradient = checks.Gradient(*arguments[7:-1])
    entries: tuple[int, ...] = ()
    if layout.pairs is None:
        entries = layout.candidate.shape[0], layout.reference.shape[0]
    gradient.check(layout.candidate, layout.pair_count, entries)
    return _Call(layout, gradient, arguments[-1])


def _on_host(call: _Call) -> _Call:
    """With offsets and pairs on the host, and the matches' number checked against them."""
    assert isinstance(call.layout, checks.Packed)
    layout = call.layout.on_host()
    ops.validate(layout)
    lengths = (side.row.shape[0] for side in _entries(layout))
    call.gradient.check(layout.candidate, layout.pair_count, tuple(lengths))
    return call._replace(layout=layout)


def _native(native: Native, call: _Call) -> Output:
    """Run a kernel of ours."""
    layout = call.layout
    x, y = ops.rows(layout.candidate), ops.rows(layout.reference)
    w, v = ops.weights(layout.candidate_weights, x), ops.weights(layout.reference_weights, y)
    if isinstance(layout, checks.Packed):
        call = _on_host(call)
        layout = call.layout
        assert isinstance(layout, checks.Packed)
        views = (
            ops.packed_view(x, layout.candidate_offsets, w),
            ops.packed_view(y, layout.reference_offsets, v),
        )
        pairs = ops.address(layout.pairs)
    else:
        views = ops.padded_view(x, None, w), ops.padded_view(y, None, v)
        pairs = 0
    gradient = checks.Gradient(
        *(None if value is None else value.contiguous() for value in call.gradient)  # type: ignore[arg-type]
    )
    out = call.outputs()
    x_rows, y_rows = (tokens.numel() // tokens.shape[-1] for tokens in (x, y))
    native(views[0], x_rows, views[1], y_rows, pairs, layout.pair_count, gradient, out)
    return out


def addresses(gradient: checks.Gradient) -> tuple[int, int, list[int], list[int]]:
    """Precision, recall, alignment and incoming gradients as csrc/core/gradient.h has them."""
    at = [ops.address(value) for value in gradient]
    return at[0], at[1], at[2:6], at[6:]


def _cpu(
    x: core.TokenBatch,
    x_rows: int,
    y: core.TokenBatch,
    y_rows: int,
    pairs: int,
    count: int,
    gradient: checks.Gradient,
    out: Output,
) -> None:
    core.match_backward(
        x,
        x_rows,
        y,
        y_rows,
        pairs,
        count,
        *addresses(gradient),
        [value.data_ptr() for value in out],
        torch.get_num_threads(),
    )


def planned(
    module: Any,
    stream: int,
    x: core.TokenBatch,
    x_rows: int,
    y: core.TokenBatch,
    y_rows: int,
    pairs: int,
    count: int,
    gradient: checks.Gradient,
    out: Output,
) -> None:
    """The CUDA kernels of ``module`` on ``stream`` (or their emulation).

    A token's matches are brought together by a stable sort, which torch does.
    """
    like = gradient.precision
    indices = gradient.candidate_index, gradient.reference_index
    similarities = gradient.candidate_similarity, gradient.reference_similarity
    counts = indices[0].numel(), indices[1].numel()
    keys = [torch.empty(sum(counts), dtype=torch.int32, device=like.device) for _ in range(2)]
    wide = [
        (torch.empty_like(value).flatten(), torch.empty_like(value, dtype=torch.float64))
        for value in similarities
    ]
    inverse = [like.new_empty(rows, dtype=torch.float64) for rows in (x_rows, y_rows)]
    edges = [
        (
            keys[side].data_ptr(),
            *(value.data_ptr() for value in wide[side]),
            inverse[side].data_ptr(),
            counts[side],
            counts[1 - side],
        )
        for side in (0, 1)
    ]
    size = module.gradient_workspace(x, y, pairs, count)
    workspace = like.new_empty(size, dtype=torch.uint8)
    module.gradient_edges(
        x, y, pairs, count, *addresses(gradient), *edges, workspace.data_ptr(), stream
    )
    for side, (views, rows) in enumerate((((x, y), x_rows), ((y, x), y_rows))):
        tokens, weights = out[side], out[2 + side]
        if not tokens.numel() and not weights.numel():
            continue
        ordered = keys[side].sort(stable=True)
        bounds = torch.arange(rows + 1, dtype=torch.int32, device=like.device)
        start = torch.searchsorted(ordered.values, bounds)
        module.gradient_rows(
            *views,
            edges[side],
            edges[1 - side],
            similarities[side].data_ptr(),
            similarities[1 - side].data_ptr(),
            ordered.indices.data_ptr(),
            start.data_ptr(),
            tokens.data_ptr(),
            weights.data_ptr(),
            stream,
        )


class _Entries(NamedTuple):
    """Of each entry of a side's matches, its pair and its row among all rows."""

    pair: Tensor
    row: Tensor


def _entries(layout: checks.Padded | checks.Packed) -> tuple[_Entries, _Entries]:
    """Both sides' entries, on the host for packed documents."""
    if isinstance(layout, checks.Packed):
        pairs = layout.pairs
        if pairs is None:
            pairs = torch.arange(layout.pair_count)[:, None].expand(-1, 2)
        sides = []
        for column, offsets in enumerate((layout.candidate_offsets, layout.reference_offsets)):
            documents = pairs[:, column]
            lengths = offsets.diff()[documents]
            pair = torch.repeat_interleave(lengths)
            skipped = lengths.cumsum(0) - lengths
            row = torch.arange(len(pair)) - (skipped - offsets[documents])[pair]
            sides.append(_Entries(pair, row))
        return sides[0], sides[1]
    sides = []
    for x in (layout.candidate, layout.reference):
        row = torch.arange(x.shape[0] * x.shape[1], device=x.device)
        sides.append(_Entries(row // max(1, x.shape[1]), row))
    return sides[0], sides[1]


def _elsewhere(make: Callable[..., _Call], *arguments: Any) -> Output:
    """In torch, for devices without a kernel of ours."""
    call = make(*arguments)
    if isinstance(call.layout, checks.Packed):
        call = _on_host(call)
    layout, gradient = call.layout, call.gradient
    tokens = layout.candidate, layout.reference
    ops.tell(tokens[0].device)
    flat = [None if value is None else value.flatten() for value in gradient]
    entries = [
        _Entries(side.pair.to(tokens[0].device), side.row.to(tokens[0].device))
        for side in _entries(layout)
    ]
    found = tiled.backward(
        tokens[0].reshape(-1, tokens[0].shape[-1]),
        tokens[1].reshape(-1, tokens[1].shape[-1]),
        tuple(
            None if value is None else value.flatten()
            for value in (layout.candidate_weights, layout.reference_weights)
        ),  # type: ignore[arg-type]
        flat[:2],  # type: ignore[arg-type]
        flat[2:6],  # type: ignore[arg-type]
        flat[6:9],  # type: ignore[arg-type]
        flat[9:],  # type: ignore[arg-type]
        entries,  # type: ignore[arg-type]
    )
    out = call.outputs()
    for to, value, wanted in zip(out, found, call.wanted, strict=True):
        if wanted:
            to.copy_(value.view(to.shape))
    return out


def _register(name: str, make: Callable[..., _Call]) -> None:
    def native(kernel: Native, *arguments: Any) -> Output:
        return _native(kernel, make(*arguments))

    def fake(*arguments: Any) -> Output:
        return make(*arguments).outputs()

    def on_cuda(candidate: Tensor, *arguments: Any) -> Output:
        with torch.cuda.device(candidate.device):
            stream = torch.cuda.current_stream(candidate.device).cuda_stream
            return native(functools.partial(planned, core, stream), candidate, *arguments)

    ops.LIBRARY.impl(name, functools.partial(native, _cpu), "CPU")
    if hasattr(core, "CudaPlan"):
        ops.LIBRARY.impl(name, on_cuda, "CUDA")
    ops.LIBRARY.impl(name, functools.partial(_elsewhere, make), "CompositeExplicitAutograd")
    torch.library.register_fake(f"flashbertscore::{name}", fake, lib=ops.LIBRARY)


_register("bertscore_backward", _padded_call)
_register("bertscore_packed_backward", _packed_call)
