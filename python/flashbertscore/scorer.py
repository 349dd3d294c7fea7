"""BERTScore of texts: `score` for one call, `BERTScorer` for many with the same settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flashbertscore import (
    baselines,
    corpus,
    inputs,
    matching,
    models,
    pipeline,
    reports,
    signature,
)
from flashbertscore.bert_scorer import BERTScorer, load
from flashbertscore.coverage import TextScores
from flashbertscore.embeddings import EmbeddingCache
from flashbertscore.pipeline import Pipeline
from flashbertscore.storage import make_storage

if TYPE_CHECKING:
    import torch

    from flashbertscore.settings import Idf, Path

__all__ = ["BERTScorer", "plot_example", "score"]

_Texts = Sequence[str]
_References = Sequence[str] | Sequence[Sequence[str]]


def score(  # the reference's signature
    cands: _Texts,
    refs: _References,
    model_type: Path | None = None,
    num_layers: int | None = None,
    verbose: bool = False,
    idf: bool | Idf = False,
    device: str | torch.device | None = None,
    batch_size: int = 64,
    nthreads: int = 4,
    all_layers: bool = False,
    lang: str | None = None,
    return_hash: bool = False,
    rescale_with_baseline: bool = False,
    baseline_path: Path | None = None,
    use_fast_tokenizer: bool = False,
    *,
    dtype: str | torch.dtype = "float32",
    revision: str | None = None,
    compile: bool = False,  # noqa: A002 - the name of what it asks for
    long_documents: str = "truncate",
    window: int | None = None,
    stride: int | None = None,
    embeddings_dtype: str | torch.dtype | None = None,
    max_memory: int | None = None,
) -> TextScores | tuple[TextScores, str]:
    """Return BERTScore precision, recall and F1 of candidates against references.

    With idf=True the inverse document frequencies are those of `refs`. Models stay loaded between
    calls (`flashbertscore.clear_cache` frees them).

    Args:
        cands: N texts.
        refs: N texts, or N collections of at least one text each; then P, R and F1 of a candidate
            are each the maximum over its references.
        model_type: model, by its name on the Hub or the path of a folder; None takes the default
            of `lang`.
        num_layers: layer that embeddings are taken from; None takes the model's default.
        verbose: print what is being done to standard output, progress to standard error.
        idf: weigh tokens by IDF: True, or a dictionary of token id to weight.
        device: where to compute; None takes CUDA where there is one, else the CPU.
        batch_size: most texts that go through the model at once; on CUDA as many tokens as this
            many texts of the greatest length have, if the memory holds them.
        nthreads: accepted for the sake of the reference, and not used: IDF is counted from ids
            that are there already.
        all_layers: score with every layer.
        lang: language of the texts; needed for a default model and for shipped baselines.
        return_hash: return the reference's hash of the settings as well.
        rescale_with_baseline: rescale, so that unrelated texts score about 0.
        baseline_path: file of baselines to use in place of the shipped ones (LAYER,P,R,F).
        use_fast_tokenizer: accepted, and named in the hash: the ids are the same either way.
        dtype: of the model: "float32", "bfloat16", "float64", on CUDA also "float16" and "tf32"
            (float32 whose products are rounded to TF32), or a torch.dtype. Scores match the
            reference's to 1e-6 with float32.
        revision: branch, tag or commit of the model on the Hub.
        compile: put the model through torch.compile, which needs a C++ compiler and takes some ten
            seconds at the first call; on CPUs it is slower than what runs without it.
        long_documents: what happens to a text longer than the model takes: "truncate" cuts it, as
            the reference does, and warns; "window" encodes it in overlapping windows and scores all
            of it (docs/long-documents.md); "error" raises LongTextError.
        window: tokens of a window, special ones included, for "window"; longer texts are cut into
            such. None: as many as the model takes.
        stride: tokens of the text from one window to the next; None: three quarters of a window.
        embeddings_dtype: how embeddings are held, "float32" or "bfloat16"; None: as the model gives
            them. With bfloat16 they take half the memory; F1 changes by some 1e-5.
        max_memory: bytes of main memory that the embeddings of a pair of long texts may take; more
            lie in a temporary file. None: half of the machine's memory.

    Returns:
        (P, R, F1), float32 on the CPU, each of shape [N], or [L, N] with `all_layers` (row 0 is the
        embedding layer); with `return_hash` ((P, R, F1), hash). The triple has `coverage`: tokens
        that were scored and that there are, for each text.

    Raises:
        TypeError: a text is not a str; names the argument and index.
        ValueError: a candidate has no reference, no layer is known for the model, or the device
            cannot compute in `dtype`.
        TextError: the tokenizer or the model fails on a text, which is named; LongTextError, also a
            ValueError: a text is too long, with long_documents="error".
        StorageError: no room on the disk for embeddings above `max_memory`.
        AssertionError: as many candidates as references are needed, and `lang` or `model_type`;
            `lang` to rescale; a layer that the model has.
    """
    del nthreads
    items, several = inputs.read_items(cands, refs)
    pipeline.need_language(lang, model_type, rescale=rescale_with_baseline)
    if model_type is None and lang is not None:
        lang = lang.lower()
    name, num_layers = models.resolve(model_type, lang, num_layers)
    loaded = load(
        name,
        num_layers,
        all_layers,
        pipeline.as_device(device),
        dtype,
        revision,
        compiled=compile,
    ).for_documents(long_documents, window, stride)
    storage = make_storage(embeddings_dtype, max_memory)
    progress = reports.Progress(messages=verbose, bar=verbose, texts=inputs.texts_of(items))
    weights, tokens, portions = None, None, corpus.portions(items, several=several)
    is_short = corpus.fit_one_portion(items)
    if isinstance(idf, Mapping) and idf:
        progress.say("using predefined IDF dict...")
        weights = idf
    elif idf:
        progress.say("preparing IDF dict...")
        if is_short:
            portions = iter(known := list(portions))
            weights, tokens = pipeline.count_idf(loaded, known)
        else:
            references = (inputs.Item(item.references[0], item.references) for item in items)
            counted = corpus.portions(references, source=corpus.REFERENCES)
            weights, _ = pipeline.count_idf(loaded, counted)
        progress.done()
    progress.say("calculating scores...")
    notices = reports.Notices(loaded.max_length)
    cache = None if is_short else EmbeddingCache(pipeline.default_cache_bytes(loaded))
    run = Pipeline(loaded, weights, batch_size, storage, cache, progress, notices)
    scores, coverage = run.collect(portions, len(items), tokens)
    notices.warn(2)
    rescaled = False
    if rescale_with_baseline:
        baseline = baselines.lookup(
            lang, name, num_layers, all_layers=all_layers, path=baseline_path
        )
        if baseline is None:
            warnings.warn(baselines.missing(lang, name, baseline_path), stacklevel=2)
        else:
            scores = matching.rescale(scores, baseline)
            rescaled = True
    progress.done(inputs.pairs_of(items))
    found = TextScores.of(scores, coverage)
    if not return_hash:
        return found
    custom = baseline_path is not None
    return found, signature.get_hash(name, num_layers, idf, rescaled, custom, use_fast_tokenizer)


def plot_example(  # the reference's signature
    candidate: str,
    reference: str,
    model_type: Path | None = None,
    num_layers: int | None = None,
    lang: str | None = None,
    rescale_with_baseline: bool = False,
    baseline_path: Path | None = None,
    use_fast_tokenizer: bool = False,
    fname: Path = "",
) -> None:
    """Draw the similarity of every token of a candidate with every token of a reference.

    Args:
        candidate: a text.
        reference: a text.
        model_type: see `score`.
        num_layers: see `score`.
        lang: see `score`.
        rescale_with_baseline: rescale the similarities with the baseline of F1; where there is no
            baseline, warn and draw them as they are.
        baseline_path: see `score`.
        use_fast_tokenizer: see `score`.
        fname: file to write; empty writes none.

    Raises:
        ImportError: matplotlib is not installed.
        TypeError, ValueError, AssertionError: as `score`.
    """
    pipeline.need_language(lang, model_type, rescale=rescale_with_baseline)
    if model_type is None and lang is not None:
        lang = lang.lower()
    name, num_layers = models.resolve(model_type, lang, num_layers)
    rescaled = rescale_with_baseline and (
        baselines.lookup(lang, name, num_layers, path=baseline_path) is not None
    )
    if rescale_with_baseline and not rescaled:
        warnings.warn(baselines.missing(lang, name, baseline_path), stacklevel=2)
    scorer = BERTScorer(
        name,
        num_layers,
        lang=lang,
        rescale_with_baseline=rescaled,
        baseline_path=baseline_path,
        use_fast_tokenizer=use_fast_tokenizer,
    )
    scorer.plot_example(candidate, reference, fname)
