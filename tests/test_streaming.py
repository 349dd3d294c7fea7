"""Fear: memory grows with the corpus, a stream loses or mixes up results, work is done twice."""

from __future__ import annotations

import itertools
import math
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from flashbertscore import corpus, encoder, matching, reports, tokens
from flashbertscore.bert_scorer import PairScores
from flashbertscore.scorer import BERTScorer, score
from helpers import reference
from helpers.texts import CANDIDATES, REFERENCES, SENTENCES

LAYER = 3
TinyModel = Callable[[str], str]


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of two or three pairs, chunks of about one."""
    monkeypatch.setattr(corpus, "PORTION_CHARACTERS", 300)
    monkeypatch.setattr(matching, "CHUNK_TOKENS", 40)
    monkeypatch.setattr(matching, "_LEAST_CHUNK", 40)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Texts that each call of the encoder got."""
    seen: list[int] = []
    original = encoder.Encoder.encode

    def spy(
        self: encoder.Encoder, ids: tokens.Tokens, texts: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        seen.append(len(texts))
        return original(self, ids, texts, **options)

    monkeypatch.setattr(encoder.Encoder, "encode", spy)
    return seen


def columns(stream: Iterator[PairScores]) -> list[torch.Tensor]:
    rows = list(stream)
    return [torch.tensor(column) for column in zip(*rows, strict=True)]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"idf": True, "idf_sents": REFERENCES},
    {"all_layers": True},
    {"cache_bytes": 0},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_stream_gives_what_score_gives(options: dict[str, Any], tiny_model: TinyModel) -> None:
    groups = [[reference, "snow"] if i % 3 else reference for i, reference in enumerate(REFERENCES)]
    pairs = list(zip(CANDIDATES, groups, strict=True))
    as_lists = [[group] if isinstance(group, str) else group for group in groups]
    made = BERTScorer(tiny_model("bert"), LAYER, **options)
    expected = BERTScorer(tiny_model("bert"), LAYER, **options).score(CANDIDATES, as_lists)
    first, *_ = rows = list(made.score_stream(iter(pairs)))
    assert isinstance(first, PairScores)
    found = [torch.tensor(column) for column in zip(*rows, strict=True)]
    if options.get("all_layers"):
        assert isinstance(first.f1, list)
        found = [column.T for column in found]
    else:
        assert isinstance(first.f1, float)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("options", OPTIONS)
def test_portions_change_no_score(options: dict[str, Any], tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    made = BERTScorer(path, LAYER, **options)
    found = made.score(CANDIDATES, REFERENCES)
    streamed = columns(made.score_stream(zip(CANDIDATES, REFERENCES, strict=True)))
    for i, (candidate, text) in enumerate(zip(CANDIDATES, REFERENCES, strict=True)):
        alone = BERTScorer(path, LAYER, **options).score([candidate], [text])
        for ours, theirs, stream in zip(found, alone, streamed, strict=True):
            assert (ours[..., i] - theirs[..., 0]).abs().max() < 1e-6
            assert (ours[..., i] - stream[i]).abs().max() < 1e-6
    if "idf" in options:
        alone = score(CANDIDATES, REFERENCES, path, LAYER, idf=True)
        assert reference.largest_difference(found, alone) < 1e-6


def test_pairs_are_taken_when_they_are_needed(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "PORTION_CHARACTERS", 1000)
    made = BERTScorer(tiny_model("bert"), LAYER)
    taken = itertools.count()
    count = 0

    def endless() -> Iterator[tuple[str, str]]:
        nonlocal count
        for count in taken:
            yield SENTENCES[count % 7], SENTENCES[count % 5]

    stream = made.score_stream(endless())
    assert count == 0
    first = next(stream)
    ahead = count
    assert 0 < ahead < 20
    for _ in range(ahead - 2):
        next(stream)
    assert count == ahead
    stream.close()  # type: ignore[attr-defined]
    expected = made.score([SENTENCES[0]], [SENTENCES[0]])
    assert first.f1 == pytest.approx(float(expected[2]), abs=1e-6)


def test_nothing_to_stream(tiny_model: TinyModel) -> None:
    assert list(BERTScorer(tiny_model("bert"), LAYER).score_stream([])) == []


BAD_PAIRS: list[tuple[Any, type[Exception], str]] = [
    ("snow", TypeError, r"pairs\[2\]: expected \(candidate, reference\), got str"),
    (("a", "b", "c"), TypeError, r"pairs\[2\]: expected \(candidate, reference\), got 3 values"),
    ((None, "b"), TypeError, r"pairs\[2\]\[0\]: expected str, got None"),
    (("a", 3), TypeError, r"pairs\[2\]\[1\]: expected a sequence of str, got int"),
    (("a", ["b", float("nan")]), TypeError, r"pairs\[2\]\[1\]\[1\]: expected str, got NaN"),
    (("a", []), ValueError, r"pairs\[2\]\[1\]: expected at least one reference, got none"),
]


@pytest.mark.parametrize(("pair", "error", "message"), BAD_PAIRS, ids=lambda x: str(x)[:20])
def test_results_before_a_bad_pair_come_out(
    pair: Any, error: type[Exception], message: str, tiny_model: TinyModel
) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER)
    stream = made.score_stream([("snow", "rain"), ("rain", "snow"), pair, ("a", "b")])
    assert [len(next(stream)) for _ in range(2)] == [3, 3]
    with pytest.raises(error, match=message):
        next(stream)


def test_results_before_the_caller_s_own_error_come_out(tiny_model: TinyModel) -> None:
    def source() -> Iterator[tuple[str, str]]:
        yield "snow", "rain"
        raise ConnectionError

    stream = BERTScorer(tiny_model("bert"), LAYER).score_stream(source())
    next(stream)
    with pytest.raises(ConnectionError):
        next(stream)


@pytest.mark.parametrize("pairs", ["snow", 3, {"a": "b"}])
def test_no_pairs_at_all(pairs: Any, tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER)
    with pytest.raises(TypeError, match=r"pairs: expected an iterable of \(candidate, reference\)"):
        made.score_stream(pairs)  # before anything is taken
    with pytest.raises(AssertionError, match="IDF weights are not computed"):
        BERTScorer(tiny_model("bert"), LAYER, idf=True).score_stream([])


POISON = "rain wind"


def poison_model(made: BERTScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = made._encoder.tokenize([POISON]).tolist()[0][1]
    forward = made._model.forward

    def fail(ids: torch.Tensor, *args: Any, **options: Any) -> Any:
        if (ids == bad).any():
            raise IndexError("out of range")
        return forward(ids, *args, **options)

    monkeypatch.setattr(made._model, "forward", fail)


def poison_tokenizer(_: BERTScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    original = tokens._call

    def fail(tokenizer: Any, texts: list[str], **options: bool) -> Any:
        if POISON in texts:
            raise IndexError("out of range")
        return original(tokenizer, texts, **options)

    monkeypatch.setattr(tokens, "_call", fail)


@pytest.mark.parametrize("poison", [poison_model, poison_tokenizer])
@pytest.mark.parametrize(
    ("pair", "place"),
    [
        ((POISON, "snow"), "pairs[4][0]"),
        (("snow", POISON), "pairs[4][1]"),
        (("snow", ["thunder", POISON]), "pairs[4][1][1]"),
    ],
)
def test_a_text_that_cannot_be_scored_is_named(
    poison: Any,
    pair: Any,
    place: str,
    tiny_model: TinyModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder.clear_cache()
    made = BERTScorer(tiny_model("bert"), LAYER)
    good = [("snow", "a small boat"), ("a dog", ["a cat", "a cat sat"])] * 2
    expected = list(made.score_stream(good))
    poison(made, monkeypatch)
    part = {poison_model: "model", poison_tokenizer: "tokenizer"}[poison]
    stream = made.score_stream([*good, pair, *good, pair])
    found = list(itertools.islice(stream, 4))
    assert torch.tensor(found).allclose(torch.tensor(expected), rtol=0.0, atol=1e-6)
    with pytest.raises(tokens.TextError) as failed:
        next(stream)
    assert str(failed.value) == f"{place}: the {part} failed: IndexError: out of range"
    assert failed.value.index == 4
    assert isinstance(failed.value.__cause__, IndexError)
    candidate, group = pair
    name = place.replace("pairs[4][0]", "cands[0]").replace("pairs[4][1]", "refs[0]")
    group = group if isinstance(group, list) else [group]
    name = name if len(group) > 1 or name.startswith("cands") else "refs[0][0]"
    for call in (made.score, lambda *x: score(*x, tiny_model("bert"), LAYER)):
        with pytest.raises(tokens.TextError) as failed:
            call([candidate, "snow"], [group, ["rain"]])
        assert str(failed.value).startswith(f"{name}: ")
    encoder.clear_cache()


def test_a_failure_of_no_text_alone_names_the_pairs(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.clear_cache()
    made = BERTScorer(tiny_model("bert"), LAYER)
    forward = made._model.forward

    def fail(ids: torch.Tensor, *args: Any, **options: Any) -> Any:
        if len(ids) > 1:
            raise MemoryError("too many")
        return forward(ids, *args, **options)

    monkeypatch.setattr(made._model, "forward", fail)
    message = r"cands\[0\] to cands\[10\] and their references: the model failed: MemoryError: too"
    with pytest.raises(tokens.TextError, match=message) as failed:
        made.score(CANDIDATES[:11], REFERENCES[:11])
    assert failed.value.index is None
    encoder.clear_cache()


def test_references_are_encoded_once_for_several_systems(
    tiny_model: TinyModel, encoded: list[int]
) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER, idf=True, idf_sents=REFERENCES)
    systems = [[f"{text} {word}" for text in CANDIDATES] for word in ("snow", "rain", "boat")]
    fresh = BERTScorer(tiny_model("bert"), LAYER, idf=True, idf_sents=REFERENCES, cache_bytes=0)
    for number, system in enumerate(systems):
        encoded.clear()
        found = made.score(system, REFERENCES)
        new = len({*system, *REFERENCES}) if number == 0 else len(set(system))
        assert sum(encoded) == new
        assert reference.largest_difference(found, fresh.score(system, REFERENCES)) < 1e-6
    encoded.clear()
    streamed = columns(made.score_stream(zip(systems[0], REFERENCES, strict=True)))
    assert sum(encoded) == 0
    again = made.score(systems[0], REFERENCES)
    for ours, theirs in zip(streamed, again, strict=True):
        assert torch.equal(ours, theirs)
    assert made._embeddings.size > 0
    made.close()
    assert made._embeddings.size == len(made._embeddings) == 0


def test_texts_with_the_same_ids_are_encoded_once(
    tiny_model: TinyModel, encoded: list[int]
) -> None:
    score(["Snow", "SNOW", " snow "], ["snow", "Rain", "rain"], tiny_model("bert"), LAYER)
    assert sum(encoded) == 2


@pytest.mark.usefixtures("small_portions")
def test_score_keeps_references_across_its_portions(
    tiny_model: TinyModel, encoded: list[int]
) -> None:
    score(list(SENTENCES), ["snow on a boat"] * len(SENTENCES), tiny_model("bert"), LAYER)
    assert len(encoded) > 5
    assert sum(encoded) == len(set(SENTENCES)) + 1


def test_another_model_or_tokenizer_finds_nothing_of_the_old(
    tiny_model: TinyModel, encoded: list[int]
) -> None:
    path = tiny_model("bert")
    made = BERTScorer(path, LAYER)
    made.score(CANDIDATES, REFERENCES)
    made._model = encoder.load(path, 1).model
    expected = score(CANDIDATES, REFERENCES, path, 1)
    assert reference.largest_difference(made.score(CANDIDATES, REFERENCES), expected) == 0.0
    made._tokenizer.model_max_length = 6
    encoded.clear()
    with pytest.warns(UserWarning, match="longer than the 6 tokens"):
        cut = made.score(CANDIDATES, REFERENCES)
    assert sum(encoded) > 0
    with pytest.warns(UserWarning, match="longer than the 6 tokens"):
        assert reference.largest_difference(made.score(CANDIDATES, REFERENCES), cut) == 0.0
    made.all_layers = True
    with pytest.warns(UserWarning, match="longer than the 6 tokens"):
        assert made.score(CANDIDATES, REFERENCES)[0].shape == (2, len(CANDIDATES))


def test_a_pickled_scorer_leaves_its_embeddings_behind(tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER, cache_bytes=10**6)
    expected = made.score(CANDIDATES, REFERENCES)
    state = pickle.dumps(made)
    assert len(state) < 10**6
    again = pickle.loads(state)  # noqa: S301 - our own
    assert again._embeddings.capacity == 10**6
    assert len(again._embeddings) == 0
    assert reference.largest_difference(again.score(CANDIDATES, REFERENCES), expected) == 0.0


def test_threads_may_share_a_scorer_whose_cache_is_small(tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER, cache_bytes=8000)
    expected = score(CANDIDATES, REFERENCES, tiny_model("bert"), LAYER)
    wrong: list[float] = []

    def work(start: int) -> None:
        for n in range(12):
            i = (start + n) % len(CANDIDATES)
            found = made.score([CANDIDATES[i]], [REFERENCES[(i + n) % 3], REFERENCES[i]][1:])
            wrong.extend(
                float(abs(ours[0] - right[i]))
                for ours, right in zip(found, expected, strict=True)
                if abs(ours[0] - right[i]) > 1e-6
            )

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert made._embeddings.size <= 8000


@pytest.mark.usefixtures("small_portions")
def test_idf_over_an_iterator_is_that_of_the_list(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    whole = BERTScorer(path, LAYER, idf=True, idf_sents=[*SENTENCES, *SENTENCES[:3]])
    parts = BERTScorer(path, LAYER, idf=True)
    parts.compute_idf(text for text in [*SENTENCES, *SENTENCES[:3]])
    assert whole._idf_dict is not None
    assert parts._idf_dict == whole._idf_dict
    assert whole._idf_dict[10**6] == math.log(len(SENTENCES) + 4)
    theirs = reference.make_scorer(path, LAYER, idf=True)
    with reference.quiet():
        theirs.compute_idf([*SENTENCES, *SENTENCES[:3]])
    for token, weight in whole._idf_dict.items():
        assert weight == theirs._idf_dict[token]
    with pytest.raises(TypeError, match=r"sents\[2\]: expected str, got None"):
        BERTScorer(path, LAYER, idf=True, idf_sents=iter(["a", "b", None]))  # type: ignore[list-item]


@pytest.mark.usefixtures("small_portions")
def test_warnings_of_many_portions_are_one_of_each_kind(tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER)
    made._tokenizer.model_max_length = 8
    candidates = ["" if i % 5 == 0 else text for i, text in enumerate(CANDIDATES * 3)]
    references = REFERENCES * 3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.score(candidates, references)
    cut, empty = (str(warning.message) for warning in caught)
    assert "are longer than the 8 tokens that the model takes" in cut
    total = len([i for i in range(len(candidates)) if i % 5 == 0])
    named = ", ".join(f"cands[{5 * i}]" for i in range(min(10, total)))
    assert empty.startswith(named)
    assert made.tokens_total > made.tokens_seen > 0
    for warning in caught:
        assert warning.filename == __file__
    with warnings.catch_warnings(record=True) as streamed:
        warnings.simplefilter("always")
        stream = made.score_stream(zip(candidates, references, strict=True))
        next(stream)
        early = [str(warning.message) for warning in streamed]
        list(stream)
    assert early  # a stream may have no end: it is said when it is known,
    assert len(streamed) <= 4  # and summed up at its end
    assert str(streamed[-1].message).split(": ")[1] == empty.split(": ")[1]
    assert str(streamed[-1].message).count("pairs[") == min(10, total)
    for warning in streamed:
        assert warning.filename == __file__


def test_the_bar_counts_every_text_and_tokens(
    tiny_model: TinyModel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER)
    made.score(CANDIDATES[:6], REFERENCES[:6])
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(corpus, "PORTION_CHARACTERS", 300)
    pairs = list(zip(CANDIDATES * 2, REFERENCES * 2, strict=True))
    list(made.score_stream(pairs, verbose=True, total=2 * len(pairs)))
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{2 * len(pairs)}/{2 * len(pairs)}" in err
    assert "texts/s" in err
    assert "tokens/s" in err
    made.score(CANDIDATES, REFERENCES, verbose=True)
    assert f"{2 * len(CANDIDATES)}/{2 * len(CANDIDATES)}" in capsys.readouterr().err


def test_the_bar_counts_parts_of_texts(capsys: pytest.CaptureFixture[str]) -> None:
    """By their tokens: a book beside its summary is nearly all of the two."""
    progress = reports.Progress(bar=True, texts=7)
    progress.encoding()
    progress.begin(3, 100)
    progress.encoded(60, 50)
    assert progress._bar.n == 1.5
    progress.encoded(60, 50)
    assert (progress._bar.n, type(progress._bar.n)) == (3, int)
    progress.end()
    progress.begin(4, 10)
    progress.encoded(2, 2)
    assert progress._bar.n == 3.8
    progress.end()  # the others were kept
    assert progress._bar.n == 7
    progress.matching()
    progress.close()
    shown = capsys.readouterr().err
    assert "7/7" in shown
    assert "matching" in shown
