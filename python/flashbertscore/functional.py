"""The op as functions: greedy matching of token embeddings, on torch tensors.

The equation, for candidate tokens ``x_1 .. x_N`` with weights ``w`` and reference tokens
``y_1 .. y_M`` with weights ``v`` (Zhang et al., 2020, section 3)::

    s_ij = <x_i, y_j> / (|x_i| |y_j|)
    P = sum_i w_i max_j s_ij / sum_i w_i
    R = sum_j v_j max_i s_ij / sum_j v_j
    F = 2 P R / (P + R)

Its rules:

* The maximum runs over every valid token, also those of weight 0. Padding is not a token: a score
  never depends on what else is in the batch, and no bit of it on the batch's size or order, or on
  the number of threads.
* A NaN or Inf in a document makes the scores of its pairs NaN and touches no other.
* A zero vector has similarity 0 with everything.
* Zero total weight gives NaN in that direction and F = 0; an empty side gives P = R = F = 0;
  P + R = 0 gives F = 0.

The similarity matrix is never stored: memory beyond the inputs is O(tokens). On a device without a
kernel of ours a tiled torch implementation runs, and the logger ``flashbertscore`` says so at INFO;
it keeps these rules but for the promise about bits, which torch's own matrix product cannot give.

On CUDA tensors, shapes, dtypes, devices, offsets and pairs are checked as everywhere. Values of
masks and weights are not, for that would wait for the device: a mask value other than 0 counts as
1, and a negative or non-finite weight enters the mean as it is. :func:`bertscore` never waits for
the device and can be captured into a CUDA graph. :func:`bertscore_packed` makes its schedule on the
host: offsets and pairs on the device are copied from there, which waits, so pass them on the CPU.

Gradients do not flow through these functions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flashbertscore import checks, ops  # noqa: F401 - importing ops registers the op


class Scores(NamedTuple):
    """Precision, recall and F1, one value per pair."""

    precision: Tensor
    recall: Tensor
    f1: Tensor


def bertscore(
    candidate: Tensor,
    reference: Tensor,
    candidate_mask: Tensor | None = None,
    reference_mask: Tensor | None = None,
    candidate_weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
) -> Scores:
    """BERTScore of B pairs of padded token embeddings; see the module for equation and rules.

    Args:
        candidate: [B, N, D] float32, float64, bfloat16 or float16; rows of any scale, any strides.
        reference: [B, M, D], dtype and device of ``candidate``.
        candidate_mask: [B, N], 1 (True) where there is a token, in any pattern; None: everywhere.
        reference_mask: [B, M], likewise.
        candidate_weights: [B, N] floating, finite and >= 0 (IDF weights); None: all 1.
        reference_weights: [B, M], likewise.

    Returns:
        Three tensors [B], float32 (float64 for float64 inputs), on the device of ``candidate``.

    Raises:
        TypeError: an argument is not a tensor, or of a wrong or mixed dtype.
        ValueError: wrong rank, shape or device, D = 0; not on CUDA tensors: a mask value other
            than 0 and 1, a weight that is negative, NaN or infinite.
    """
    for name, value in (("candidate", candidate), ("reference", reference)):
        checks.tensor(name, value)
    for name, optional in (
        ("candidate_mask", candidate_mask),
        ("reference_mask", reference_mask),
        ("candidate_weights", candidate_weights),
        ("reference_weights", reference_weights),
    ):
        if optional is not None:
            checks.tensor(name, optional)
    return Scores(
        *torch.ops.flashbertscore.bertscore(
            candidate,
            reference,
            candidate_mask,
            reference_mask,
            candidate_weights,
            reference_weights,
        )
    )


def bertscore_packed(
    candidate: Tensor,
    candidate_offsets: Tensor,
    reference: Tensor,
    reference_offsets: Tensor,
    pairs: Tensor | None = None,
    candidate_weights: Tensor | None = None,
    reference_weights: Tensor | None = None,
) -> Scores:
    """BERTScore of P pairs of documents packed one after the other, without padding.

    Args:
        candidate: [T, D] float32, float64, bfloat16 or float16: the tokens of C documents.
        candidate_offsets: [C + 1] int64 (or int32), from 0 to T, never decreasing: document d owns
            rows ``candidate_offsets[d]`` to ``candidate_offsets[d + 1] - 1``. On the device of
            ``candidate`` or on the CPU.
        reference: [U, D], dtype and device of ``candidate``: the tokens of R documents.
        reference_offsets: [R + 1], likewise.
        pairs: [P, 2] int64 (or int32) of (candidate document, reference document), in any order
            and with repetitions; None: document d with document d (then C = R).
        candidate_weights: [T] floating, finite and >= 0 (IDF weights); None: all 1.
        reference_weights: [U], likewise.

    Returns:
        Three tensors [P], float32 (float64 for float64 inputs), on the device of ``candidate``.

    Raises:
        TypeError: an argument is not a tensor, or of a wrong or mixed dtype.
        ValueError: wrong rank, shape or device, D = 0, offsets that decrease or do not end at the
            number of rows, an index out of range; not on CUDA tensors: a weight that is negative,
            NaN or infinite.
    """
    for name, value in (
        ("candidate", candidate),
        ("candidate_offsets", candidate_offsets),
        ("reference", reference),
        ("reference_offsets", reference_offsets),
    ):
        checks.tensor(name, value)
    for name, optional in (
        ("pairs", pairs),
        ("candidate_weights", candidate_weights),
        ("reference_weights", reference_weights),
    ):
        if optional is not None:
            checks.tensor(name, optional)
    return Scores(
        *torch.ops.flashbertscore.bertscore_packed(
            candidate,
            candidate_offsets,
            reference,
            reference_offsets,
            pairs,
            candidate_weights,
            reference_weights,
        )
    )
