"""``torch.ops.flashbertscore.*``: registration, dispatch. With numpy.py the only user of ``_core``.

The compiled kernels know raw addresses and nothing of torch, so a build needs no torch and one
build serves every version of it. What a device without a kernel of ours gets is in :mod:`.tiled`.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flashbertscore import checks, tiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # Views of candidate and reference, each with the rows of its buffer; address of the pairs
    # [P, 2] int64, 0 for one to one; outputs.
    Match = Callable[["_core.TokenBatch", int, "_core.TokenBatch", int, int, "Output"], None]

try:
    import flashbertscore._core as _core  # noqa: PLR0402 - its error says what is missing
except ImportError as error:
    _MESSAGE = (
        "flashbertscore._core, the compiled part, is missing or does not load "
        f"({error}): build it with `pip install .` from the source folder"
    )
    raise ImportError(_MESSAGE) from error

core = _core

_log = logging.getLogger("flashbertscore")
_told: set[str] = set()

# Precision, recall, F1; of an aligned op also index and similarity of the best match of every
# candidate token and of every reference token.
Output = tuple[Tensor, ...]

# torch.library carries no annotations.
LIBRARY: Any = torch.library.Library("flashbertscore", "DEF")  # type: ignore[no-untyped-call]
_SCORES = "Tensor precision, Tensor recall, Tensor f1"
_MATCHES = (
    "Tensor candidate_index, Tensor candidate_similarity, "
    "Tensor reference_index, Tensor reference_similarity"
)
_GRADIENT = (
    f"Tensor precision, Tensor recall, {_MATCHES}, Tensor grad_precision, Tensor grad_recall, "
    "Tensor grad_f1, Tensor? grad_candidate_similarity, Tensor? grad_reference_similarity, "
    "bool[4] wanted"
)
_WEIGHTS = "Tensor? candidate_weights=None, Tensor? reference_weights=None"
_PADDED = (
    "Tensor candidate, Tensor reference, Tensor? candidate_mask=None, "
    f"Tensor? reference_mask=None, {_WEIGHTS}"
)
_PACKED = (
    "Tensor candidate, Tensor candidate_offsets, Tensor reference, Tensor reference_offsets, "
    f"Tensor? pairs=None, {_WEIGHTS}"
)
_BACKWARD = (
    "Tensor candidate, Tensor reference, Tensor? candidate_weights, Tensor? reference_weights"
)
_PACKED_BACKWARD = _PACKED.replace("=None", "")
for _schema in (
    f"bertscore({_PADDED}) -> ({_SCORES})",
    f"bertscore_packed({_PACKED}) -> ({_SCORES})",
    f"bertscore_aligned({_PADDED}) -> ({_SCORES}, {_MATCHES})",
    f"bertscore_packed_aligned({_PACKED}) -> ({_SCORES}, {_MATCHES})",
    f"bertscore_backward({_BACKWARD}, {_GRADIENT}) -> (Tensor, Tensor, Tensor, Tensor)",
    f"bertscore_packed_backward({_PACKED_BACKWARD}, {_GRADIENT}) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
):
    LIBRARY.define(_schema, tags=[torch.Tag.pt2_compliant_tag])


def isa() -> str:
    """Name of the CPU instruction set that the kernels use.

    It is the best of :func:`isas`, or the one that the environment variable ``FLASHBERTSCORE_ISA``
    names.

    Raises:
        ValueError: ``FLASHBERTSCORE_ISA`` names one that is unknown or not supported here.
    """
    return _core.isa()


def build_info() -> dict[str, str | list[str]]:
    """What the compiled part holds.

    Returns:
        ``cpu``: instruction sets that this processor can run, best first. ``cuda``: version of the
        CUDA compiler, empty if built without; ``cuda_architectures``: what it compiled for, as
        ``sm_90`` (machine code) and ``compute_90`` (PTX, which a driver compiles for later GPUs).
    """
    return {"cpu": _core.isas(), **_core.cuda_build()}


def isas() -> list[str]:
    """Names of the instruction sets that this processor can run, best first."""
    return _core.isas()


def self_attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, *, scale: float | None = None
) -> Tensor:
    """Bidirectional self-attention of padded texts, ``softmax(scale q k^T) v``, without gradients.

    Each text attends to its own tokens; what stands in the padding is not read. The result of a
    text has the same bits in any batch.

    Args:
        q: queries [B, H, L, d], float32 or bfloat16 on the CPU.
        k: keys, like ``q``.
        v: values, like ``q``.
        lengths: int64 [B] on the CPU, tokens of each text; padding is on the right.
        scale: None for ``1 / sqrt(d)``.

    Returns:
        [B, L, H * d] contiguous, zero at the padding. Computed in float32.

    Raises:
        TypeError: no tensor, or a wrong dtype.
        ValueError: shapes or devices that do not fit, or a length beyond L.
    """
    checks.heads(q, k, v, lengths)
    B, H, L, d = q.shape
    out = q.new_empty(B, L, H * d)
    q, k, v, lengths = rows(q), rows(k), rows(v), lengths.contiguous()
    _core.attend(
        checks.DTYPES[q.dtype],
        (B, H, L, d),
        (q.data_ptr(), *q.stride()[:3]),
        (k.data_ptr(), *k.stride()[:3]),
        (v.data_ptr(), *v.stride()[:3]),
        lengths.data_ptr(),
        d**-0.5 if scale is None else scale,
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def _outputs(candidate: Tensor, count: int) -> tuple[Tensor, ...]:
    """Three tensors [count] of the result dtype, uninitialized."""
    precision = candidate.new_empty(count, dtype=checks.result_dtype(candidate))
    return precision, precision.new_empty(count), precision.new_empty(count)


def rows(x: Tensor) -> Tensor:
    """``x`` with contiguous rows, copied only if they are not."""
    if x.is_neg():
        x = x.resolve_neg()
    plain = x.is_contiguous() or x.stride(-1) == 1 or x.shape[-1] == 1
    return x if plain else x.contiguous()


def weights(weights: Tensor | None, tokens: Tensor) -> Tensor | None:
    """Weights as the kernels read them: float32, or float64 for float64 tokens."""
    if weights is None:
        return None
    dtype = checks.result_dtype(tokens)
    return (weights if weights.dtype == dtype else weights.to(dtype)).contiguous()


def _mask(name: str, mask: Tensor | None) -> Tensor | None:
    """A mask as contiguous bool; other dtypes must hold 0 and 1 only."""
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        if not mask.is_cuda:  # there, looking at values would wait for the device
            wrong = mask[(mask != 0) & (mask != 1)]
            if len(wrong):
                message = f"{name}: expected only 0 and 1, got {wrong[0].item()}"
                raise ValueError(message)
        mask = mask != 0
    return mask.contiguous()


def address(value: Tensor | None) -> int:
    """Where a tensor's data is; 0 for None."""
    return 0 if value is None else value.data_ptr()


def padded_view(x: Tensor, mask: Tensor | None, weights: Tensor | None) -> _core.TokenBatch:
    """Padded tokens [B, N, D] as the kernels see them."""
    B, N, D = x.shape
    document_stride, row_stride, _ = x.stride()
    return (
        x.data_ptr(),
        checks.DTYPES[x.dtype],
        B,
        D,
        row_stride,
        document_stride,
        N,
        0,
        0 if mask is None else mask.data_ptr(),
        0 if weights is None else weights.data_ptr(),
    )


def packed_view(x: Tensor, offsets: Tensor, weights: Tensor | None) -> _core.TokenBatch:
    """Packed tokens [T, D] as the kernels see them."""
    return (
        x.data_ptr(),
        checks.DTYPES[x.dtype],
        offsets.shape[0] - 1,
        x.shape[1],
        x.stride(0),
        0,
        0,
        offsets.data_ptr(),
        0,
        address(weights),
    )


def _match_cpu(
    x: _core.TokenBatch,
    x_rows: int,
    y: _core.TokenBatch,
    y_rows: int,
    pairs: int,
    outputs: Output,
) -> None:
    """The CPU kernels."""
    _core.greedy_match(
        x,
        x_rows,
        y,
        y_rows,
        pairs,
        outputs[0].shape[0],
        outputs[0].data_ptr(),
        outputs[1].data_ptr(),
        outputs[2].data_ptr(),
        torch.get_num_threads(),
        [value.data_ptr() for value in outputs[3:]] if len(outputs) > 3 else None,
    )


def _match_planned(
    planner: type[_core.CudaPlan],
    stream: int,
    x: _core.TokenBatch,
    x_rows: int,
    y: _core.TokenBatch,
    y_rows: int,
    pairs: int,
    outputs: Output,
) -> None:
    """The CUDA kernels, on the current device and on ``stream`` of it (or their emulation)."""
    plan = planner(x, x_rows, y, y_rows, pairs, outputs[0].shape[0], len(outputs) > 3)
    workspace = outputs[0].new_empty(plan.workspace_bytes, dtype=torch.uint8)
    precision, recall, f1, *alignment = (value.data_ptr() for value in outputs)
    alignment = alignment or [0] * 4
    plan.run(precision, recall, f1, workspace.data_ptr(), stream, alignment)


def _match_cuda(device: torch.device) -> Match:
    stream = torch.cuda.current_stream(device).cuda_stream
    return functools.partial(_match_planned, _core.CudaPlan, stream)


def _padded(match: Match, *arguments: Any, aligned: bool = False, **named: Any) -> Output:
    """The padded op by a kernel of ours; arguments of :class:`.checks.Padded`."""
    call = checks.Padded(*arguments, **named)
    call.check()
    x, y, x_mask, y_mask, w, v = call
    x, y = rows(x), rows(y)
    x_mask, y_mask = _mask("candidate_mask", x_mask), _mask("reference_mask", y_mask)
    w, v = weights(w, x), weights(v, y)
    (B, N, _), (_, M, _) = x.shape, y.shape
    outputs = _outputs(x, B)
    if aligned:
        outputs += _matches(outputs[0], [(B, N), (B, M)])
    match(padded_view(x, x_mask, w), B * N, padded_view(y, y_mask, v), B * M, 0, outputs)
    return outputs


def _packed(match: Match, *arguments: Any, aligned: bool = False, **named: Any) -> Output:
    """The packed op by a kernel of ours; arguments of :class:`.checks.Packed`."""
    call = checks.Packed(*arguments, **named)
    call.check()
    call = call.on_host()
    x, y = rows(call.candidate), rows(call.reference)
    w, v = weights(call.candidate_weights, x), weights(call.reference_weights, y)
    outputs = _outputs(x, call.pair_count)
    if aligned:
        validate(call)  # before the lengths of documents are looked at
        outputs += _matches(outputs[0], call.matches())
    match(
        packed_view(x, call.candidate_offsets, w),
        x.shape[0],
        packed_view(y, call.reference_offsets, v),
        y.shape[0],
        address(call.pairs),
        outputs,
    )
    return outputs


def match_grid(
    candidate: Tensor,
    candidate_offsets: Tensor,
    reference: Tensor,
    reference_offsets: Tensor,
    candidate_weights: Tensor | None,
    reference_weights: Tensor | None,
    diagonal: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores [C, R] of all pairs of documents on the CPU, without gradients.

    Arguments are those of the packed op, checked; offsets int64 on the CPU. Pairs (c, r) with
    c > r + ``diagonal`` are not asked for: what stands there is nothing.

    Raises:
        ValueError: offsets or weights that are wrong.
    """
    x, y = rows(candidate), rows(reference)
    w, v = weights(candidate_weights, x), weights(reference_weights, y)
    offsets = candidate_offsets.contiguous(), reference_offsets.contiguous()
    shape = offsets[0].shape[0] - 1, offsets[1].shape[0] - 1
    precision, recall, f1 = _outputs(x, shape[0] * shape[1])
    _core.match_grid(
        packed_view(x, offsets[0], w),
        x.shape[0],
        packed_view(y, offsets[1], v),
        y.shape[0],
        diagonal,
        precision.data_ptr(),
        recall.data_ptr(),
        f1.data_ptr(),
        torch.get_num_threads(),
    )
    return precision.view(shape), recall.view(shape), f1.view(shape)


@functools.cache
def _cuda_runs_on(index: int) -> bool:
    """Whether this build's kernels run on a CUDA device; logs once why not."""
    with torch.cuda.device(index):
        reason = _core.CudaPlan.why_unusable()
    if reason:
        _log.info("FlashBERTScore's kernels do not run on cuda:%d: %s", index, reason)
    return not reason


def _on_cuda(
    op: Callable[..., Output],
    elsewhere: Callable[..., Output],
    candidate: Tensor,
    *arguments: Any,
    aligned: bool = False,
) -> Output:
    """``_padded`` or ``_packed`` on the device of ``candidate`` and its current stream."""
    device = candidate.device
    if device.type != "cuda":  # another argument's is: the checks name it
        return op(_match_cpu, candidate, *arguments, aligned=aligned)
    if not _cuda_runs_on(device.index):
        return elsewhere(candidate, *arguments, aligned=aligned)
    with torch.cuda.device(device):
        return op(_match_cuda(device), candidate, *arguments, aligned=aligned)


def tell(device: torch.device) -> None:
    """Say once per device type that no kernel of ours runs there."""
    if device.type not in _told:
        _told.add(device.type)
        _log.info("no FlashBERTScore kernel for %s: using tiled torch operations", device.type)


def _check_weight_values(name: str, weights: Tensor | None) -> None:
    """What core/validate.h checks, for weights that C++ cannot read."""
    if weights is not None and not bool(((weights >= 0) & weights.isfinite()).all()):
        wrong = int((~((weights >= 0) & weights.isfinite())).flatten().nonzero()[0])
        message = (
            f"{name}: expected finite values >= 0, "
            f"got {weights.flatten()[wrong].item():f} at token {wrong}"
        )
        raise ValueError(message)


def _padded_elsewhere(*arguments: Any, aligned: bool = False, **named: Any) -> Output:
    call = checks.Padded(*arguments, **named)
    call.check()
    _check_weight_values("candidate_weights", call.candidate_weights)
    _check_weight_values("reference_weights", call.reference_weights)
    tell(call.candidate.device)
    found = tiled.bertscore(
        call.candidate,
        call.reference,
        _mask("candidate_mask", call.candidate_mask),
        _mask("reference_mask", call.reference_mask),
        call.candidate_weights,
        call.reference_weights,
    )
    return _separate(found, aligned=aligned)


def _packed_elsewhere(*arguments: Any, aligned: bool = False, **named: Any) -> Output:
    call = checks.Packed(*arguments, **named)
    call.check()
    call = call.on_host()
    validate(call)
    _check_weight_values("candidate_weights", call.candidate_weights)
    _check_weight_values("reference_weights", call.reference_weights)
    tell(call.candidate.device)
    return _separate(tiled.bertscore_packed(*call), aligned=aligned)


def validate(call: checks.Packed) -> None:
    """What C++ checks of offsets and pairs on the host."""
    _core.validate(
        packed_view(call.candidate, call.candidate_offsets, None),
        call.candidate.shape[0],
        packed_view(call.reference, call.reference_offsets, None),
        call.reference.shape[0],
        address(call.pairs),
        call.pair_count,
    )


def _separate(found: tiled.Aligned, *, aligned: bool) -> Output:
    """Outputs that share no memory."""
    scores = tuple(value.clone() for value in found.scores)
    return (*scores, *found[1:]) if aligned else scores


def _fake(
    layout: type[checks.Padded | checks.Packed],
    *arguments: Any,
    aligned: bool = False,
    **named: Any,
) -> Output:
    """What the op returns, without values, for torch.compile."""
    call = layout(*arguments, **named)
    call.check()
    scores = _outputs(call.candidate, call.pair_count)
    if not aligned:
        return scores
    shapes: list[Any] = [call.candidate.shape[:-1], call.reference.shape[:-1]]
    if isinstance(call, checks.Packed) and call.pairs is not None:
        shapes = [(torch.library.get_ctx().new_dynamic_size(),) for _ in range(2)]
    return (*scores, *_matches(scores[0], shapes))


def _matches(like: Tensor, shapes: Sequence[Sequence[int]]) -> Output:
    """Index and similarity of both sides, uninitialized, with the dtype of scores."""
    return tuple(
        like.new_empty(tuple(shape), dtype=dtype)
        for shape in shapes
        for dtype in (torch.int32, like.dtype)
    )


CPU: dict[str, Callable[..., Output]] = {}
"""Kernels for the CPU, as they are registered."""


def _register(
    name: str,
    op: Callable[..., Output],
    elsewhere: Callable[..., Output],
    layout: type[checks.Padded | checks.Packed],
) -> None:
    for aligned in (False, True):
        own = f"{name}_aligned" if aligned else name
        CPU[own] = functools.partial(op, _match_cpu, aligned=aligned)
        LIBRARY.impl(own, CPU[own], "CPU")
        if hasattr(_core, "CudaPlan"):
            LIBRARY.impl(own, functools.partial(_on_cuda, op, elsewhere, aligned=aligned), "CUDA")
        composite = functools.partial(elsewhere, aligned=aligned)
        LIBRARY.impl(own, composite, "CompositeExplicitAutograd")
        fake = functools.partial(_fake, layout, aligned=aligned)
        torch.library.register_fake(f"flashbertscore::{own}", fake, lib=LIBRARY)


_register("bertscore", _padded, _padded_elsewhere, checks.Padded)
_register("bertscore_packed", _packed, _packed_elsewhere, checks.Packed)
