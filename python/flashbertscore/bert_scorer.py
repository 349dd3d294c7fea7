"""BERTScorer: BERTScore with the same settings for many calls."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from flashbertscore import (
    baselines,
    corpus,
    encoder,
    inputs,
    matching,
    models,
    pipeline,
    plotting,
    precision,
    reports,
    signature,
)
from flashbertscore.comparisons import Comparisons
from flashbertscore.coverage import Coverage, TextScores
from flashbertscore.embeddings import EmbeddingCache
from flashbertscore.pipeline import Pipeline
from flashbertscore.settings import Idf, Path, Settings
from flashbertscore.storage import make_storage

if TYPE_CHECKING:
    from types import TracebackType

    import torch
    from typing_extensions import Self

    from flashbertscore.encoder import Encoder

_Texts = Sequence[str]
_References = Sequence[str] | Sequence[Sequence[str]]
_Pair = tuple[str, str | Sequence[str]]


class _PairScores(NamedTuple):
    precision: float
    recall: float
    f1: float


class PairScores(_PairScores):
    """Precision, recall and F1 of one candidate; with all layers, a list of L numbers each.

    Attributes:
        coverage: tokens seen and total of the candidate and its references.
    """

    coverage: Coverage


class BERTScorer(Settings, Comparisons):
    """BERTScore with the same settings for many calls; see `score` for what they mean.

    Attributes:
        tokens_seen: tokens of the distinct texts of the last call that were scored (of a large
            call distinct in each of its portions).
        tokens_total: tokens that those texts have; more than `tokens_seen` where texts were longer
            than the model takes.

    A scorer can be pickled (its model is loaded again where it is unpickled), and used as a context
    manager, which closes it.
    """

    def __init__(  # the reference's signature
        self,
        model_type: Path | None = None,
        num_layers: int | None = None,
        batch_size: int = 64,
        nthreads: int = 4,
        all_layers: bool = False,
        idf: bool | Idf = False,
        idf_sents: Iterable[str] | None = None,
        device: str | torch.device | None = None,
        lang: str | None = None,
        rescale_with_baseline: bool = False,
        baseline_path: Path | None = None,
        use_fast_tokenizer: bool = False,
        *,
        dtype: str | torch.dtype = "float32",
        revision: str | None = None,
        cache_bytes: int | None = None,
        compile: bool = False,  # noqa: A002 - the name of what it asks for
        long_documents: str = "truncate",
        window: int | None = None,
        stride: int | None = None,
        embeddings_dtype: str | torch.dtype | None = None,
        max_memory: int | None = None,
    ) -> None:
        """Load the model; see `score` for the arguments and for what is raised.

        Args:
            model_type: see `score`.
            num_layers: see `score`.
            batch_size: what `score` of this scorer uses if it is not told otherwise.
            nthreads: not used.
            all_layers: see `score`.
            idf: see `score`; True needs `idf_sents`, or `compute_idf` before the first call.
            idf_sents: texts to count IDF over, see `compute_idf`; not read where `idf` gives the
                weights (Hugging Face evaluate passes both).
            device: see `score`.
            lang: see `score`.
            rescale_with_baseline: see `score`; a missing baseline raises ValueError at first use.
            baseline_path: see `score`.
            use_fast_tokenizer: see `score`.
            dtype: see `score`.
            revision: see `score`.
            cache_bytes: memory for embeddings of texts that come back, in a call or in a later one,
                references before candidates, those used last before others; on the model's device.
                None: 256 MiB, or what the weights of the model take where that is more; 0: nothing
                is kept between calls, as a model needs whose weights change in place: that is not
                noticed. `close` frees it.
            compile: see `score`.
            long_documents: see `score`.
            window: see `score`.
            stride: see `score`.
            embeddings_dtype: see `score`.
            max_memory: see `score`.
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
        self._dtype = dtype
        self._revision = revision
        self._compile = compile
        self._loaded: Encoder | None = self._load()
        self._embeddings = EmbeddingCache(
            pipeline.default_cache_bytes(self._loaded) if cache_bytes is None else cache_bytes
        )
        self._model = self._loaded.model
        self._tokenizer = self._loaded.own_tokenizer()
        self._documents = (long_documents, window, stride)
        self._storage = make_storage(embeddings_dtype, max_memory)
        self._loaded.for_documents(*self._documents)  # what does not fit the model is said now
        self._idf_dict: Idf | None = idf if isinstance(idf, Mapping) and idf else None
        if idf_sents is not None and self._idf_dict is None:
            self.compute_idf(idf_sents)
        self._baseline_vals: torch.Tensor | None = None
        self.use_custom_baseline = baseline_path is not None
        self.baseline_path = baselines.SHIPPED if baseline_path is None else baseline_path
        self.tokens_seen = 0
        self.tokens_total = 0

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
            long=str(current.windows or current.long_documents),
            layer=None if self.all_layers else self.num_layers,
            dtype=precision.resolve(self._dtype, self.device).name,
            embeddings=precision.name_of(self._storage.dtype or current.dtype),
            form=current.form,
            idf=("given" if isinstance(self.idf, Mapping) else "yes") if self.idf else "no",
            baseline=custom if self.rescale_with_baseline else "no",
        )

    def compute_idf(self, sents: Iterable[str]) -> None:
        """Count IDF over texts and use it from now on (if the scorer was made with `idf`).

        One pass: `sents` may be a generator over more texts than fit into memory.
        """
        if self._idf_dict is not None:
            warnings.warn("Overwriting the previous importance weights.", stacklevel=2)
        items = (inputs.Item(text, [text]) for text in inputs.each_text(sents, "sents"))
        portions = corpus.portions(items, source=corpus.SENTENCES)
        self._idf_dict, _ = pipeline.count_idf(self._encoder, portions)

    def score(
        self,
        cands: _Texts,
        refs: _References,
        verbose: bool = False,
        batch_size: int | None = None,
        return_hash: bool = False,
    ) -> TextScores | tuple[TextScores, str]:
        """Score candidates against references; see the function `score`.

        Args:
            cands: see `score`.
            refs: see `score`.
            verbose: see `score`.
            batch_size: see `score`; None takes the scorer's.
            return_hash: see `score`.

        Raises:
            AssertionError: the scorer was made with idf=True and no IDF has been counted.
            ValueError: there is no baseline to rescale with.
        """
        items, several = inputs.read_items(cands, refs)
        progress = reports.Progress(messages=verbose, bar=verbose, texts=inputs.texts_of(items))
        progress.say("calculating scores...")
        run, baseline = self._prepare(batch_size, progress)
        scores, coverage = run.collect(corpus.portions(items, several=several), len(items))
        self._take_note(run.notices)
        run.notices.warn(2)
        if baseline is not None:
            scores = matching.rescale(scores, baseline)
        progress.done(inputs.pairs_of(items))
        found = TextScores.of(scores, coverage)
        return (found, self.hash) if return_hash else found

    def score_stream(
        self,
        pairs: Iterable[_Pair],
        *,
        verbose: bool = False,
        batch_size: int | None = None,
        total: int | None = None,
    ) -> Iterator[PairScores]:
        """Score any number of pairs in bounded memory, lazily and in order.

        Pairs are taken from `pairs` in portions of about a million characters, and one result comes
        out for each. Where taking a pair, the tokenizer or the model fails, the results of all
        pairs before it come out first. The numbers are those of `score`.

        Args:
            pairs: of a candidate and its reference, or a collection of references, of which the
                best counts: P, R and F1 are each the maximum over them.
            verbose: show progress on standard error.
            batch_size: see `score`; None takes the scorer's.
            total: how many texts there will be, if that is known; for the progress bar.

        Returns:
            An iterator of (precision, recall, f1), three Python floats a pair. With `all_layers`
            each is a list of L floats.

        Raises:
            TypeError: `pairs` is no iterable; while it is read: something in it is no pair of
                texts; names the index ("pairs[7][1]").
            TextError: the tokenizer or the model fails on a text; names it, and has its `index`.
            AssertionError, ValueError: as `score`.
        """
        items = inputs.read_pairs(pairs)
        run, baseline = self._prepare(batch_size, reports.Progress(bar=verbose, texts=total))
        return self._stream(run, corpus.portions(items, source=corpus.PAIRS), baseline)

    def _stream(
        self, run: Pipeline, portions: Iterator[corpus.Corpus], baseline: torch.Tensor | None
    ) -> Iterator[PairScores]:
        try:
            for raw, coverage in run.run(portions, candidates=None):
                self._take_note(run.notices)
                run.notices.warn(2, again=False)
                scores = raw if baseline is None else matching.rescale(raw, baseline)
                columns = (x.movedim(-1, 0).tolist() for x in scores.unbind(-1))
                for row, seen in zip(zip(*columns, strict=True), coverage.each(), strict=True):
                    found = PairScores(*row)
                    found.coverage = seen
                    yield found
        except GeneratorExit:
            raise
        except BaseException:
            run.notices.warn(2)
            raise
        run.notices.warn(2)

    def _prepare(
        self, batch_size: int | None, progress: reports.Progress
    ) -> tuple[Pipeline, torch.Tensor | None]:
        """Return how a call scores, and the baseline to rescale with."""
        if self.idf and not self._idf_dict:
            msg = "IDF weights are not computed"
            raise AssertionError(msg)
        baseline = self.baseline_vals if self.rescale_with_baseline else None
        current = self._encoder
        run = Pipeline(
            encoder=current,
            weights=self._idf_dict if self.idf else None,
            batch_size=self.batch_size if batch_size is None else batch_size,
            storage=self._storage,
            cache=self._embeddings if self._embeddings.capacity else None,
            progress=progress,
            notices=reports.Notices(current.max_length),
        )
        return run, baseline

    def _take_note(self, notices: reports.Notices) -> None:
        self.tokens_seen, self.tokens_total = notices.tokens_seen, notices.tokens_total

    def plot_example(self, candidate: str, reference: str, fname: Path = "") -> None:
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
        """Free the model and the embeddings; the scorer cannot score after that."""
        self._embeddings.clear()
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
        return load(
            self._model_type,
            self._num_layers,
            self.all_layers,
            self.device,
            self._dtype,
            self._revision,
            compiled=self._compile,
        )

    @property
    def _encoder(self) -> Encoder:
        """The encoder with what callers may have put in place of its parts."""
        if self._loaded is None:
            msg = "this BERTScorer is closed"
            raise ValueError(msg)
        parts = self._loaded.with_parts(self._model, self._tokenizer, all_layers=self.all_layers)
        return parts.for_documents(*self._documents)


def load(
    name: str,
    num_layers: int,
    all_layers: bool,
    device: str | torch.device,
    dtype: str | torch.dtype,
    revision: str | None,
    *,
    compiled: bool = False,
) -> Encoder:
    """Return the encoder of a model, with what `dtype` asks for; see `encoder.load`.

    Raises:
        ValueError: `dtype` is none, or none for the device.
    """
    arithmetic = precision.resolve(dtype, device)
    loaded = encoder.load(
        name,
        num_layers,
        all_layers=all_layers,
        device=device,
        dtype=arithmetic.dtype,
        revision=revision,
        compiled=compiled,
    )
    return replace(loaded, tf32=arithmetic.tf32)
