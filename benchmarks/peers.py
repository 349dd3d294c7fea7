"""The contenders: what a user would run instead, and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    import cases

    Scores = tuple[Tensor, ...]


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


def maxsim_cpu(x: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    """maxsim-cpu: sums of row maxima; it takes one query at a time, of unit vectors."""
    import maxsim_cpu as package  # noqa: PLC0415

    x, y = (torch.nn.functional.normalize(side, dim=-1) for side in (x, y))
    queries, documents = x.numpy(), y.numpy()
    sums = [package.maxsim_scores(queries[i], documents[i : i + 1])[0] for i in range(len(queries))]
    return torch.tensor(sums) / x.shape[1]


def late_interaction_kernels(x: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    """late-interaction-kernels on a CPU: all queries with all documents, so one pair at a time."""
    from late_interaction_kernels import reference  # noqa: PLC0415

    sums = [reference.maxsim_reference(a, b, normalize=True) for a, b in zip(x, y, strict=True)]
    return torch.stack(sums).flatten() / x.shape[1]


OP_CONTENDERS: dict[str, Callable[..., object]] = {
    "flashbertscore": ours,
    "torch chain": torch_chain,
    "torch compile": torch_compile,
    "maxsim-cpu": maxsim_cpu,
    "late-interaction-kernels": late_interaction_kernels,
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
    start = [side[:1, :8].clone() for side in (x, y, w, v)]
    found = function(*start)  # everything is loaded
    if contender not in {"flashbertscore", "torch compile"}:  # and computes what we compute
        precision = found[0] if isinstance(found, tuple) else found
        weights = start[2:] if isinstance(found, tuple) else [torch.ones(1, 8)] * 2
        expected = ours(*start[:2], *weights)[0]
        torch.testing.assert_close(precision.float(), expected, atol=2e-2, rtol=0.0)
    return lambda: function(x, y, w, v)


def text_call(case: cases.TextCase, contender: str) -> Callable[[], Scores]:
    """A call that scores the texts of a case, each time as if it were the first."""
    hyps, refs = texts.pairs_of(case)
    path, layer = texts.MODEL[case.model]()
    if contender == "bert-score":
        import bert_score as package  # noqa: PLC0415 - a contender loads only itself
    else:
        import flashbertscore as package  # type: ignore[no-redef]  # noqa: PLC0415
    options: dict[str, Any] = {"model_type": path, "num_layers": layer, "device": "cpu"}
    if contender == "flashbertscore":
        options["dtype"] = case.dtype
    if case.how == "one by one":
        package.score(hyps[:1], refs[:1], **options)

        def one_by_one() -> Scores:
            each = [
                package.score([hyp], [ref], **options) for hyp, ref in zip(hyps, refs, strict=True)
            ]
            return tuple(torch.cat(column) for column in zip(*each, strict=True))

        return one_by_one
    # One that has scored nothing for each run: ours keeps embeddings from call to call.
    scorers = iter([package.BERTScorer(idf=case.idf, **options) for _ in range(case.runs)])
    warm = package.BERTScorer(**options)
    warm.score(hyps[:2], refs[:2])
    count = len(hyps) // (4 if case.data == "systems" else 1)

    def batches() -> Scores:
        scorer = next(scorers)
        if case.idf:
            scorer.compute_idf(refs[:count])
        each = [
            scorer.score(hyps[start : start + count], refs[start : start + count])
            for start in range(0, len(hyps), count)
        ]
        return tuple(torch.cat(column) for column in zip(*each, strict=True))

    return batches


def text_flop(case: cases.TextCase) -> float:
    """Floating-point operations of the encoder's matrix products, each distinct text once."""
    from flashbertscore import encoder  # noqa: PLC0415

    path, layer = texts.MODEL[case.model]()
    loaded = encoder.load(path, layer)
    hyps, refs = texts.pairs_of(case)
    lengths = loaded.tokenize(list(dict.fromkeys([*hyps, *refs]))).lengths.double()
    config = loaded.model.config
    hidden, wide = config.hidden_size, config.intermediate_size
    linears = 4 * hidden**2 + 2 * hidden * wide
    attention = 2 * hidden * float(lengths.square().sum())
    return 2.0 * layer * (linears * float(lengths.sum()) + attention)
