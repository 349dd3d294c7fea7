"""Fear: a model made for long texts runs at less than its length, or differently than alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flashbertscore import BERTScorer, encoder, memory, score
from flashbertscore.tokens import Tokens
from flashbertscore.windows import Pieces
from helpers import reference
from helpers.texts import SENTENCES
from helpers.tiny_models import save_model

LAYER = 3
LENGTH = 1536
ROOM = {"max_position_embeddings": LENGTH + 2}

# What the models of each family are given beside what they have in FAMILIES.
LONG: dict[str, dict[str, Any]] = {
    "big-bird": ROOM | {"block_size": 16},
    "longformer": ROOM | {"attention_window": 32},
    "led": {"max_encoder_position_embeddings": LENGTH, "attention_window": 32},
    "modernbert": ROOM | {"local_attention": 32},
    "deberta-v2": {"position_biased_input": False},
    "t5": {},
    "xlnet": {},
}


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    root = tmp_path_factory.mktemp("long")

    def path(family: str) -> str:
        folder = root / family
        if not folder.exists():
            save_model(family, folder, max_length=LENGTH, **LONG[family])
        return str(folder)

    return path


def documents(count: int) -> list[str]:
    """Documents of some 1,200 tokens, no two alike."""
    words = " ".join(SENTENCES).split()
    return [" ".join(itertools.islice(itertools.cycle(words[i:]), 500)) for i in range(count)]


@pytest.mark.parametrize("family", LONG)
def test_the_numbers_of_the_reference(family: str, long_model: Callable[[str], str]) -> None:
    path = long_model(family)
    first, second = documents(2)
    found = score([first], [second], path, LAYER)
    assert found.coverage.complete
    assert found.coverage.seen > 2 * 512
    # One text at a time: BigBird's attention depends on the longest text of a batch.
    theirs = reference.score([first], [second], model_type=path, num_layers=LAYER, batch_size=1)
    if family == "longformer" and reference.V5:
        pytest.skip("the reference takes other ids under transformers 5; run under 4 (make compat)")
    assert reference.largest_difference(found, theirs) < 2e-6


@pytest.mark.parametrize("family", LONG)
def test_a_score_depends_on_nothing_beside_it(
    family: str, long_model: Callable[[str], str]
) -> None:
    """Nor on what was scored before: BigBird attends fully for good after a short text."""
    made = BERTScorer(long_model(family), LAYER, cache_bytes=0)
    first, second = documents(2)
    alone = made.score([first], [second])
    made.score(["snow"], ["cat"])
    middle = " ".join(first.split()[:100])
    among = made.score(["snow", first, middle], ["cat", second, first])
    again = [x[1:2] for x in among]
    assert reference.largest_difference(alone, again) < 2e-6
    short = made.score([middle], [first])
    assert reference.largest_difference(short, [x[2:] for x in among]) < 2e-6


def test_long_texts_go_through_the_model_alone(
    long_model: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a mask, or the scores of a model that holds them, is that of one text."""
    sizes: list[int] = []
    original = encoder.Encoder.forward

    def spy(self: encoder.Encoder, tokens: Tokens, pieces: Pieces, *rest: Any) -> torch.Tensor:
        sizes.append(len(pieces.into))
        return original(self, tokens, pieces, *rest)

    monkeypatch.setattr(encoder.Encoder, "forward", spy)
    texts = documents(4)
    for family in ("modernbert", "t5"):
        sizes.clear()
        BERTScorer(long_model(family), LAYER).score(texts[:2], texts[2:])
        assert sizes == [1, 1, 1, 1]
    BERTScorer(long_model("big-bird"), LAYER).score(["snow", "cat"], ["dog", "cow"])
    assert sizes[4:] == [1, 1, 1, 1]


def test_the_budget_of_a_gpu_counts_the_square_of_the_length() -> None:
    class Config:
        hidden_size = 64
        num_attention_heads = 4
        _attn_implementation = "eager"

    short, long = (
        memory.bytes_per_token(Config(), 4, length, all_layers=False) for length in (512, 4096)
    )
    assert long - short == 4 * 2 * 4 * (4096 - 512)  # scores and probabilities of four heads


def test_a_model_without_a_limit_needs_no_windows(tmp_path: Path) -> None:
    path = str(save_model("t5", tmp_path / "t5", max_length=None))
    made = BERTScorer(path, LAYER, long_documents="window")
    (text,) = documents(1)
    assert made.score([text], ["snow"]).coverage.complete
    assert "|max_length:none|long:window|" in made.signature
