"""What `score` and `BERTScorer` share: from checked texts to raw scores, portion by portion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flashbertscore import idf, matching, prepack, reports
from flashbertscore.coverage import NOTHING, Coverage, join
from flashbertscore.embeddings import DEFAULT_BYTES
from flashbertscore.tokens import TextError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from flashbertscore.corpus import Corpus
    from flashbertscore.embeddings import EmbeddingCache, Shelf
    from flashbertscore.encoder import Encoder
    from flashbertscore.storage import Storage
    from flashbertscore.tokens import Tokens


@dataclass(frozen=True)
class Pipeline:
    """A model and how texts go through it.

    Attributes:
        encoder: the model.
        weights: IDF, or None for none.
        batch_size: most texts that go through the model at once.
        storage: where the embeddings of a chunk lie.
        cache: embeddings of texts that come back; None keeps none beyond a portion.
        progress: what is told meanwhile.
        notices: what is odd about the texts and scores so far.
    """

    encoder: Encoder
    weights: Mapping[int, float] | None
    batch_size: int
    storage: Storage
    cache: EmbeddingCache | None
    progress: reports.Progress
    notices: reports.Notices

    def run(
        self, portions: Iterable[Corpus], *, candidates: int | None, tokens: Tokens | None = None
    ) -> Iterator[tuple[torch.Tensor, Coverage]]:
        """Give P, R and F1 of the candidates of each portion, before rescaling.

        Where a text makes the tokenizer or the model fail, the candidates before it are still
        given.

        Args:
            portions: the texts.
            candidates: how many there are in all, None where that is not known.
            tokens: ids of the first portion, where they are there already.

        Yields:
            Scores, float32 [n, 3], or [L, n, 3] with all layers, on the CPU; and how much of the
            texts they are of.

        Raises:
            TextError: the tokenizer or the model fails; names the text.
            ValueError, KeyError: weights are negative or missing, see `idf.weigh`.
        """
        shelf = None if self.cache is None else self.cache.of(self._state())
        self.progress.encoding()
        try:
            for portion in portions:
                is_last = portion.first + len(portion) == candidates
                part: Corpus | None = portion
                failure: TextError | None = None
                while part is not None:
                    try:
                        scores = self._score(part, tokens, shelf, is_last=is_last)
                    except TextError as error:  # noqa: PERF203 - once a portion
                        failure, part = _name(error, part)
                        tokens = None
                    else:
                        yield scores
                        break
                if failure is not None:
                    raise failure
                tokens = None
                self.progress.end()
        finally:
            self.progress.close()

    def _score(
        self, portion: Corpus, tokens: Tokens | None, shelf: Shelf | None, *, is_last: bool
    ) -> tuple[torch.Tensor, Coverage]:
        if tokens is None:
            tokens = self.encoder.tokenize(portion.texts)
        self.progress.begin(len(portion) + len(portion.pairs), tokens.tokens_seen)
        weights = self._weigh(tokens)
        scores = matching.score_pairs(
            self.encoder,
            tokens,
            portion.pairs,
            weights,
            batch_size=self.batch_size,
            shelf=shelf,
            storage=self.storage,
            progress=self.progress.encoded,
            when_encoded=self.progress.matching if is_last else None,
        )
        if portion.sizes is not None:
            scores = matching.best_of_references(scores, portion.sizes)
        self.notices.texts(tokens, portion)
        self.notices.scores(scores, tokens, weights, portion.first)
        return scores, portion.coverage(tokens)

    def _weigh(self, tokens: Tokens) -> torch.Tensor:
        if self.weights is not None:
            return idf.weigh(tokens, self.weights)
        tokenizer = self.encoder.tokenizer
        return idf.uniform(tokens, (tokenizer.sep_token_id, tokenizer.cls_token_id))

    def collect(
        self, portions: Iterable[Corpus], candidates: int, tokens: Tokens | None = None
    ) -> tuple[torch.Tensor, Coverage]:
        """Return what `run` gives as one: float32 [N, 3], or [L, N, 3] with all layers."""
        parts = list(self.run(portions, candidates=candidates, tokens=tokens))
        if not parts:
            layers = [self.encoder.depth] if self.encoder.all_layers else []
            return torch.empty(*layers, 0, 3), NOTHING
        scores, coverages = zip(*parts, strict=True)
        return torch.cat(scores, dim=-2), join(coverages)

    def _state(self) -> tuple[object, ...]:
        """Return what the embeddings of given ids depend on."""
        encoder = self.encoder
        parameter = next(encoder.model.parameters())
        return (
            encoder.model,
            encoder.model.training,
            encoder.all_layers,
            encoder.tf32,
            encoder.windows,
            self.storage.dtype,
            parameter.dtype,
            parameter.device,
        )


def count_idf(encoder: Encoder, portions: Iterable[Corpus]) -> tuple[idf.Idf, Tokens | None]:
    """Count IDF over the references of portions; what is held does not grow with their number.

    Returns:
        The weights, and the ids of the last portion.

    Raises:
        TextError: the tokenizer fails; names the text.
    """
    counter, tokens = idf.Counter(), None
    for portion in portions:
        try:
            tokens = encoder.tokenize(portion.texts)
        except TextError as error:
            named, _ = _name(error, portion)
            raise named from named.__cause__
        counter.add(tokens, portion.references)
    return counter.idf(), tokens


def default_cache_bytes(encoder: Encoder) -> int:
    """Return how many bytes of embeddings are kept where nobody says it."""
    return max(DEFAULT_BYTES, prepack.nbytes(encoder.model))


def as_device(device: str | torch.device | None) -> str | torch.device:
    """Return the device to compute on: as given, or CUDA where there is one, else the CPU."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def need_language(lang: str | None, model_type: object, *, rescale: bool) -> None:
    """Raise AssertionError, as the reference does, where the language is not given but needed."""
    if lang is None and model_type is None:
        msg = "Either lang or model_type should be specified"
        raise AssertionError(msg)
    if rescale and lang is None:
        msg = "Need to specify Language when rescaling with baseline"
        raise AssertionError(msg)


def _name(error: TextError, portion: Corpus) -> tuple[TextError, Corpus | None]:
    """Name the text of an error, and return what of the portion comes before it."""
    if error.index is None:
        first, last = (
            portion.source.candidate.format(portion.first + i) for i in (0, len(portion) - 1)
        )
        named, before = TextError(f"{first} to {last} and their references: {error}"), None
    else:
        item, place = portion.first_place(error.index)
        named, before = type(error)(f"{place}: {error}", portion.first + item), portion.head(item)
    named.__cause__ = error.__cause__
    return named, before
