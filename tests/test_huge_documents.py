"""Fear: a document too large to be handled at once is handled otherwise than a small one."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flashbertscore import BERTScorer, StorageError, TextError, loading, score, storage, tokens
from flashbertscore.storage import Storage, make_storage
from helpers.record_token_ids import RECORDED
from helpers.stress_texts import STRESS_TEXTS
from helpers.texts import CANDIDATES, REFERENCES, SENTENCES

LAYER = 3
TinyModel = Callable[[str], str]
DATA = Path(__file__).parent / "data" / "token_ids"
STORY = " ".join(SENTENCES)

# What is hard to cut: no spaces, runs of white space, line ends, combining characters, and text
# that a tokenizer turns into its special tokens.
HARD = {
    "sentences": STORY * 5,
    "lines": "\n".join(SENTENCES) * 5,
    "wide": "  \t\n ".join(SENTENCES) * 5,
    "chinese": "我喜欢猫，但是狗更好。" * 200,  # noqa: RUF001
    "one word": "donaudampfschiff" * 150,
    "marks": "e\u0301a\u0308 \u200b\ufeff" * 300,
    "special": "[SEP] <s> </s> [CLS] <mask> snow " * 60,
    # A period that the tokenizer has a token for: what is before a place decides where it begins.
    "dots": "w" + "." * 3001,
    "stress": " ".join(text for text in STRESS_TEXTS if len(text) < 5000),
}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of some 100 characters of texts above 400."""
    monkeypatch.setattr(tokens, "_CHUNK_CHARACTERS", 400)
    monkeypatch.setattr(tokens, "_PART", 100)


@pytest.mark.parametrize("family", RECORDED)
def test_ids_in_parts_are_those_of_the_whole(
    family: str, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    del small_parts
    tokenizer = loading.load_tokenizer(str(DATA / family))
    space = loading.wants_prefix_space(tokenizer)
    texts = list(HARD.values())
    calls: list[int] = []
    original = tokens._call

    def spy(made: Any, given: list[str]) -> list[list[int]]:
        calls.append(max(map(len, given)))
        return original(made, given)

    monkeypatch.setattr(tokens, "_call", spy)
    found = tokens.tokenize(texts, tokenizer, prefix_space=space, max_length=None).tolist()
    assert min(calls) < 400
    cut = tokens.tokenize(texts, tokenizer, prefix_space=space, max_length=20)
    monkeypatch.undo()
    whole = tokens.tokenize(texts, tokenizer, prefix_space=space, max_length=None)
    expected = whole.tolist()
    for name, ours, theirs in zip(HARD, found, expected, strict=True):
        assert ours == theirs, name
    assert torch.equal(cut.totals, whole.totals)
    short = tokens.tokenize(texts, tokenizer, prefix_space=space, max_length=20)
    assert torch.equal(cut.ids, short.ids)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_words_with_spaces_are_never_taken_whole(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = loading.load_tokenizer(str(DATA / family))
    longest = 0
    original = tokens._call

    def spy(made: Any, texts: list[str]) -> list[list[int]]:
        nonlocal longest
        longest = max(longest, *map(len, texts))
        return original(made, texts)

    monkeypatch.setattr(tokens, "_call", spy)
    texts = [HARD["sentences"], HARD["lines"]]
    if family != "xlm-roberta":  # which would put a space before each part
        texts.append(HARD["chinese"])
    tokens.tokenize(texts, tokenizer)
    assert longest <= tokens._BEFORE[0] + tokens._AFTER


@pytest.mark.usefixtures("small_parts")
def test_a_tokenizer_without_a_place_to_cut_gets_the_whole(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = BERTScorer(tiny_model("bert"), LAYER)._encoder
    text = "x" * 1000  # one word of more characters than the tokenizer takes: unknown as a whole
    assert loaded.tokenize([text]).ids.tolist() == loaded.tokenize(["[UNK]"]).ids.tolist()
    seen = []
    original = tokens._call
    monkeypatch.setattr(tokens, "_call", lambda m, t: seen.extend(map(len, t)) or original(m, t))
    loaded.tokenize([text])
    assert max(seen) == 1000


@pytest.mark.usefixtures("small_parts")
def test_a_long_text_that_the_tokenizer_fails_on_is_named(tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER)
    plain = made._tokenizer

    class Fails:
        def __getattr__(self, name: str) -> Any:
            return getattr(plain, name)

        def __call__(self, texts: Any, **options: Any) -> Any:
            if any("dog" in text for text in texts):
                raise ValueError("no dogs")
            return plain(texts, **options)

    with pytest.raises(TextError, match="the tokenizer failed: ValueError: no dogs") as caught:
        tokens.tokenize(["snow", STORY * 2 + "cat dog " * 100], Fails())
    assert caught.value.index == 1


@pytest.mark.parametrize("options", [{}, {"all_layers": True}, {"idf": True}])
def test_a_file_holds_what_memory_holds(
    options: dict[str, Any],
    tiny_model: TinyModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tiny_model("bert")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    expected = score(CANDIDATES, REFERENCES, path, LAYER, **options)
    found = score(CANDIDATES, REFERENCES, path, LAYER, max_memory=0, **options)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert list(tmp_path.iterdir()) == []


def test_a_file_has_no_name_and_says_that_it_is_there(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flashbertscore"):
        kept = Storage(max_memory=100).allocate([7, 5], torch.empty(1, dtype=torch.bfloat16))
        assert "temporary file" not in caplog.text
        mapped = Storage(max_memory=100).allocate([2, 7, 5], torch.empty(1, dtype=torch.float32))
    assert "of embeddings are kept in a temporary file in" in caplog.text
    assert (kept.dtype, mapped.dtype) == (torch.bfloat16, torch.float32)
    assert (kept.shape, mapped.shape) == ((7, 5), (2, 7, 5))
    mapped.fill_(3)
    assert mapped.sum() == 3 * 70
    own = [line for line in Path("/proc/self/maps").read_text().splitlines() if "deleted" in line]
    assert own


def test_a_file_is_not_copied_into_memory(tiny_model: TinyModel) -> None:
    """Not even to be kept for a later call: the bound is what may be in memory."""
    made = BERTScorer(tiny_model("bert"), LAYER, max_memory=1000)
    made.score(CANDIDATES, REFERENCES)
    assert len(made._embeddings) == 0
    roomy = BERTScorer(tiny_model("bert"), LAYER)
    roomy.score(CANDIDATES, REFERENCES)
    assert len(roomy._embeddings) > 0


def test_parts_are_handed_on_as_they_come(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    """So that no list holds the ids of a whole book."""
    del small_parts
    made = BERTScorer(tiny_model("bert"), LAYER)
    most = 0
    original = tokens._call

    def spy(tokenizer: Any, texts: list[str]) -> list[list[int]]:
        nonlocal most
        most = max(most, sum(map(len, texts)))
        return original(tokenizer, texts)

    monkeypatch.setattr(tokens, "_call", spy)
    made._encoder.tokenize([STORY * 50])
    assert most < 3000 < len(STORY) * 50


def test_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch, tiny_model: TinyModel) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match=r"no room for .* set TMPDIR") as caught:
        score(CANDIDATES, REFERENCES, tiny_model("bert"), LAYER, max_memory=0)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == tempfile.gettempdir()


def test_a_folder_that_is_gone_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tiny_model: TinyModel, tmp_path: Path
) -> None:
    """And no fault of the model, which would be looked for in every text."""
    gone = str(tmp_path / "gone")
    monkeypatch.setattr(tempfile, "tempdir", gone)
    with pytest.raises(StorageError, match=r"\(No such file or directory\); set TMPDIR") as caught:
        score(CANDIDATES, REFERENCES, tiny_model("bert"), LAYER, max_memory=0)
    assert caught.value.filename == gone


def test_a_file_that_cannot_be_mapped_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(StorageError, match="Cannot allocate memory"):
        Storage(max_memory=0).allocate([7, 5], torch.empty(1))


def test_bfloat16_embeddings_of_a_float32_model(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    plain = score(CANDIDATES, REFERENCES, path, LAYER)
    for options in ({}, {"max_memory": 0}):
        found = score(CANDIDATES, REFERENCES, path, LAYER, embeddings_dtype="bfloat16", **options)
        difference = (found.f1 - plain.f1).abs().max()
        assert 0 < difference < 5e-3
    made = BERTScorer(path, LAYER, embeddings_dtype=torch.bfloat16)
    first = made.score(CANDIDATES, REFERENCES)
    for ours, again in zip(first, made.score(CANDIDATES, REFERENCES), strict=True):
        assert torch.equal(ours, again)  # from those that are kept


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embeddings_dtype": "float16"}, "embeddings_dtype: expected float32, bfloat16 or None"),
        ({"max_memory": -1}, "max_memory: expected at least 0 bytes, got -1"),
        ({"max_memory": "8G"}, "max_memory: expected a number of bytes or None, got str"),
        ({"max_memory": True}, "max_memory: expected a number of bytes or None, got bool"),
    ],
)
def test_storage_that_cannot_be(
    options: dict[str, Any], message: str, tiny_model: TinyModel
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        BERTScorer(tiny_model("bert"), LAYER, **options)


def test_the_bound_is_half_of_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = storage.memory_of_machine()
    assert 1 << 28 < whole <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert make_storage(None, None).bound == whole // 2
    group = tmp_path / "memory.max"
    monkeypatch.setattr(storage, "_LIMITS", (str(tmp_path / "none"), str(group)))
    group.write_text("max\n")
    assert storage.memory_of_machine() >= whole
    group.write_text("1000000\n")
    assert storage.memory_of_machine() == 1_000_000


class Gpu:
    """A tensor that says that it is on a GPU of which little is free."""

    device = torch.device("cuda")
    dtype = torch.float32

    def new_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> str:
        return f"on the device {shape} {dtype}"


def test_what_does_not_fit_a_gpu_goes_to_main_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (600, 10_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100)
    like: Any = Gpu()
    held: Any = Storage().allocate([200], like)  # 800 bytes of 1,000
    assert held == "on the device (200,) torch.float32"
    with caplog.at_level(logging.INFO, "flashbertscore"):
        host = Storage().allocate([201], like)
    assert host.device.type == "cpu"
    assert "kept and matched on the CPU" in caplog.text
