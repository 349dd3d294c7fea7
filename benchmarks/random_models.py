"""Models of any size with random weights, and tokenizers trained on the spot: no network needed."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

if TYPE_CHECKING:
    from pathlib import Path

SYLLABLES = [a + b for a in "bcdfghklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er")]


def words(count: int, seed: int = 0) -> list[str]:
    """Distinct made-up words of two or three syllables."""
    rng = random.Random(seed)  # noqa: S311 - texts to measure with
    made: dict[str, None] = {}
    while len(made) < count:
        made["".join(rng.choices(SYLLABLES, k=rng.choice((2, 2, 3))))] = None
    return list(made)


def sentences(count: int, length: tuple[int, int], seed: int = 0) -> list[str]:
    """Sentences of made-up words, frequent ones more often, of `length` words at least and most."""
    rng = random.Random(seed)  # noqa: S311
    known = words(3000)
    weights = [1 / (rank + 10) for rank in range(len(known))]
    return [
        " ".join(rng.choices(known, weights, k=rng.randint(*length))).capitalize() + "."
        for _ in range(count)
    ]


def save_bert(folder: Path, *, vocabulary: int | None = None, **sizes: int) -> str:
    """Save a random BERT with a tokenizer of its own, unless it is there; return its path.

    Args:
        folder: where it goes.
        vocabulary: rows of the embedding table; None for as many as the tokenizer has ids.
        sizes: what its config is given.
    """
    if (folder / "config.json").exists():
        return str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    count = _wordpiece(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = transformers.BertConfig(vocab_size=vocabulary or count, **sizes)
        transformers.BertModel(config).save_pretrained(folder)
    return str(folder)


def _wordpiece(folder: Path) -> int:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=2000, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(sentences(2000, (5, 20)), trainer)
    known = [*special, *sorted(set(tokenizer.get_vocab()) - set(special))]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in known), encoding="utf-8")
    return len(known)
