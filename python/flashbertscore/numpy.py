"""The op on NumPy arrays: the same kernels as :mod:`flashbertscore.functional`, without torch.

Nothing here imports torch. (``import flashbertscore.numpy`` imports the package, which imports
torch where it is installed; where it is not, this module is all that the package offers.)

The rules and formulas are those of :mod:`flashbertscore.functional`. Tokens are float32, float64,
float16, or bfloat16 of the package ``ml_dtypes``; arrays are read where they lie, if their last
dimension is contiguous and no stride is negative, else from a copy.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import flashbertscore._core as _core  # noqa: PLR0402 - as in ops.py

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPES = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}  # of csrc/core/views.h


class Scores(NamedTuple):
    """Precision, recall and F1, one value per pair."""

    precision: NDArray[Any]
    recall: NDArray[Any]
    f1: NDArray[Any]


def bertscore(
    candidate: NDArray[Any],
    reference: NDArray[Any],
    candidate_mask: NDArray[Any] | None = None,
    reference_mask: NDArray[Any] | None = None,
    candidate_weights: NDArray[Any] | None = None,
    reference_weights: NDArray[Any] | None = None,
    *,
    threads: int | None = None,
) -> Scores:
    """BERTScore of B pairs of padded token embeddings; see ``functional.bertscore``.

    Args:
        candidate: [B, N, D] float32, float64, float16 or bfloat16.
        reference: [B, M, D], dtype of ``candidate``.
        candidate_mask: [B, N], 1 (True) where there is a token; None: everywhere.
        reference_mask: [B, M], likewise.
        candidate_weights: [B, N] floating, finite and >= 0; None: all 1.
        reference_weights: [B, M], likewise.
        threads: most threads, at least 1; None: OMP_NUM_THREADS, else the processors of this
            process.

    Returns:
        Three arrays [B], float32 (float64 for float64 inputs).

    Raises:
        TypeError: an argument is not an array, or of a wrong or mixed dtype.
        ValueError: wrong rank or shape, D = 0, a mask value other than 0 and 1, a weight that is
            negative, NaN or infinite, no thread.
    """
    x, y = _tokens(candidate, reference, rank=3)
    if y.shape[0] != x.shape[0]:
        message = f"reference: expected B = {x.shape[0]} as in candidate, got {list(y.shape)}"
        raise ValueError(message)
    masks = _mask("candidate_mask", candidate_mask, x), _mask("reference_mask", reference_mask, y)
    weights = _weights(candidate_weights, reference_weights, x, y)
    views = [
        (
            tokens.ctypes.data,
            _DTYPES[tokens.dtype.name],
            tokens.shape[0],
            tokens.shape[2],
            tokens.strides[1] // tokens.itemsize,
            tokens.strides[0] // tokens.itemsize,
            tokens.shape[1],
            0,
            _address(mask),
            _address(w),
        )
        for tokens, mask, w in zip((x, y), masks, weights, strict=True)
    ]
    rows = [tokens.shape[0] * tokens.shape[1] for tokens in (x, y)]
    return _score(views[0], rows[0], views[1], rows[1], None, x, x.shape[0], threads)


def bertscore_packed(
    candidate: NDArray[Any],
    candidate_offsets: NDArray[Any],
    reference: NDArray[Any],
    reference_offsets: NDArray[Any],
    pairs: NDArray[Any] | None = None,
    candidate_weights: NDArray[Any] | None = None,
    reference_weights: NDArray[Any] | None = None,
    *,
    threads: int | None = None,
) -> Scores:
    """BERTScore of P pairs of packed documents; see ``functional.bertscore_packed``.

    Args:
        candidate: [T, D], the tokens of C documents.
        candidate_offsets: [C + 1] integer, from 0 to T, never decreasing.
        reference: [U, D], dtype of ``candidate``.
        reference_offsets: [R + 1], likewise.
        pairs: [P, 2] integer (candidate, reference); None: document d with document d.
        candidate_weights: [T] floating, finite and >= 0; None: all 1.
        reference_weights: [U], likewise.
        threads: see :func:`bertscore`.

    Returns:
        Three arrays [P], float32 (float64 for float64 inputs).

    Raises:
        TypeError: an argument is not an array, or of a wrong or mixed dtype.
        ValueError: wrong rank or shape, D = 0, offsets that decrease or do not end at the number of
            rows, an index out of range, a weight that is negative, NaN or infinite, no thread.
    """
    x, y = _tokens(candidate, reference, rank=2)
    offsets = [
        _indices("candidate_offsets", candidate_offsets, "[C + 1]"),
        _indices("reference_offsets", reference_offsets, "[R + 1]"),
    ]
    chosen = None if pairs is None else _indices("pairs", pairs, "[P, 2]")
    counts = [len(values) - 1 for values in offsets]
    if chosen is None and counts[0] != counts[1]:
        message = (
            f"reference_offsets: expected as many documents as candidate_offsets has ({counts[0]}) "
            f"when pairs is None, got {counts[1]}"
        )
        raise ValueError(message)
    weights = _weights(candidate_weights, reference_weights, x, y)
    views = [
        (
            tokens.ctypes.data,
            _DTYPES[tokens.dtype.name],
            count,
            tokens.shape[1],
            tokens.strides[0] // tokens.itemsize,
            0,
            0,
            own.ctypes.data,
            0,
            _address(w),
        )
        for tokens, count, own, w in zip((x, y), counts, offsets, weights, strict=True)
    ]
    count = counts[0] if chosen is None else len(chosen)
    return _score(views[0], len(x), views[1], len(y), chosen, x, count, threads)


def _score(
    x: _core.TokenBatch,
    x_rows: int,
    y: _core.TokenBatch,
    y_rows: int,
    pairs: NDArray[Any] | None,
    like: NDArray[Any],
    count: int,
    threads: int | None,
) -> Scores:
    if threads is not None and threads < 1:
        message = f"threads: expected at least 1, got {threads}"
        raise ValueError(message)
    real = np.float64 if like.dtype == np.float64 else np.float32
    precision, recall, f1 = (np.empty(count, real) for _ in range(3))
    _core.greedy_match(
        x,
        x_rows,
        y,
        y_rows,
        _address(pairs),
        count,
        _address(precision),
        _address(recall),
        _address(f1),
        _threads() if threads is None else threads,
    )
    return Scores(precision, recall, f1)


def _threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _address(values: NDArray[Any] | None) -> int:
    return 0 if values is None else values.ctypes.data


def _array(name: str, value: object) -> NDArray[Any]:
    if not isinstance(value, np.ndarray):
        message = f"{name}: expected a numpy.ndarray, got {type(value).__name__}"
        raise TypeError(message)
    return value


def _tokens(candidate: object, reference: object, rank: int) -> tuple[NDArray[Any], NDArray[Any]]:
    layout = "[B, N, D]" if rank == 3 else "[T, D]"
    sides = []
    for name, value in (("candidate", candidate), ("reference", reference)):
        x = _array(name, value)
        if x.dtype.name not in _DTYPES:
            message = f"{name}: expected dtype {', '.join(_DTYPES)}, got {x.dtype}"
            raise TypeError(message)
        if x.ndim != rank:
            message = f"{name}: expected {rank} dimensions {layout}, got shape {list(x.shape)}"
            raise ValueError(message)
        if x.shape[-1] < 1:
            message = f"{name}: expected D >= 1 in {layout}, got shape {list(x.shape)}"
            raise ValueError(message)
        regular = all(stride >= 0 and stride % x.itemsize == 0 for stride in x.strides)
        contiguous = x.strides[-1] == x.itemsize or x.shape[-1] == 1
        if not (regular and contiguous and x.dtype.isnative and x.flags.aligned):
            x = np.ascontiguousarray(x, x.dtype.newbyteorder("="))
        sides.append(x)
    x, y = sides
    if y.dtype != x.dtype:
        message = f"reference: expected the dtype of candidate, {x.dtype}, got {y.dtype}"
        raise TypeError(message)
    if y.shape[-1] != x.shape[-1]:
        message = f"reference: expected D = {x.shape[-1]} as in candidate, got {list(y.shape)}"
        raise ValueError(message)
    return x, y


def _shaped(name: str, value: object, tokens: NDArray[Any]) -> NDArray[Any]:
    array = _array(name, value)
    expected = tokens.shape[:-1]
    if array.shape != expected:
        layout = "[B, N]" if len(expected) == 2 else "[T]"
        message = f"{name}: expected {layout} = {list(expected)}, got {list(array.shape)}"
        raise ValueError(message)
    return array


def _mask(name: str, value: object, tokens: NDArray[Any]) -> NDArray[Any] | None:
    if value is None:
        return None
    mask = _shaped(name, value, tokens)
    if mask.dtype != np.bool_:
        if mask.dtype.kind not in "biuf":
            message = f"{name}: expected a bool, integer or float dtype, got {mask.dtype}"
            raise TypeError(message)
        wrong = mask[(mask != 0) & (mask != 1)]
        if wrong.size:
            message = f"{name}: expected only 0 and 1, got {wrong.flat[0]}"
            raise ValueError(message)
    return np.ascontiguousarray(mask != 0)


def _weights(
    candidate: object, reference: object, x: NDArray[Any], y: NDArray[Any]
) -> list[NDArray[Any] | None]:
    real = np.float64 if x.dtype == np.float64 else np.float32
    found: list[NDArray[Any] | None] = []
    for name, value, tokens in (
        ("candidate_weights", candidate, x),
        ("reference_weights", reference, y),
    ):
        if value is None:
            found.append(None)
            continue
        weights = _shaped(name, value, tokens)
        if weights.dtype.kind != "f" and weights.dtype.name != "bfloat16":
            message = f"{name}: expected a floating dtype, got {weights.dtype}"
            raise TypeError(message)
        found.append(np.ascontiguousarray(weights, real))
    return found


def _indices(name: str, value: object, shape: str) -> NDArray[Any]:
    array = _array(name, value)
    if array.dtype.kind not in "iu":
        message = f"{name}: expected an integer dtype, got {array.dtype}"
        raise TypeError(message)
    pairs = shape == "[P, 2]"
    if array.ndim != (2 if pairs else 1) or (pairs and array.shape[1] != 2) or not array.shape[-1]:
        message = f"{name}: expected shape {shape}, got {list(array.shape)}"
        raise ValueError(message)
    return np.ascontiguousarray(array, np.int64)
