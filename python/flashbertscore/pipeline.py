"""What `score` and `BERTScorer` share: from checked texts to raw scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flashbertscore import idf, matching, reports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashbertscore.encoder import Encoder
    from flashbertscore.inputs import Corpus
    from flashbertscore.tokens import Tokens

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def raw_scores(
    encoder: Encoder,
    corpus: Corpus,
    tokens: Tokens,
    weights: Mapping[int, float] | None,
    *,
    batch_size: int,
    progress: reports.Progress,
) -> torch.Tensor:
    """Return P, R and F1 of every candidate before rescaling, and warn of what is odd about them.

    Args:
        encoder: the model.
        corpus: the texts and pairs.
        tokens: ids of the texts.
        weights: IDF, or None for none.
        batch_size: most texts that go through the model at once.
        progress: what is told meanwhile.

    Returns:
        float32 [N, 3], or [L, N, 3] with all layers; on the CPU.
    """
    reports.warn_of_cut_texts(tokens, encoder.max_length)
    reports.warn_of_empty_texts(tokens, corpus)
    tokenizer = encoder.tokenizer
    token_weights = (
        idf.uniform(tokens, (tokenizer.sep_token_id, tokenizer.cls_token_id))
        if weights is None
        else idf.weigh(tokens, weights)
    )
    if not len(corpus.pairs):
        return torch.empty(*([encoder.depth] if encoder.all_layers else []), 0, 3)
    progress.encoding(len(corpus.texts))
    try:
        scores = matching.score_pairs(
            encoder,
            tokens,
            corpus.pairs,
            token_weights,
            batch_size=batch_size,
            progress=progress.encoded,
            when_encoded=progress.matching,
        )
    finally:
        progress.close()
    if corpus.sizes is not None:
        scores = matching.best_of_references(scores, corpus.sizes)
    reports.warn_of_nan(scores, tokens, token_weights)
    return scores


def as_triple(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return P, R and F1 of scores [..., 3] as three tensors."""
    precision, recall, f1 = scores.unbind(-1)
    return precision.contiguous(), recall.contiguous(), f1.contiguous()


def as_device(device: str | torch.device | None) -> str | torch.device:
    """Return the device to compute on: as given, or CUDA where there is one, else the CPU."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return a dtype by its name.

    Raises:
        ValueError: it is none that scores can be computed in.
    """
    for known in _DTYPES:
        if dtype in {known, str(known).removeprefix("torch.")}:
            return known
    msg = f"dtype: expected float32, bfloat16, float16 or float64, got {dtype}"
    raise ValueError(msg)


def need_language(lang: str | None, model_type: object, *, rescale: bool) -> None:
    """Raise AssertionError, as the reference does, where the language is not given but needed."""
    if lang is None and model_type is None:
        msg = "Either lang or model_type should be specified"
        raise AssertionError(msg)
    if rescale and lang is None:
        msg = "Need to specify Language when rescaling with baseline"
        raise AssertionError(msg)
