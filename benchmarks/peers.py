"""The contenders: what a user would run instead, and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def torch_chain(x: Tensor, y: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize, bmm, mask, max, weighted mean: the operations of bert-score's greedy_cos_idf."""
    x = x / torch.norm(x, dim=-1).unsqueeze(-1)
    y = y / torch.norm(y, dim=-1).unsqueeze(-1)
    similarity = torch.bmm(x, y.transpose(1, 2))
    mask = x.new_ones(x.shape[:2]).unsqueeze(2) @ y.new_ones(y.shape[:2]).unsqueeze(1)
    similarity = similarity * mask
    precision = (similarity.max(dim=2)[0] * w / w.sum(1, keepdim=True)).sum(1)
    recall = (similarity.max(dim=1)[0] * v / v.sum(1, keepdim=True)).sum(1)
    return precision, recall, 2 * precision * recall / (precision + recall)


def ours(x: Tensor, y: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The op."""
    from flashbertscore import functional  # noqa: PLC0415 - a contender loads only itself

    return functional.bertscore(x, y, candidate_weights=w, reference_weights=v)


def torch_compile(x: Tensor, y: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The chain, compiled for these shapes."""
    global _compiled  # noqa: PLW0603 - compiled at the first call, which is not timed
    if _compiled is None:
        _compiled = torch.compile(torch_chain, dynamic=False)
    return _compiled(x, y, w, v)


_compiled: Callable[..., tuple[Tensor, Tensor, Tensor]] | None = None

OP_CONTENDERS: dict[str, Callable[..., object]] = {
    "flashbertscore": ours,
    "torch chain": torch_chain,
    "torch compile": torch_compile,
}


def op_call(case: cases.OpCase, contender: str) -> Callable[[], object]:
    """A call of the op on random embeddings."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.pairs, case.length, case.dim)
    dtype = getattr(torch, case.dtype)
    x, y = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    w, v = (torch.rand(shape[:2], generator=generator) for _ in range(2))
    function = OP_CONTENDERS[contender]
    if contender == "torch compile":
        function(x, y, w, v)  # compiled for exactly these shapes
    function(x[:1, :8], y[:1, :8], w[:1, :8], v[:1, :8])  # everything is loaded
    return lambda: function(x, y, w, v)


def text_call(case: cases.TextCase, contender: str) -> Callable[[], object]:
    """A call of ``BERTScorer.score`` on the news pairs."""
    hyps, refs = cases.news()
    if contender == "bert-score":
        from bert_score import BERTScorer  # noqa: PLC0415 - a contender loads only itself
    else:
        from flashbertscore import BERTScorer  # noqa: PLC0415
    options: dict[str, Any] = {"idf": True, "idf_sents": refs} if case.idf else {}
    scorer = BERTScorer(model_type=cases.model_path(), num_layers=6, device="cpu", **options)
    scorer.score(hyps[:2], refs[:2])  # the model is loaded
    return lambda: scorer.score(hyps, refs)
