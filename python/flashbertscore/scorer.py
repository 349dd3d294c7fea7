"""BERTScore of texts: `score` for one call, `BERTScorer` for many with the same settings."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from flashbertscore import (
    baselines,
    encoder,
    inputs,
    matching,
    models,
    pipeline,
    plotting,
    reports,
    signature,
)
from flashbertscore import (
    idf as frequencies,
)
from flashbertscore.comparisons import Comparisons

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from flashbertscore.encoder import Encoder

_Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_Texts = Sequence[str]
_References = Sequence[str] | Sequence[Sequence[str]]
_Path = str | os.PathLike[str]
_Idf = Mapping[int, float]


def score(  # the reference's signature
    cands: _Texts,
    refs: _References,
    model_type: _Path | None = None,
    num_layers: int | None = None,
    verbose: bool = False,
    idf: bool | _Idf = False,
    device: str | torch.device | None = None,
    batch_size: int = 64,
    nthreads: int = 4,
    all_layers: bool = False,
    lang: str | None = None,
    return_hash: bool = False,
    rescale_with_baseline: bool = False,
    baseline_path: _Path | None = None,
    use_fast_tokenizer: bool = False,
    *,
    dtype: str | torch.dtype = "float32",
    revision: str | None = None,
) -> _Triple | tuple[_Triple, str]:
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
        batch_size: most texts that go through the model at once.
        nthreads: accepted for the sake of the reference, and not used: IDF is counted from ids
            that are there already.
        all_layers: score with every layer.
        lang: language of the texts; needed for a default model and for shipped baselines.
        return_hash: return the reference's hash of the settings as well.
        rescale_with_baseline: rescale, so that unrelated texts score about 0.
        baseline_path: file of baselines to use in place of the shipped ones (LAYER,P,R,F).
        use_fast_tokenizer: accepted, and named in the hash: the ids are the same either way.
        dtype: of the model: "float32", "bfloat16", "float16" or "float64", or a torch.dtype. Scores
            match the reference's to 1e-6 with float32.
        revision: branch, tag or commit of the model on the Hub.

    Returns:
        (P, R, F1), float32 on the CPU, each of shape [N], or [L, N] with `all_layers` (row 0 is the
        embedding layer); with `return_hash` ((P, R, F1), hash).

    Raises:
        TypeError: a text is not a str; names the argument and index.
        ValueError: a candidate has no reference, or no layer is known for the model.
        AssertionError: as many candidates as references are needed, and `lang` or `model_type`;
            `lang` to rescale; a layer that the model has.
    """
    del nthreads
    corpus = inputs.read_corpus(cands, refs)
    pipeline.need_language(lang, model_type, rescale=rescale_with_baseline)
    if model_type is None and lang is not None:
        lang = lang.lower()
    name, num_layers = models.resolve(model_type, lang, num_layers)
    loaded = encoder.load(
        name,
        num_layers,
        all_layers=all_layers,
        device=pipeline.as_device(device),
        dtype=pipeline.as_dtype(dtype),
        revision=revision,
    )
    progress = reports.Progress(verbose=verbose)
    tokens = loaded.tokenize(corpus.texts)
    weights: _Idf | None = None
    if isinstance(idf, Mapping) and idf:
        progress.say("using predefined IDF dict...")
        weights = idf
    elif idf:
        progress.say("preparing IDF dict...")
        weights = frequencies.count(tokens, corpus.references)
        progress.done()
    progress.say("calculating scores...")
    scores = pipeline.raw_scores(
        loaded, corpus, tokens, weights, batch_size=batch_size, progress=progress
    )
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
    progress.done(len(corpus.pairs))
    if not return_hash:
        return pipeline.as_triple(scores)
    custom = baseline_path is not None
    return pipeline.as_triple(scores), signature.get_hash(
        name, num_layers, idf, rescaled, custom, use_fast_tokenizer
    )


def plot_example(  # the reference's signature
    candidate: str,
    reference: str,
    model_type: _Path | None = None,
    num_layers: int | None = None,
    lang: str | None = None,
    rescale_with_baseline: bool = False,
    baseline_path: _Path | None = None,
    use_fast_tokenizer: bool = False,
    fname: _Path = "",
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


class BERTScorer(Comparisons):
    """BERTScore with the same settings for many calls; see `score` for what they mean.

    Attributes:
        tokens_seen: tokens of the distinct texts of the last call that were scored.
        tokens_total: tokens that those texts have; more than `tokens_seen` where texts were longer
            than the model takes.

    A scorer can be pickled (its model is loaded again where it is unpickled), and used as a context
    manager, which closes it.
    """

    def __init__(  # the reference's signature
        self,
        model_type: _Path | None = None,
        num_layers: int | None = None,
        batch_size: int = 64,
        nthreads: int = 4,
        all_layers: bool = False,
        idf: bool | _Idf = False,
        idf_sents: _Texts | None = None,
        device: str | torch.device | None = None,
        lang: str | None = None,
        rescale_with_baseline: bool = False,
        baseline_path: _Path | None = None,
        use_fast_tokenizer: bool = False,
        *,
        dtype: str | torch.dtype = "float32",
        revision: str | None = None,
    ) -> None:
        """Load the model; see `score` for the arguments and for what is raised.

        Args:
            model_type: see `score`.
            num_layers: see `score`.
            batch_size: what `score` of this scorer uses if it is not told otherwise.
            nthreads: not used.
            all_layers: see `score`.
            idf: see `score`; True needs `idf_sents`, or `compute_idf` before the first call.
            idf_sents: texts to count IDF over; not read where `idf` gives the weights (Hugging Face
                evaluate passes both).
            device: see `score`.
            lang: see `score`.
            rescale_with_baseline: see `score`; a missing baseline raises ValueError at first use.
            baseline_path: see `score`.
            use_fast_tokenizer: see `score`.
            dtype: see `score`.
            revision: see `score`.
        """
        pipeline.need_language(lang, model_type, rescale=rescale_with_baseline)
        self.device = pipeline.as_device(device)
        self._lang = lang
        self._rescale_with_baseline = rescale_with_baseline
        self._idf = idf
        self.batch_size = batch_size
        self.nthreads = nthreads
        self.all_layers = all_layers
        self._model_type, self._num_layers = models.resolve(model_type, lang, num_layers)
        self._use_fast_tokenizer = use_fast_tokenizer
        self._dtype = pipeline.as_dtype(dtype)
        self._revision = revision
        self._loaded: Encoder | None = self._load()
        self._model = self._loaded.model
        self._tokenizer = self._loaded.own_tokenizer()
        self._idf_dict: _Idf | None = idf if isinstance(idf, Mapping) and idf else None
        if idf_sents is not None and self._idf_dict is None:
            self.compute_idf(idf_sents)
        self._baseline_vals: torch.Tensor | None = None
        self.use_custom_baseline = baseline_path is not None
        self.baseline_path = baselines.SHIPPED if baseline_path is None else baseline_path
        self.tokens_seen = 0
        self.tokens_total = 0

    @property
    def lang(self) -> str | None:
        """Language as it was given."""
        return self._lang

    @property
    def idf(self) -> bool | _Idf:
        """What was given for `idf`."""
        return self._idf

    @property
    def model_type(self) -> str:
        """Name or path of the model."""
        return self._model_type

    @property
    def num_layers(self) -> int:
        """Layer that embeddings are taken from."""
        return self._num_layers

    @property
    def rescale_with_baseline(self) -> bool:
        """Whether scores are rescaled."""
        return self._rescale_with_baseline

    @property
    def baseline_vals(self) -> torch.Tensor:
        """Baselines of P, R and F1, float32 [3], or [L, 1, 3] with all layers.

        Raises:
            ValueError: there are none.
        """
        if self._baseline_vals is None:
            self._baseline_vals = self._find_baseline(all_layers=self.all_layers)
        if self._baseline_vals is None:
            raise ValueError(self._missing_baseline())
        return self._baseline_vals

    @property
    def use_fast_tokenizer(self) -> bool:
        """What was given; the ids are those of the fast tokenizer either way."""
        return self._use_fast_tokenizer

    @property
    def hash(self) -> str:
        """The reference's hash of the settings."""
        return signature.get_hash(
            self.model_type,
            self.num_layers,
            self.idf,
            self.rescale_with_baseline,
            self.use_custom_baseline,
            self.use_fast_tokenizer,
        )

    @property
    def signature(self) -> str:
        """Everything that pins a score of this scorer, in one line."""
        current = self._encoder
        custom = str(self.baseline_path) if self.use_custom_baseline else "shipped"
        return signature.get_signature(
            model=self.model_type,
            revision=current.revision,
            tokenizer=type(current.tokenizer).__name__,
            max_length=current.max_length,
            layer=None if self.all_layers else self.num_layers,
            dtype=self._dtype,
            idf=("given" if isinstance(self.idf, Mapping) else "yes") if self.idf else "no",
            baseline=custom if self.rescale_with_baseline else "no",
        )

    def compute_idf(self, sents: _Texts) -> None:
        """Count IDF over texts and use it from now on (if the scorer was made with `idf`)."""
        if self._idf_dict is not None:
            warnings.warn("Overwriting the previous importance weights.", stacklevel=2)
        texts = inputs.read_texts(sents, "sents")
        distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        tokens = self._encoder.tokenize(list(distinct))
        documents = torch.tensor([distinct[text] for text in texts], dtype=torch.int64)
        self._idf_dict = frequencies.count(tokens, documents)

    def score(
        self,
        cands: _Texts,
        refs: _References,
        verbose: bool = False,
        batch_size: int | None = None,
        return_hash: bool = False,
    ) -> _Triple | tuple[_Triple, str]:
        """Score candidates against references; see the function `score`.

        Args:
            cands: see `score`.
            refs: see `score`.
            verbose: see `score`.
            batch_size: most texts that go through the model at once; None takes the scorer's.
            return_hash: see `score`.

        Raises:
            AssertionError: the scorer was made with idf=True and no IDF has been counted.
            ValueError: there is no baseline to rescale with.
        """
        corpus = inputs.read_corpus(cands, refs)
        progress = reports.Progress(verbose=verbose)
        progress.say("calculating scores...")
        if self.idf and not self._idf_dict:
            msg = "IDF weights are not computed"
            raise AssertionError(msg)
        baseline = self.baseline_vals if self.rescale_with_baseline else None
        current = self._encoder
        tokens = current.tokenize(corpus.texts)
        self.tokens_seen, self.tokens_total = tokens.tokens_seen, tokens.tokens_total
        scores = pipeline.raw_scores(
            current,
            corpus,
            tokens,
            self._idf_dict if self.idf else None,
            batch_size=self.batch_size if batch_size is None else batch_size,
            progress=progress,
        )
        if baseline is not None:
            scores = matching.rescale(scores, baseline)
        progress.done(len(corpus.pairs))
        return (
            (pipeline.as_triple(scores), self.hash) if return_hash else pipeline.as_triple(scores)
        )

    def plot_example(self, candidate: str, reference: str, fname: _Path = "") -> None:
        """Draw the similarity of every token of a candidate with every token of a reference.

        Args:
            candidate: a text.
            reference: a text.
            fname: file to write; empty writes none.

        Raises:
            ImportError: matplotlib is not installed.
            TypeError: a text is not a str.
            ValueError: a text has no tokens, or there is no baseline to rescale with.
        """
        for name, text in (("candidate", candidate), ("reference", reference)):
            inputs.check_text(text, name)
        current = self._encoder.of_last_layer()
        tokens = current.tokenize([candidate, reference])
        cosines = matching.similarity(current, tokens)
        if self.rescale_with_baseline:
            baseline = self._find_baseline()
            if baseline is None:
                raise ValueError(self._missing_baseline())
            cosines = matching.rescale(cosines, baseline[2])
        rows, columns = (current.own_positions(ids) for ids in tokens.tolist())
        decode = [[current.tokenizer.decode([i]) for i in ids] for ids in tokens.tolist()]
        plotting.draw_similarity(
            cosines[rows, columns],
            decode[0][rows],
            decode[1][columns],
            rescaled=self.rescale_with_baseline,
            fname=fname,
        )

    def close(self) -> None:
        """Free the model; the scorer cannot score after that."""
        if self._loaded is not None:
            encoder.evict(self._loaded)
        self._loaded = self._model = None

    def __enter__(self) -> Self:
        """Return the scorer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the scorer."""
        self.close()

    def __repr__(self) -> str:
        """Return the reference's representation."""
        return (
            f"{type(self).__name__}(hash={self.hash}, batch_size={self.batch_size}, "
            f"nthreads={self.nthreads})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the model, unless a caller has put in another."""
        state = self.__dict__.copy()
        loaded = state.pop("_loaded")
        if loaded is not None and state["_model"] is loaded.model:
            del state["_model"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the model again."""
        self.__dict__.update(state)
        closed = "_model" in state and state["_model"] is None
        self._loaded = None if closed else self._load()
        if self._loaded is not None and "_model" not in state:
            self._model = self._loaded.model

    def _load(self) -> Encoder:
        return encoder.load(
            self._model_type,
            self._num_layers,
            all_layers=self.all_layers,
            device=self.device,
            dtype=self._dtype,
            revision=self._revision,
        )

    @property
    def _encoder(self) -> Encoder:
        """The encoder with what callers may have put in place of its parts."""
        if self._loaded is None:
            msg = "this BERTScorer is closed"
            raise ValueError(msg)
        return self._loaded.with_parts(self._model, self._tokenizer, all_layers=self.all_layers)

    def _find_baseline(self, *, all_layers: bool = False) -> torch.Tensor | None:
        return baselines.lookup(
            self.lang.lower() if self.lang is not None else None,
            self.model_type,
            self.num_layers,
            all_layers=all_layers,
            path=self.baseline_path if self.use_custom_baseline else None,
        )

    def _missing_baseline(self) -> str:
        path = self.baseline_path if self.use_custom_baseline else None
        return baselines.missing(self.lang, self.model_type, path)
