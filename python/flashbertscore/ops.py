"""``torch.ops.flashbertscore.*``: registration and dispatch. The only user of ``_core``.

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
    from collections.abc import Callable

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

_log = logging.getLogger("flashbertscore")
_told: set[str] = set()

Output = tuple[Tensor, Tensor, Tensor]

# torch.library carries no annotations.
LIBRARY: Any = torch.library.Library("flashbertscore", "DEF")  # type: ignore[no-untyped-call]
LIBRARY.define(
    "bertscore(Tensor candidate, Tensor reference, Tensor? candidate_mask=None, "
    "Tensor? reference_mask=None, Tensor? candidate_weights=None, "
    "Tensor? reference_weights=None) -> (Tensor precision, Tensor recall, Tensor f1)",
    tags=[torch.Tag.pt2_compliant_tag],
)
LIBRARY.define(
    "bertscore_packed(Tensor candidate, Tensor candidate_offsets, Tensor reference, "
    "Tensor reference_offsets, Tensor? pairs=None, Tensor? candidate_weights=None, "
    "Tensor? reference_weights=None) -> (Tensor precision, Tensor recall, Tensor f1)",
    tags=[torch.Tag.pt2_compliant_tag],
)


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
    q, k, v, lengths = _rows(q), _rows(k), _rows(v), lengths.contiguous()
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


def _outputs(candidate: Tensor, count: int) -> Output:
    """Three tensors [count] of the result dtype, uninitialized."""
    dtype = torch.float64 if candidate.dtype == torch.float64 else torch.float32
    precision = candidate.new_empty(count, dtype=dtype)
    return precision, torch.empty_like(precision), torch.empty_like(precision)


def _rows(x: Tensor) -> Tensor:
    """``x`` with contiguous rows, copied only if they are not."""
    x = x.resolve_neg()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _weights(weights: Tensor | None, tokens: Tensor) -> Tensor | None:
    dtype = torch.float64 if tokens.dtype == torch.float64 else torch.float32
    return None if weights is None else weights.to(dtype).contiguous()


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


def _address(value: Tensor | None) -> int:
    return 0 if value is None else value.data_ptr()


def _padded_view(x: Tensor, mask: Tensor | None, weights: Tensor | None) -> _core.TokenBatch:
    return _core.TokenBatch(
        x.data_ptr(),
        checks.DTYPES[x.dtype],
        x.shape[0],
        x.shape[2],
        x.stride(1),
        x.stride(0),
        x.shape[1],
        0,
        _address(mask),
        _address(weights),
    )


def _packed_view(x: Tensor, offsets: Tensor, weights: Tensor | None) -> _core.TokenBatch:
    return _core.TokenBatch(
        x.data_ptr(),
        checks.DTYPES[x.dtype],
        offsets.shape[0] - 1,
        x.shape[1],
        x.stride(0),
        0,
        0,
        offsets.data_ptr(),
        0,
        _address(weights),
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
    precision, recall, f1 = (value.data_ptr() for value in outputs)
    count, threads = outputs[0].shape[0], torch.get_num_threads()
    _core.greedy_match(x, x_rows, y, y_rows, pairs, count, precision, recall, f1, threads)


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
    plan = planner(x, x_rows, y, y_rows, pairs, outputs[0].shape[0])
    workspace = outputs[0].new_empty(plan.workspace_bytes, dtype=torch.uint8)
    precision, recall, f1 = (value.data_ptr() for value in outputs)
    plan.run(precision, recall, f1, workspace.data_ptr(), stream)


def _match_cuda(device: torch.device) -> Match:
    stream = torch.cuda.current_stream(device).cuda_stream
    return functools.partial(_match_planned, _core.CudaPlan, stream)


def _padded(match: Match, *arguments: Any, **named: Any) -> Output:
    """The padded op by a kernel of ours; arguments of :class:`.checks.Padded`."""
    call = checks.Padded(*arguments, **named)
    call.check()
    x, y = _rows(call.candidate), _rows(call.reference)
    x_mask = _mask("candidate_mask", call.candidate_mask)
    y_mask = _mask("reference_mask", call.reference_mask)
    w, v = _weights(call.candidate_weights, x), _weights(call.reference_weights, y)
    outputs = _outputs(x, call.pair_count)
    match(
        _padded_view(x, x_mask, w),
        x.shape[0] * x.shape[1],
        _padded_view(y, y_mask, v),
        y.shape[0] * y.shape[1],
        0,
        outputs,
    )
    return outputs


def _packed(match: Match, *arguments: Any, **named: Any) -> Output:
    """The packed op by a kernel of ours; arguments of :class:`.checks.Packed`."""
    call = checks.Packed(*arguments, **named)
    call.check()
    call = call.on_host()
    x, y = _rows(call.candidate), _rows(call.reference)
    w, v = _weights(call.candidate_weights, x), _weights(call.reference_weights, y)
    outputs = _outputs(x, call.pair_count)
    match(
        _packed_view(x, call.candidate_offsets, w),
        x.shape[0],
        _packed_view(y, call.reference_offsets, v),
        y.shape[0],
        _address(call.pairs),
        outputs,
    )
    return outputs


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
) -> Output:
    """``_padded`` or ``_packed`` on the device of ``candidate`` and its current stream."""
    device = candidate.device
    if device.type != "cuda":  # another argument's is: the checks name it
        return op(_match_cpu, candidate, *arguments)
    if not _cuda_runs_on(device.index):
        return elsewhere(candidate, *arguments)
    with torch.cuda.device(device):
        return op(_match_cuda(device), candidate, *arguments)


def _tell(device: torch.device) -> None:
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


def _padded_elsewhere(*arguments: Any, **named: Any) -> Output:
    call = checks.Padded(*arguments, **named)
    call.check()
    _check_weight_values("candidate_weights", call.candidate_weights)
    _check_weight_values("reference_weights", call.reference_weights)
    _tell(call.candidate.device)
    precision, recall, f1 = tiled.bertscore(
        call.candidate,
        call.reference,
        _mask("candidate_mask", call.candidate_mask),
        _mask("reference_mask", call.reference_mask),
        call.candidate_weights,
        call.reference_weights,
    )
    return precision.clone(), recall.clone(), f1.clone()


def _packed_elsewhere(*arguments: Any, **named: Any) -> Output:
    call = checks.Packed(*arguments, **named)
    call.check()
    call = call.on_host()
    _core.validate(
        _packed_view(call.candidate, call.candidate_offsets, None),
        call.candidate.shape[0],
        _packed_view(call.reference, call.reference_offsets, None),
        call.reference.shape[0],
        _address(call.pairs),
        call.pair_count,
    )
    _check_weight_values("candidate_weights", call.candidate_weights)
    _check_weight_values("reference_weights", call.reference_weights)
    _tell(call.candidate.device)
    precision, recall, f1 = tiled.bertscore_packed(*call)
    return precision.clone(), recall.clone(), f1.clone()


def _fake(
    layout: type[checks.Padded | checks.Packed],
    *arguments: Any,
    **named: Any,
) -> Output:
    """What the op returns, without values, for torch.compile."""
    call = layout(*arguments, **named)
    call.check()
    return _outputs(call.candidate, call.pair_count)


def _register(
    name: str,
    op: Callable[..., Output],
    elsewhere: Callable[..., Output],
    layout: type[checks.Padded | checks.Packed],
) -> None:
    LIBRARY.impl(name, functools.partial(op, _match_cpu), "CPU")
    if hasattr(_core, "CudaPlan"):
        LIBRARY.impl(name, functools.partial(_on_cuda, op, elsewhere), "CUDA")
    LIBRARY.impl(name, elsewhere, "CompositeExplicitAutograd")
    fake = functools.partial(_fake, layout)
    torch.library.register_fake(f"flashbertscore::{name}", fake, lib=LIBRARY)


_register("bertscore", _padded, _padded_elsewhere, checks.Padded)
_register("bertscore_packed", _packed, _packed_elsewhere, checks.Packed)
