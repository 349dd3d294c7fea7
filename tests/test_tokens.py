"""Ids: those of transformers 4, on every version, whatever the text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from flashbertscore import architectures, loading
from flashbertscore.encoder import load
from flashbertscore.tokens import Tokens, ranges, tokenize
from helpers import reference
from helpers.record_token_ids import RECORDED, slow_ids
from helpers.stress_texts import STRESS_TEXTS
from helpers.texts import SENTENCES
from helpers.tiny_models import FAMILIES, quiet

DATA = Path(__file__).parent / "data" / "token_ids"

# Texts in which a special token of the family stands literally, after a space. Without a
# tokenizer.json transformers 5 does not know that <mask> swallows that space.
LITERAL = {73, 75, 76}
OTHER_UNDER_5 = {"albert": {73}, "bart": {75, 76}, "longformer": {75, 76}, "deberta": {73}}


def recorded(family: str) -> tuple[list[list[int]], dict[int, list[int]]]:
    found = json.loads((DATA / family / "ids.json").read_text(encoding="utf-8"))
    return found["ids"], {int(number): ids for number, ids in found["slow"].items()}


def ids_of(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    prefix_space = loading.wants_prefix_space(tokenizer)
    return tokenize(texts, tokenizer, prefix_space=prefix_space).tolist()


@pytest.mark.parametrize("family", RECORDED)
def test_ids_are_those_of_transformers_4(family: str) -> None:
    expected, _ = recorded(family)
    got = ids_of(loading.load_tokenizer(str(DATA / family)), list(STRESS_TEXTS))
    differ = {number for number, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b}
    assert differ == (OTHER_UNDER_5.get(family, set()) if reference.V5 else set())


@pytest.mark.parametrize("family", RECORDED)
def test_where_slow_ids_differ_is_what_is_documented(family: str) -> None:
    if reference.V5:
        pytest.skip("transformers 5 has no slow tokenizers; run under 4 (make compat)")
    expected, documented = recorded(family)
    with quiet():
        slow = transformers.AutoTokenizer.from_pretrained(DATA / family, use_fast=False)
    prefix_space = architectures.wants_prefix_space(None, FAMILIES[family].model_type)
    for number, text in enumerate(STRESS_TEXTS):
        ids = slow_ids(slow, text, prefix_space=prefix_space) or expected[number]
        assert ids == documented.get(number, expected[number]), (number, text)


@pytest.mark.parametrize("family", RECORDED)
def test_plain_sentences_have_the_same_ids_slow_and_fast(family: str) -> None:
    _, slow = recorded(family)
    plain = {i for i, text in enumerate(STRESS_TEXTS) if text.isascii() and text.isprintable()}
    plain -= {number for number in plain if "<" in STRESS_TEXTS[number]} | LITERAL
    repeated = {i for i, text in enumerate(STRESS_TEXTS) if len(set(text)) < 10}
    assert set(slow) & plain <= repeated


def test_table_of_differences_in_the_documentation_is_current() -> None:
    page = (Path(__file__).parents[1] / "docs" / "token_ids.md").read_text(encoding="utf-8")
    for family in RECORDED:
        _, slow = recorded(family)
        row = next(line for line in page.splitlines() if line.startswith(f"| {family} |"))
        assert [cell.strip() for cell in row.split("|")][2] == str(len(slow)), row


@pytest.mark.parametrize("family", ["roberta", "gpt2"])
def test_space_before_the_first_word(family: str) -> None:
    loaded = loading.load_tokenizer(str(DATA / family))
    first, later = ids_of(loaded, ["snow", "It is snow"])
    special = 1 if family == "roberta" else 0
    word = first[special : len(first) - special]
    assert later[-len(word) - special : len(later) - special] == word


@pytest.mark.parametrize("family", ["bert", "bart", "longformer", "deberta", "modernbert", "t5"])
def test_no_space_before_the_first_word_of_other_families(family: str) -> None:
    loaded = loading.load_tokenizer(str(DATA / family))
    assert not loading.wants_prefix_space(loaded)


@pytest.mark.parametrize("family", RECORDED)
def test_a_tokenizer_that_was_saved_again_gives_the_same_ids(family: str, tmp_path: Path) -> None:
    tokenizer = loading.load_tokenizer(str(DATA / family))
    tokenizer.save_pretrained(tmp_path)
    shutil.copy(DATA / family / "config.json", tmp_path)
    texts = [text for n, text in enumerate(STRESS_TEXTS) if n not in LITERAL]
    assert ids_of(loading.load_tokenizer(str(tmp_path)), texts) == ids_of(tokenizer, texts)


def test_white_space_around_a_text_is_dropped(tiny_model: Any) -> None:
    encoder = load(tiny_model("roberta"), 1)
    plain, *others = encoder.tokenize(["snow", " snow", "\tsnow\n", "\u3000snow\u00a0"]).tolist()
    assert others == [plain] * 3


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_empty_text(family: str, tiny_model: Any) -> None:
    tokens = Bare(tiny_model(family)).tokenize(["", " \n", "snow"])
    nothing, blank, snow = tokens.tolist()
    assert nothing == blank
    assert set(nothing) <= set(snow)
    assert tokens.empty.tolist() == [True, True, False]
    assert len(nothing) == {"t5": 1, "gpt2": 0}.get(family, 2)


class Bare:
    """A tokenizer without a model."""

    def __init__(self, path: str) -> None:  # noqa: D107
        self.tokenizer = loading.load_tokenizer(path)
        self.prefix_space = loading.wants_prefix_space(self.tokenizer)

    def tokenize(self, texts: list[str], max_length: int | None = None) -> Tokens:
        return tokenize(
            texts, self.tokenizer, prefix_space=self.prefix_space, max_length=max_length
        )


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("side", ["right", "left"])
def test_truncation_is_that_of_the_tokenizer(family: str, side: str, tiny_model: Any) -> None:
    bare = Bare(tiny_model(family))
    tokenizer = bare.tokenizer
    tokenizer.truncation_side = side
    text = " ".join(SENTENCES[:4])
    for length in (5, 17, 64):
        tokens = bare.tokenize([text, "snow"], length)
        with_space = " " + text if bare.prefix_space else text
        expected = tokenizer(with_space, truncation=True, max_length=length)["input_ids"]
        tokenizer("", truncation=False)
        assert tokens.tolist()[0] == expected
        assert len(expected) == length
        whole = bare.tokenize([text, "snow"])
        assert tokens.totals.tolist() == whole.lengths.tolist()
        assert tokens.cut.tolist() == [True, False]
        assert tokens.tokens_total == whole.tokens_seen == whole.tokens_total
        assert tokens.tokens_seen == length + int(whole.lengths[1])


def test_no_room_for_a_token(tiny_model: Any) -> None:
    bare = Bare(tiny_model("bert"))
    with pytest.raises(ValueError, match=r"model_max_length: expected more than 2.*got 2"):
        bare.tokenize(["snow"], 2)


def test_no_texts(tiny_model: Any) -> None:
    tokens = Bare(tiny_model("bert")).tokenize([])
    assert len(tokens) == tokens.tokens_seen == tokens.tokens_total == 0
    assert tokens.offsets.tolist() == [0]
    assert tokens.tolist() == []


def test_select_and_rows(tiny_model: Any) -> None:
    texts = ["It is raining.", "", "snow", "A small boat"]
    tokens = Bare(tiny_model("bert")).tokenize(texts)
    ids = tokens.tolist()
    chosen = torch.tensor([3, 0, 0, 1])
    part = tokens.select(chosen)
    assert part.tolist() == [ids[3], ids[0], ids[0], ids[1]]
    assert part.empty.tolist() == [False, False, False, True]
    assert tokens.ids[tokens.rows(chosen)].tolist() == part.ids.tolist()


def test_more_texts_than_a_call_of_the_tokenizer_takes(
    tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = Bare(tiny_model("roberta"))
    at_once = bare.tokenize(list(SENTENCES))
    monkeypatch.setattr("flashbertscore.tokens._CHUNK", 7)
    in_chunks = bare.tokenize(list(SENTENCES))
    assert in_chunks.tolist() == at_once.tolist()
    assert torch.equal(in_chunks.offsets, at_once.offsets)


def test_the_tokenizer_is_left_as_it_was(tiny_model: Any) -> None:
    bare = Bare(tiny_model("bert"))
    bare.tokenize(list(SENTENCES), 9)
    assert bare.tokenizer.backend_tokenizer.truncation is None
    assert bare.tokenizer.backend_tokenizer.padding is None


def test_settings_in_the_configuration_prevail_over_tokenizer_json(tmp_path: Path) -> None:
    folder = tmp_path / "cased"
    shutil.copytree(DATA / "bert", folder)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    for path, same in ((DATA / "bert", True), (folder, False)):
        upper, lower = ids_of(loading.load_tokenizer(str(path)), ["The", "the"])
        assert (upper == lower) is same


@pytest.mark.parametrize("scale", [1, 20_000])
def test_ranges(scale: int) -> None:
    starts, lengths = torch.tensor([7, 0, 3, 5]), torch.tensor([2, 0, 3, 1]) * scale
    expected = [start + i for start, n in zip(starts, lengths, strict=True) for i in range(int(n))]
    assert ranges(starts, lengths).tolist() == [int(x) for x in expected]
    assert ranges(starts[:0], lengths[:0]).tolist() == []
