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

Every function takes tensors, NumPy arrays and whatever else has ``__dlpack__``, shares their memory
and returns tensors; :mod:`flashbertscore.numpy` has the functions for and from NumPy arrays.

On CUDA tensors, shapes, dtypes, devices, offsets and pairs are checked as everywhere. Values of
masks and weights are not, for that would wait for the device: a mask value other than 0 counts as
1, and a negative or non-finite weight enters the mean as it is. :func:`bertscore` never waits for
the device and can be captured into a CUDA graph. :func:`bertscore_packed` makes its schedule on the
host: offsets and pairs on the device are copied from there, which waits, so pass them on the CPU.

Both functions are differentiable in tokens and weights, on every device, and work in
``torch.compile``, ``torch.func`` and autocast. The gradient of a maximum goes to its lowest index.
With p_i = (gP + gF 2 R^2 / (P + R)^2) w_i / sum w, r_j likewise, the best matches a(i) and b(j),
and x^, y^ the unit vectors::

    G_i = p_i y^_a(i) + sum_{b(j) = i} r_j y^_j       dx_i = (G_i - <G_i, x^_i> x^_i) / |x_i|
    dw_i = (gP + gF 2 R^2 / (P + R)^2) (m_i - P) / sum w       m_i = max_j s_ij

What is 0 or NaN by a rule alone has the gradient 0. Backward takes O(tokens x D) time; it keeps the
inputs and 8 bytes a token, and gives the same bits in every run. There is no double backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import torch
from torch import Tensor

from flashbertscore import arrays, autograd, matrix  # noqa: F401 - importing autograd registers all

if TYPE_CHECKING:
    from flashbertscore.arrays import Array

_OPS = torch.ops.flashbertscore


class Scores(NamedTuple):
    """Precision, recall and F1, one value per pair."""

    precision: Tensor
    recall: Tensor
    f1: Tensor


class Alignment(NamedTuple):
    """The best match of every token on the other side; equals go to the lowest index.

    An index is a position in the other document, from 0, masked ones counted too; -1 where a token
    has no match: it is masked, the other side is empty, or a document of the pair is not finite.
    There the similarity is 0, or NaN in the last case.

    Padded: [B, N] and [B, M]. Packed: flat, one pair after another; pair p has the candidate's
    tokens ``candidate_offsets[p]`` to ``candidate_offsets[p + 1] - 1`` of the candidate's two
    tensors, likewise the reference's (int64 [P + 1], on the CPU). Similarities are differentiable.
    """

    candidate_index: Tensor
    """int32, position in the reference."""
    candidate_similarity: Tensor
    """float32 (float64 for float64 inputs)."""
    reference_index: Tensor
    """int32, position in the candidate."""
    reference_similarity: Tensor
    candidate_offsets: Tensor | None = None
    reference_offsets: Tensor | None = None


class TopScores(NamedTuple):
    """The best references of each candidate, best first: [C, k] each."""

    precision: Tensor
    recall: Tensor
    f1: Tensor
    reference: Tensor
    """int64, index of the reference document."""


@overload
def bertscore(
    candidate: Array,
    reference: Array,
    candidate_mask: Array | None = None,
    reference_mask: Array | None = None,
    candidate_weights: Array | None = None,
    reference_weights: Array | None = None,
    *,
    return_alignment: Literal[False] = False,
) -> Scores: ...
@overload
def bertscore(
    candidate: Array,
    reference: Array,
    candidate_mask: Array | None = None,
    reference_mask: Array | None = None,
    candidate_weights: Array | None = None,
    reference_weights: Array | None = None,
    *,
    return_alignment: Literal[True],
) -> tuple[Scores, Alignment]: ...
def bertscore(
    candidate: Array,
    reference: Array,
    candidate_mask: Array | None = None,
    reference_mask: Array | None = None,
    candidate_weights: Array | None = None,
    reference_weights: Array | None = None,
    *,
    return_alignment: bool = False,
) -> Scores | tuple[Scores, Alignment]:
    """BERTScore of B pairs of padded token embeddings; see the module for equation and rules.

    Args:
        candidate: [B, N, D] float32, float64, bfloat16 or float16; rows of any scale, any strides.
        reference: [B, M, D], dtype and device of ``candidate``.
        candidate_mask: [B, N], 1 (True) where there is a token, in any pattern; None: everywhere.
        reference_mask: [B, M], likewise.
        candidate_weights: [B, N] floating, finite and >= 0 (IDF weights); None: all 1.
        reference_weights: [B, M], likewise.
        return_alignment: return the best match of each token too, from the same pass.

    Returns:
        Three tensors [B], float32 (float64 for float64 inputs), on the device of ``candidate``;
        with ``return_alignment`` those and an :class:`Alignment`.

    Raises:
        TypeError: an argument is not a tensor, or of a wrong or mixed dtype.
        ValueError: wrong rank, shape or device, D = 0; not on CUDA tensors: a mask value other
            than 0 and 1, a weight that is negative, NaN or infinite.
    """
    arguments = (
        arrays.tensor("candidate", candidate),
        arrays.tensor("reference", reference),
        arrays.optional("candidate_mask", candidate_mask),
        arrays.optional("reference_mask", reference_mask),
        arrays.optional("candidate_weights", candidate_weights),
        arrays.optional("reference_weights", reference_weights),
    )
    if not return_alignment:
        return Scores(*_OPS.bertscore(*arguments))
    found = _OPS.bertscore_aligned(*arguments)
    return Scores(*found[:3]), Alignment(*found[3:])


@overload
def bertscore_packed(
    candidate: Array,
    candidate_offsets: Array,
    reference: Array,
    reference_offsets: Array,
    pairs: Array | None = None,
    candidate_weights: Array | None = None,
    reference_weights: Array | None = None,
    *,
    return_alignment: Literal[False] = False,
) -> Scores: ...
@overload
def bertscore_packed(
    candidate: Array,
    candidate_offsets: Array,
    reference: Array,
    reference_offsets: Array,
    pairs: Array | None = None,
    candidate_weights: Array | None = None,
    reference_weights: Array | None = None,
    *,
    return_alignment: Literal[True],
) -> tuple[Scores, Alignment]: ...
def bertscore_packed(
    candidate: Array,
    candidate_offsets: Array,
    reference: Array,
    reference_offsets: Array,
    pairs: Array | None = None,
    candidate_weights: Array | None = None,
    reference_weights: Array | None = None,
    *,
    return_alignment: bool = False,
) -> Scores | tuple[Scores, Alignment]:
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
        return_alignment: return the best match of each token too, from the same pass.

    Returns:
        Three tensors [P], float32 (float64 for float64 inputs), on the device of ``candidate``;
        with ``return_alignment`` those and an :class:`Alignment`.

    Raises:
        TypeError: an argument is not a tensor, or of a wrong or mixed dtype.
        ValueError: wrong rank, shape or device, D = 0, offsets that decrease or do not end at the
            number of rows, an index out of range; not on CUDA tensors: a weight that is negative,
            NaN or infinite.
    """
    arguments = (
        arrays.tensor("candidate", candidate),
        arrays.tensor("candidate_offsets", candidate_offsets),
        arrays.tensor("reference", reference),
        arrays.tensor("reference_offsets", reference_offsets),
        arrays.optional("pairs", pairs),
        arrays.optional("candidate_weights", candidate_weights),
        arrays.optional("reference_weights", reference_weights),
    )
    if not return_alignment:
        return Scores(*_OPS.bertscore_packed(*arguments))
    found = _OPS.bertscore_packed_aligned(*arguments)
    sides = ((arguments[1], 0), (arguments[3], 1))
    offsets = (_entries(own, arguments[4], column) for own, column in sides)
    return Scores(*found[:3]), Alignment(*found[3:], *offsets)


@overload
def bertscore_matrix(
    candidate: Array,
    candidate_offsets: Array,
    reference: Array,
    reference_offsets: Array,
    candidate_weights: Array | None = None,
    reference_weights: Array | None = None,
    *,
    top_k: None = None,
) -> Scores: ...
@overload
def bertscore_matrix(
    candidate: Array,
    candidate_offsets: Array,
    reference: Array,
    reference_offsets: Array,
    candidate_weights: Array | None = None,
    reference_weights: Array | None = None,
    *,
    top_k: int,
) -> TopScores: ...
def bertscore_matrix(
    candidate: Array,
    candidate_offsets: Array,
    reference: Array,
    reference_offsets: Array,
    candidate_weights: Array | None = None,
    reference_weights: Array | None = None,
    *,
    top_k: int | None = None,
) -> Scores | TopScores:
    """BERTScore of every candidate document with every reference document.

    Memory beyond inputs and result is that of one tile, some MiB. Where both sides are the same
    tensors, each pair is computed once and P(a, b) is R(b, a): half the work, the same bits. No bit
    of a score depends on what else is in the grid. On the CPU those of short documents can differ
    from :func:`bertscore_packed`'s by rounding (below 1e-6 in P and R): they are summed in another
    order, which is faster where a document meets many. With gradients the packed op does the work.

    Args:
        candidate: see :func:`bertscore_packed`, as all others.
        candidate_offsets: [C + 1].
        reference: [U, D].
        reference_offsets: [R + 1].
        candidate_weights: [T].
        reference_weights: [U].
        top_k: return the ``top_k`` references of each candidate with the highest F1 (all, where
            there are fewer), in memory that does not grow with C x R. Of equals the lower index
            comes first; NaN is below every number. Not differentiable.

    Returns:
        :class:`Scores` of three tensors [C, R], float32 (float64 for float64 inputs), on the device
        of ``candidate``; with ``top_k`` :class:`TopScores` of four tensors [C, min(top_k, R)].

    Raises:
        TypeError, ValueError: as :func:`bertscore_packed`.
        ValueError: ``top_k`` is below 1.
    """
    candidates, references = matrix.sides(
        arrays.tensor("candidate", candidate),
        arrays.tensor("candidate_offsets", candidate_offsets),
        arrays.tensor("reference", reference),
        arrays.tensor("reference_offsets", reference_offsets),
        arrays.optional("candidate_weights", candidate_weights),
        arrays.optional("reference_weights", reference_weights),
    )
    if top_k is None:
        return Scores(*matrix.all_pairs(candidates, references))
    if top_k < 1:
        message = f"top_k: expected at least 1, got {top_k}"
        raise ValueError(message)
    with torch.no_grad():
        return TopScores(*matrix.best_pairs(candidates, references, min(top_k, len(references))))


def _entries(offsets: Tensor, pairs: Tensor | None, column: int) -> Tensor:
    """Where the tokens of each pair begin in a packed alignment, int64 [P + 1] on the CPU."""
    offsets = offsets.to("cpu", torch.int64)
    if pairs is None:
        return offsets
    lengths = offsets.diff()[pairs[:, column].to("cpu", torch.int64)]
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
