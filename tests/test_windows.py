"""Fear: a long document loses tokens, or they are embedded with less context than there is."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from flashbertscore import BERTScorer, LongTextError, TextError, corpus, encoder, score
from flashbertscore.coverage import Coverage
from flashbertscore.encoder import load
from flashbertscore.tokens import Tokens
from flashbertscore.windows import Pieces, Windows, cut, make_windows
from helpers.texts import CANDIDATES, REFERENCES, SENTENCES

LAYER = 3
TinyModel = Callable[[str], str]
STORY = " ".join(SENTENCES)


def tokens_of(*lengths: int) -> Tokens:
    """Texts of these lengths, whose ids are all different."""
    of_text = torch.tensor(lengths, dtype=torch.int64)
    offsets = torch.cat([of_text.new_zeros(1), of_text.cumsum(0)])
    ids = torch.arange(100, 100 + int(of_text.sum()))
    return Tokens(ids, offsets, of_text, torch.zeros(len(lengths), dtype=torch.bool))


def context(token: int, window: range) -> int:
    """Tokens of the window on the nearer side of a token."""
    return min(token - window.start, window.stop - 1 - token)


def expected_window(token: int, own: int, windows: Windows) -> range:
    """The window that a token of a text of `own` tokens takes its embedding from."""
    starts = [*range(0, own - windows.room, windows.stride), own - windows.room]
    every = [range(start, start + windows.room) for start in starts]
    return max(
        (window for window in every if token in window), key=lambda window: context(token, window)
    )


@pytest.mark.parametrize(("before", "after"), [(1, 1), (0, 1), (0, 0), (2, 1)])
@pytest.mark.parametrize("room", [1, 2, 5, 8])
def test_every_token_is_taken_once_where_it_has_most_context(
    room: int, before: int, after: int
) -> None:
    size = room + before + after
    for stride in range(1, room + 1):
        windows = Windows(size, stride, before, after)
        lengths = [*range(size + 12), 2 * size, 3 * size + 1]
        tokens = tokens_of(*lengths)
        pieces = cut(tokens, windows, torch.arange(len(tokens)))
        assert sorted(pieces.targets().tolist()) == list(range(len(tokens.ids)))
        assert int(pieces.lengths.max()) == size
        # What the model gives is told by the ids, which are all different.
        given = tokens.ids[pieces.rows()][pieces.sources()]
        assert torch.equal(given, tokens.ids[pieces.targets()])
        check_contexts(tokens, pieces, windows)
        assert pieces.texts.unique().tolist() == [i for i, n in enumerate(lengths) if n]


def check_contexts(tokens: Tokens, pieces: Pieces, windows: Windows) -> None:
    for number in range(len(pieces.into)):
        piece = pieces.select(torch.tensor([number]))
        ids = piece.rows().tolist()
        text = int(piece.texts)
        start, stop = tokens.offsets[text : text + 2].tolist()
        if stop - start <= windows.size:
            assert ids == list(range(start, stop))
            continue
        first = start + windows.before
        own = stop - start - windows.before - windows.after
        window = range(ids[windows.before] - first, ids[windows.before] - first + windows.room)
        body = list(range(first + window.start, first + window.stop))
        assert ids == [*range(start, first), *body, *range(stop - windows.after, stop)]
        for taken in piece.targets().tolist():
            token = min(max(taken - first, 0), own - 1)  # special ones go with their neighbour
            assert window == expected_window(token, own, windows)


def test_a_selection_of_texts() -> None:
    tokens = tokens_of(9, 3, 0, 20)
    windows = Windows(8, 3, 1, 1)
    pieces = cut(tokens, windows, torch.tensor([3, 1]))
    assert sorted(pieces.targets().tolist()) == [*range(9, 12), *range(12, 32)]


@pytest.mark.parametrize(
    ("limit", "window", "stride", "message"),
    [
        (512, 600, None, "window: expected at least 3 (special tokens included) and at most 512"),
        (512, 2, None, "window: expected at least 3"),
        (None, 0, None, "window: expected at least 3 (special tokens included), got 0"),
        (512, None, 0, "stride: expected 1 to 510, the tokens of a text in a window, got 0"),
        (512, 100, 99, "stride: expected 1 to 98"),
        (None, None, 5, "stride: expected None without a window"),
        (512, "8", None, "window: expected int or None, got str"),
        (512, 8, 2.0, "stride: expected int or None, got float"),
        (512, True, None, "window: expected int or None, got bool"),
    ],
)
def test_what_does_not_fit_is_said(
    limit: int | None, window: Any, stride: Any, message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        make_windows(limit, (1, 1), window, stride)


def test_defaults_come_from_the_model() -> None:
    assert make_windows(512, (1, 1), None, None) == Windows(512, 382, 1, 1)
    assert make_windows(None, (1, 1), None, None) is None
    assert make_windows(3, (1, 1), None, None) == Windows(3, 1, 1, 1)


FAMILIES = ["bert", "roberta", "t5", "xlnet"]


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_are_those_of_the_windows(family: str, tiny_model: TinyModel) -> None:
    """Around every boundary, in one batch with other texts."""
    loaded = load(tiny_model(family), LAYER).for_documents("window", 16, 9)
    windows = loaded.windows
    assert windows is not None
    texts = texts_of_lengths(loaded, [15, 16, 17, 32, 33, 100])
    tokens = loaded.tokenize([*texts, "snow", "", STORY])
    packed = loaded.encode(tokens)
    plain = loaded.for_documents("truncate")
    for ids, rows in zip(tokens.tolist(), packed.split(tokens.lengths.tolist()), strict=True):
        if len(ids) <= 16:
            alone = plain.encode(as_tokens([ids]))
            torch.testing.assert_close(rows, alone, atol=1e-5, rtol=0)
            continue
        before, own = ids[: windows.before], ids[windows.before : len(ids) - windows.after]
        after = ids[len(ids) - windows.after :]
        for token in range(len(own)):
            window = expected_window(token, len(own), windows)
            part = [*before, *own[window.start : window.stop], *after]
            alone = plain.encode(as_tokens([part]))[windows.before + token - window.start]
            torch.testing.assert_close(rows[windows.before + token], alone, atol=1e-5, rtol=0)


def as_tokens(ids: list[list[int]]) -> Tokens:
    lengths = torch.tensor([len(one) for one in ids])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    flat = torch.tensor(list(itertools.chain.from_iterable(ids)))
    return Tokens(flat, offsets, lengths, torch.zeros(len(ids), dtype=torch.bool))


def texts_of_lengths(loaded: encoder.Encoder, lengths: list[int]) -> list[str]:
    """Texts that have these many ids, special ones included."""
    found = []
    for length in lengths:
        words: list[str] = []
        for word in STORY.split():
            words.append(word)
            count = loaded.tokenize([" ".join(words)]).tokens_seen
            if count > length:  # a word of several tokens too many: fill up with one letter
                words.pop()
                while loaded.tokenize([" ".join(words)]).tokens_seen < length:
                    words.append("a")
            if loaded.tokenize([" ".join(words)]).tokens_seen == length:
                break
        text = " ".join(words)
        assert loaded.tokenize([text]).tokens_seen == length
        found.append(text)
    return found


def test_a_window_may_begin_inside_a_word(tiny_model: TinyModel) -> None:
    loaded = load(tiny_model("bert"), LAYER).for_documents("window", 8, 3)
    text = "unbelievably " * 20
    tokens = loaded.tokenize([text])
    names = loaded.tokenizer.convert_ids_to_tokens(tokens.ids.tolist())
    pieces = cut(tokens, loaded.windows, torch.tensor([0]))
    begins = [names[row] for row in pieces.starts[:, 1].tolist()]
    assert any(name.startswith("##") for name in begins)
    assert len(loaded.encode(tokens)) == tokens.tokens_total == len(names)


def test_a_text_of_special_tokens_alone(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    made = BERTScorer(path, LAYER, long_documents="window", window=8)
    text = "[SEP] " * 50
    with pytest.warns(UserWarning, match="the token weights of a text sum to 0"):
        found = made.score([text], [STORY])
    assert found.precision.isnan().item()
    assert found.f1.item() == 0
    assert found.coverage.candidates.tolist() == [[52, 52]]
    with pytest.warns(UserWarning, match="no tokens in the text"):
        assert made.score([""], [STORY]).f1.item() == 0


@pytest.mark.parametrize("options", [{}, {"all_layers": True}, {"idf": True}])
def test_texts_that_fit_keep_every_bit(options: dict[str, Any], tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    plain = score(CANDIDATES, REFERENCES, path, LAYER, **options)
    windows = score(CANDIDATES, REFERENCES, path, LAYER, long_documents="window", **options)
    strict = score(CANDIDATES, REFERENCES, path, LAYER, long_documents="error", **options)
    for other in (windows, strict):
        for ours, theirs in zip(other, plain, strict=True):
            assert torch.equal(ours, theirs)


def test_texts_that_fit_keep_every_bit_beside_long_ones(tiny_model: TinyModel) -> None:
    """Whose windows are in their batches."""
    path = tiny_model("bert")
    made = BERTScorer(path, LAYER, long_documents="window", window=64)
    if "own-layers" not in made.signature:
        pytest.skip("no layers of our own on this processor: bits depend on the batch")
    alone = made.score(CANDIDATES, REFERENCES)
    fresh = BERTScorer(path, LAYER, long_documents="window", window=64)
    among = fresh.score([STORY, *CANDIDATES, STORY[::-1]], [STORY[9:], *REFERENCES, STORY])
    for ours, theirs in zip(among, alone, strict=True):
        assert torch.equal(ours[1:-1], theirs)


def test_windows_of_different_documents_share_batches(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    original = encoder.Encoder.forward

    def spy(self: encoder.Encoder, tokens: Tokens, pieces: Pieces, *rest: Any) -> torch.Tensor:
        seen.append(pieces.texts.unique().tolist())
        return original(self, tokens, pieces, *rest)

    monkeypatch.setattr(encoder.Encoder, "forward", spy)
    loaded = load(tiny_model("bert"), LAYER).for_documents("window", 16)
    loaded.encode(loaded.tokenize([STORY, STORY[::-1], "snow"]), token_budget=2048)
    assert any(len(texts) > 1 for texts in seen)


def test_idf_and_weights_are_of_the_whole_document(tiny_model: TinyModel) -> None:
    """A word that stands only beyond the first window counts for it."""
    path = tiny_model("bert")
    references = [f"{'snow ' * 40} cat", "cat", "dog"]
    options: dict[str, Any] = {"long_documents": "window", "window": 12}
    made = BERTScorer(path, LAYER, idf=True, idf_sents=references, **options)
    short = BERTScorer(path, LAYER, idf=True, idf_sents=references)
    ids = made._encoder.tokenize(["cat"]).ids.tolist()
    assert [made._idf_dict[i] for i in ids] == [short._idf_dict[i] for i in ids]
    short._tokenizer.model_max_length = 12
    short._idf_dict = None
    short.compute_idf(references)
    assert [made._idf_dict[i] for i in ids] != [short._idf_dict[i] for i in ids]


def test_scores_are_those_of_the_op_on_whole_documents(tiny_model: TinyModel) -> None:
    """Each token looks for its match in all of the other text, not in a window of it."""
    made = BERTScorer(tiny_model("bert"), LAYER, long_documents="window", window=64)
    tokens = made._encoder.tokenize([STORY, STORY[::-1]])
    x, y = torch.split(made._encoder.encode(tokens), tokens.lengths.tolist())
    unit = [side.double() / side.double().norm(dim=1, keepdim=True) for side in (x, y)]
    cosines = unit[0] @ unit[1].T
    p, r = cosines.max(dim=1).values[1:-1].mean(), cosines.max(dim=0).values[1:-1].mean()
    found = made.score([STORY], [STORY[::-1]])
    assert found.precision.item() == pytest.approx(p.item(), abs=1e-6)
    assert found.recall.item() == pytest.approx(r.item(), abs=1e-6)


def test_a_model_without_a_limit_gets_whole_texts(tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("t5"), LAYER, long_documents="window")  # relative positions
    made._tokenizer.model_max_length = int(1e30)
    assert made._encoder.windows is None
    assert made.score([STORY], [STORY[::-1]]).coverage.complete


@pytest.mark.parametrize("several", [False, True])
def test_error_names_the_text(several: bool, tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    references: Any = (
        [["snow", f"{'snow ' * 600}"], ["snow"]] if several else ["snow", "cat " * 600]
    )
    place = r"refs\[0\]\[1\]" if several else r"refs\[1\]"
    with pytest.raises(LongTextError, match=place + ": expected at most 512 tokens") as caught:
        score(["snow", "cat"], references, path, LAYER, long_documents="error")
    assert caught.value.index == (0 if several else 1)
    assert isinstance(caught.value, ValueError)
    made = BERTScorer(path, LAYER, long_documents="error")
    stream = made.score_stream([("cat", "dog"), ("snow", "snow " * 600)])
    assert next(stream).f1 > 0  # what comes before it comes out
    with pytest.raises(LongTextError, match=r"pairs\[1\]\[1\]"):
        next(stream)
    with pytest.raises(TextError, match=r"cands\[0\]: expected at most 512"):
        made.score_matrix(["snow " * 600], ["snow"])
    with pytest.raises(LongTextError, match=r"sents\[1\]"):
        made.compute_idf(["cat", "snow " * 600])


def test_options_that_mean_nothing_are_refused(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    with pytest.raises(ValueError, match="long_documents: expected one of truncate, window, error"):
        BERTScorer(path, LAYER, long_documents="cut")
    with pytest.raises(ValueError, match="window: expected None without long_documents='window'"):
        score(["a"], ["b"], path, LAYER, window=100)
    with pytest.raises(ValueError, match="stride: expected None without long_documents='window'"):
        BERTScorer(path, LAYER, long_documents="error", stride=3)
    with pytest.raises(ValueError, match="at most 512, what the model takes, got 513"):
        BERTScorer(path, LAYER, long_documents="window", window=513)


def warning_of_cut(policy: str) -> AbstractContextManager[object]:
    if policy == "truncate":
        return pytest.warns(UserWarning, match="longer than the 512 tokens")
    return nullcontext()


@pytest.mark.parametrize("policy", ["truncate", "window"])
def test_coverage(policy: str, tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    long = "snow " * 600
    cands, refs = [long, "snow", "cat"], [["cat", long], ["snow"], [long]]
    made = BERTScorer(path, LAYER, long_documents=policy)
    total = made._encoder.for_documents("window").tokenize([long]).tokens_seen
    seen = 512 if policy == "truncate" else total
    with warning_of_cut(policy):
        found = made.score(cands, refs)
    coverage = found.coverage
    one = made._encoder.tokenize(["snow"]).tokens_seen
    cat = made._encoder.tokenize(["cat"]).tokens_seen
    assert coverage.candidates.tolist() == [[seen, total], [one, one], [cat, cat]]
    assert coverage.references.tolist() == [[cat, cat], [seen, total], [one, one], [seen, total]]
    assert coverage.complete == (policy == "window")
    assert coverage.cut == (3 if policy == "truncate" else 0)
    assert len(coverage) == 7
    assert coverage.seen == 3 * seen + 2 * one + 2 * cat
    assert coverage.total == 3 * total + 2 * one + 2 * cat
    with warning_of_cut(policy):
        rows = list(made.score_stream(list(zip(cands, refs, strict=True))))
    assert rows[0].coverage.candidates.tolist() == [[seen, total]]
    assert rows[0].coverage.references.tolist() == [[cat, cat], [seen, total]]
    assert rows[2].coverage.references.tolist() == [[seen, total]]
    p, r, f = found  # still the triple of the reference
    assert torch.equal(p, found.precision)
    assert len(found) == 3
    assert torch.equal(torch.tensor([row.f1 for row in rows]), f)
    assert r.shape == (3,)


def test_coverage_of_nothing(tiny_model: TinyModel) -> None:
    found = BERTScorer(tiny_model("bert"), LAYER).score([], [])
    assert (len(found.coverage), found.coverage.complete) == (0, True)
    assert str(found.coverage) == "all 0 tokens of 0 texts"


def test_kept_embeddings_are_those_of_these_windows(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    made = BERTScorer(path, LAYER, long_documents="window", window=16)
    first = made.score([STORY], [STORY[::-1]])
    made._documents = ("window", 24, None)
    other = made.score([STORY], [STORY[::-1]])
    expected = score([STORY], [STORY[::-1]], path, LAYER, long_documents="window", window=24)
    assert not torch.equal(first.f1, other.f1)
    assert torch.equal(other.f1, expected.f1)


def test_coverage_of_comparisons(tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER)
    long = "snow " * 600
    lengths = dict(
        zip(("cat", "a dog"), made._encoder.tokenize(["cat", "a dog"]).lengths, strict=True)
    )
    cat, dog = (int(n) for n in lengths.values())
    total = made._encoder.for_documents("window").tokenize([long]).tokens_seen
    with warning_of_cut("truncate"):
        grid = made.score_matrix([long, "cat"], ["a dog", "cat", long])
    assert grid.coverage.candidates.tolist() == [[512, total], [cat, cat]]
    assert grid.coverage.references.tolist() == [[dog, dog], [cat, cat], [512, total]]
    assert grid.f1.shape == (2, 3)
    with warning_of_cut("truncate"):
        choice = made.mbr([["cat", long], ["a dog"]])
    assert choice.coverage.candidates.tolist() == [[cat, cat], [512, total], [dog, dog]]
    assert len(choice.coverage) == 3
    with warning_of_cut("truncate"):
        explained = made.explain("cat", long)
    assert explained.coverage.references.tolist() == [[512, total]]
    assert explained.as_dict()["coverage"]["texts_cut"] == 1
    whole = BERTScorer(tiny_model("bert"), LAYER, long_documents="window").explain("cat", long)
    assert len(whole.reference) == total
    assert made.score_matrix([], ["cat"]).coverage.complete


def test_a_result_survives_a_pickle(tiny_model: TinyModel) -> None:
    found = score(["cat"], ["a dog"], tiny_model("bert"), LAYER)
    again = pickle.loads(pickle.dumps(found))  # noqa: S301
    assert torch.equal(again.f1, found.f1)
    assert again.coverage.candidates.tolist() == found.coverage.candidates.tolist()


def test_a_pair_of_a_stream_holds_its_own_coverage_alone(tiny_model: TinyModel) -> None:
    """Its pickle must not grow with the number of pairs beside it."""
    made = BERTScorer(tiny_model("bert"), LAYER)
    pairs = [("cat", "a dog"), ("snow", ["cat", "dog"])]
    few, many = (list(made.score_stream(pairs * n)) for n in (1, 50))
    for one, among in zip(few, many, strict=False):
        assert len(pickle.dumps(among)) == len(pickle.dumps(one))
        assert pickle.loads(pickle.dumps(among)).coverage.total == one.coverage.total  # noqa: S301


def test_coverage_counts_one_token() -> None:
    whole = torch.tensor([[10, 10]])
    short = Coverage(whole, torch.tensor([[1_999_999, 2_000_000]]))
    assert not short.complete
    assert str(short).startswith("2,000,009 of 2,000,010 tokens (99.9 %), 1 of 2 texts were cut")
    assert Coverage(whole, whole).complete


def test_coverage_of_several_references_over_portions(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "PORTION_CHARACTERS", 1)
    made = BERTScorer(tiny_model("bert"), LAYER)
    groups = [["a", "a b"], ["a"], ["a b c", "a", "a b"]]
    coverage = made.score(["a", "b", "c"], groups).coverage
    expected = [made._encoder.tokenize(group).lengths.tolist() for group in groups]
    assert [one.references[:, 1].tolist() for one in coverage.each()] == expected


def test_other_columns_keep_the_coverage(tiny_model: TinyModel) -> None:
    found = score(["cat"], ["a dog"], tiny_model("bert"), LAYER)
    assert found._replace(f1=found.f1 * 2).coverage is found.coverage


def test_what_fails_late_is_found_in_its_batch(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by encoding a document of hours again."""
    made = BERTScorer(tiny_model("bert"), LAYER, long_documents="window", window=16)
    original = encoder.Encoder.forward
    calls: list[int] = []
    monkeypatch.setattr(encoder.Encoder, "_side_by_side", False)

    def fails(self: encoder.Encoder, tokens: Tokens, pieces: Pieces, *rest: Any) -> torch.Tensor:
        calls.append(len(pieces.into))
        if (pieces.into > 150).any():
            raise RuntimeError("no more")
        return original(self, tokens, pieces, *rest)

    monkeypatch.setattr(encoder.Encoder, "forward", fails)
    with pytest.raises(TextError, match=r"cands\[0\]: the model failed: RuntimeError: no more"):
        made.score([STORY], ["snow"], batch_size=4)
    failed = calls.index(1)  # from there on pieces one by one
    assert len(calls) - failed <= 4
