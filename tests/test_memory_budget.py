"""Fear: a GPU's memory runs out, or lies idle. Without a GPU: a device that only says it is one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import BertConfig

from flashbertscore import encoder, memory, precision, score
from flashbertscore.bert_scorer import BERTScorer
from flashbertscore.tokens import TextError
from helpers import reference
from helpers.texts import CANDIDATES, REFERENCES, SENTENCES

LAYER = 3
TinyModel = Callable[[str], str]
GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "each", "budget"),
    [
        (0, 1000, memory.LEAST_TOKENS),
        (10**6, 10**6, memory.LEAST_TOKENS),
        (1000 * 10**6, 20_000, 20_000),
        (10**15, 1000, memory.MOST_TOKENS),
    ],
)
def test_token_budget(free: int, each: int, budget: int) -> None:
    assert memory.token_budget(free, each) == budget


def test_token_budget_grows_with_the_memory() -> None:
    budgets = [memory.token_budget(free << 20, 100_000) for free in range(0, 40_000, 500)]
    assert budgets == sorted(budgets)
    assert len(set(budgets)) > 20


def test_bytes_per_token() -> None:
    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16)
    config._attn_implementation = "sdpa"
    plain = memory.bytes_per_token(config, 2, 512, all_layers=False)
    assert plain == 2 * (1024 * 16 + 512)  # with a row of the mask
    assert memory.bytes_per_token(config, 4, 512, all_layers=False) == 2 * plain
    assert memory.bytes_per_token(config, 2, 4096, all_layers=False) == plain + 2 * (4096 - 512)
    assert memory.bytes_per_token(config, 2, 512, all_layers=True) == plain + 2 * 1024 * 24
    config._attn_implementation = "eager"  # holds the scores of every head
    scores = 2 * 2 * 16 * 512
    assert memory.bytes_per_token(config, 2, 512, all_layers=False) == plain - 2 * 512 + scores
    assert memory.bytes_per_token(None, 4, 8, all_layers=False) > 0
    # roberta-large in bfloat16 on 16 GB: more than a sentence's batch, within the memory
    assert 20_000 < memory.token_budget(14 * GIB, plain) <= memory.MOST_TOKENS


class Device:
    """Says that it is CUDA, computes on the CPU, and runs out of memory above a limit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, limit: int, free: int = GIB) -> None:
        """Let batches of more than `limit` padded tokens fail."""
        self.batches: list[int] = []
        self.cleared = 0
        encode = encoder.Encoder.encode

        def clear() -> None:
            self.cleared += 1

        def on_the_cpu(
            made: encoder.Encoder, ids: Any, texts: torch.Tensor, **options: Any
        ) -> torch.Tensor:
            packed = torch.empty(len(ids.ids), 32)
            order = texts[ids.lengths[texts].argsort(descending=True)].tolist()
            while order:
                longest = int(ids.lengths[order[0]])
                size = max(1, min(options["batch_size"], options["token_budget"] // longest))
                texts, order = torch.tensor(order[:size]), order[size:]
                self.batches.append(longest * len(texts))
                if self.batches[-1] > limit:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
                with monkeypatch.context() as inner:
                    inner.setattr(encoder.Encoder, "device", torch.device("cpu"))
                    packed[ids.rows(texts)] = encode(made, ids.select(texts))
                options["progress"](self.batches[-1], int(ids.lengths[texts].sum()))
            return packed

        monkeypatch.setattr(encoder.Encoder, "encode", on_the_cpu)
        monkeypatch.setattr(encoder.Encoder, "device", torch.device("cuda"))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 2 * free))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
        monkeypatch.setattr(torch.cuda, "empty_cache", clear)
        monkeypatch.setattr(memory, "_is_alive", lambda _: False)


def longest(path: str) -> int:
    loaded = encoder.load(path, LAYER)
    return int(loaded.tokenize([*CANDIDATES, *REFERENCES]).lengths.max())


def test_running_out_of_memory_halves_the_batches(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encoder.clear_cache()
    path = tiny_model("bert")
    expected = score(CANDIDATES, REFERENCES, path, LAYER)
    limit = 2 * longest(path)
    made = BERTScorer(path, LAYER, cache_bytes=0)
    told: list[int] = []
    device = Device(monkeypatch, limit=limit)
    with caplog.at_level(logging.INFO, "flashbertscore"):
        found = made.score(CANDIDATES, REFERENCES)
    assert reference.largest_difference(found, expected) < 1e-6
    assert device.batches[0] > limit
    assert device.cleared >= 1
    assert "out of memory on cuda: batches of" in caplog.text
    device.batches.clear()
    made.score(CANDIDATES, REFERENCES)
    assert max(device.batches) <= limit  # known from the last call
    tokens = made._encoder.tokenize(list(SENTENCES))
    memory._found.clear()
    memory.encode(
        made._encoder, tokens, batch_size=64, progress=lambda _, taken: told.append(taken)
    )
    assert sum(told) == tokens.tokens_seen  # what is done again does not count twice
    memory._found.clear()
    encoder.clear_cache()


def test_a_text_that_does_not_fit_alone_ends_it(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.clear_cache()
    made = BERTScorer(tiny_model("bert"), LAYER, cache_bytes=0)
    device = Device(monkeypatch, limit=3)
    with pytest.raises(TextError, match=r"the model failed: OutOfMemoryError: CUDA out") as failed:
        made.score(CANDIDATES, REFERENCES)
    assert isinstance(failed.value.__cause__, torch.OutOfMemoryError)
    assert len(device.batches) < 20
    memory._found.clear()
    encoder.clear_cache()


def test_batch_size_bounds_the_tokens_of_a_batch(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.clear_cache()
    made = BERTScorer(tiny_model("bert"), LAYER, cache_bytes=0)
    made._tokenizer.model_max_length = 40
    device = Device(monkeypatch, limit=10**9)
    made.score(CANDIDATES, REFERENCES, batch_size=2)
    assert 40 < max(device.batches) <= 80
    device.batches.clear()
    made.score(CANDIDATES, REFERENCES)  # 64 texts: all of them at once
    assert len(device.batches) == 1
    encoder.clear_cache()


class Flags:
    """torch.backends.cuda.matmul of torch 2.9 or of before."""

    def __init__(self, **flags: Any) -> None:
        """Have these flags."""
        self.__dict__.update(flags)


@pytest.mark.parametrize(
    ("flags", "inside"),
    [
        ({"fp32_precision": "none"}, {True: "tf32", False: "ieee"}),
        ({"allow_tf32": True}, {True: True, False: False}),
    ],
)
@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_what_was_asked_for_and_restored(
    flags: dict[str, Any], inside: dict[bool, Any], tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((name, before),) = flags.items()
    made = Flags(**flags)
    monkeypatch.setattr(torch.backends.cuda, "matmul", made)
    with precision.matrix_products(tf32=tf32, device=torch.device("cpu")):
        assert getattr(made, name) == before

    def fail() -> None:
        with precision.matrix_products(tf32=tf32, device=torch.device("cuda")):
            assert getattr(made, name) == inside[tf32]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert getattr(made, name) == before


def test_precisions() -> None:
    assert precision.resolve("tf32", "cuda") == ("tf32", torch.float32)
    assert precision.resolve("tf32", "cuda").tf32
    assert precision.resolve(torch.float16, "cuda:1") == ("float16", torch.float16)
    assert precision.resolve("torch.bfloat16", "cpu") == ("bfloat16", torch.bfloat16)
    assert not precision.resolve("float32", "cuda").tf32


def test_the_signature_names_tf32(tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER, device="cpu")
    made._dtype, made.device = "tf32", "cuda"
    assert "|dtype:tf32|" in made.signature
