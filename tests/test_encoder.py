"""Ids to embeddings: batching, loading, caching."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from flashbertscore import attention, encoder, isa, loading, prepack
from flashbertscore.encoder import batches, load
from flashbertscore.tokens import Tokens
from helpers.texts import SENTENCES
from helpers.tiny_models import FAMILIES, save_model

TinyModel = Callable[[str], str]
SUPPORTED = sorted(set(FAMILIES) - {"gpt2"})


@pytest.mark.parametrize("family", SUPPORTED)
@pytest.mark.parametrize("all_layers", [False, True])
def test_embeddings_are_packed_in_the_order_of_the_texts(
    family: str,
    all_layers: bool,
    tiny_model: TinyModel,
) -> None:
    """Whatever the batches, each text has the embeddings that it has alone."""
    loaded = load(tiny_model(family), 3, all_layers=all_layers)
    tokens = loaded.tokenize([*SENTENCES[:9], "", "snow"])
    packed = loaded.encode(tokens, batch_size=4)
    lead = [5] if all_layers else []
    assert packed.shape == (*lead, tokens.tokens_seen, 32)
    for n, part in enumerate(packed.split(tokens.lengths.tolist(), dim=-2)):
        alone = loaded.encode(tokens.select(torch.tensor([n])))
        torch.testing.assert_close(part, alone, rtol=1e-4, atol=1e-4)
    again = loaded.encode(tokens, batch_size=64, token_budget=50)
    torch.testing.assert_close(again, packed, rtol=1e-4, atol=1e-4)


def test_batches() -> None:
    lengths = torch.tensor([3, 0, 9, 4, 4, 1, 9, 30])
    found = [batch.tolist() for batch in batches(lengths, 3, 20)]
    assert found == [[7], [2, 6], [3, 4, 0], [5]]
    assert list(batches(torch.empty(0, dtype=torch.int64), 3, 20)) == []
    with pytest.raises(ValueError, match="batch_size: expected at least 1, got 0"):
        list(batches(lengths, 0, 20))


def test_batches_hold_to_both_limits_and_lose_no_text() -> None:
    lengths = torch.randint(1, 200, (500,))
    seen: list[int] = []
    for batch in batches(lengths, 64, 1000):
        sizes = lengths[batch]
        assert len(batch) <= 64
        assert len(batch) == 1 or int(sizes.max()) * len(batch) <= 1000
        seen += batch.tolist()
    assert sorted(seen) == list(range(500))
    assert lengths[seen].diff().max() <= 0


def test_progress_tells_of_every_text(tiny_model: TinyModel) -> None:
    loaded = load(tiny_model("bert"), 1)
    told: list[tuple[int, int]] = []
    tokens = loaded.tokenize(list(SENTENCES))
    loaded.encode(tokens, batch_size=7, progress=lambda *batch: told.append(batch))
    through, taken = zip(*told, strict=True)
    assert len(told) == -(-len(SENTENCES) // 7)
    assert sum(through) == sum(taken) == tokens.tokens_seen
    told.clear()
    windows = loaded.for_documents("window", 8, 4)
    windows.encode(tokens, progress=lambda *batch: told.append(batch))
    through, taken = zip(*told, strict=True)
    assert sum(taken) == tokens.tokens_seen < sum(through)


def test_no_layer_that_the_model_has_not(tiny_model: TinyModel) -> None:
    for family in SUPPORTED:
        path = tiny_model(family)
        message = f"Invalid num_layers: num_layers should be between 0 and 4 for {path}"
        for layer in (5, -1):
            with pytest.raises(AssertionError) as error:
                load(path, layer)
            assert str(error.value) == message


def test_unsupported_architecture(tiny_model: TinyModel) -> None:
    with pytest.raises(ValueError, match=r"Not supported: .* is a GPT2Model"):
        load(tiny_model("gpt2"), 2)


@pytest.mark.parametrize("family", ["bert", "bart", "t5"])
def test_no_model_no_decoder_and_no_layers_above(family: str, tiny_model: TinyModel) -> None:
    model = load(tiny_model(family), 2).model
    assert not model.training
    assert not hasattr(model, "decoder")
    names = [name for name, _ in model.named_parameters()]
    assert any(".1." in name for name in names)
    assert not any(".2." in name for name in names)


def test_several_threads_load_a_model_once(tiny_model: TinyModel) -> None:
    encoder.clear_cache()
    path = tiny_model("mpnet")
    made: list[Any] = []
    threads = [threading.Thread(target=lambda: made.append(load(path, 2).model)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert all(model is made[0] for model in made)


def test_the_cache_keeps_the_models_used_last(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "CACHE_SIZE", 2)
    encoder.clear_cache()
    path = tiny_model("bert")
    one, two = load(path, 1), load(path, 2)
    assert load(path, 1).model is one.model
    load(path, 3)
    assert load(path, 1).model is one.model
    assert load(path, 2).model is not two.model


def test_what_a_model_is_kept_by(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    base = load(path, 2)
    assert load(path, 2, device=torch.device("cpu")).model is base.model
    assert load(path, 2, dtype=torch.bfloat16).model is not base.model
    every = load(path, 2, all_layers=True)
    assert every.model is not base.model
    assert load(path, 4, all_layers=True).model is every.model


def test_loading_and_scoring_change_no_global_state(tmp_path: Path) -> None:
    path = save_model("bert", tmp_path / "model")
    log = transformers.utils.logging

    def state() -> tuple[Any, ...]:
        return (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.get_rng_state().tolist(),
            torch.are_deterministic_algorithms_enabled(),
            log.get_verbosity(),
            log.is_progress_bar_enabled(),
            dict(os.environ),
        )

    before = state()
    loaded = load(str(path), 2)
    loaded.encode(loaded.tokenize(list(SENTENCES)))
    assert state() == before


def test_embeddings_carry_no_gradient(tiny_model: TinyModel) -> None:
    loaded = load(tiny_model("bert"), 2)
    assert not loaded.encode(loaded.tokenize(["snow"])).requires_grad


QUIET = """
import sys, warnings
warnings.simplefilter("error")
from flashbertscore.scorer import score
for path in sys.argv[1:]:
    score(["It is raining.", "snow"], ["It rains.", "a boat"], path, 2, idf=True)
"""


def test_a_clean_run_writes_nothing(tiny_model: TinyModel) -> None:
    paths = [tiny_model(family) for family in SUPPORTED]
    done = subprocess.run(
        [sys.executable, "-c", QUIET, *paths],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": ""},
    )
    assert done.stdout == ""
    assert done.stderr == ""
    assert done.returncode == 0


class Payload:
    """What a hostile checkpoint holds: unpickling it writes a file."""

    def __init__(self, path: Path) -> None:  # noqa: D107
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:  # noqa: D105
        return Path.write_text, (self.path, "run")


def as_torch_file(path: Path, extra: dict[str, Any]) -> None:
    from safetensors.torch import load_file  # noqa: PLC0415

    weights = path / "model.safetensors"
    torch.save(load_file(weights) | extra, path / "pytorch_model.bin")
    weights.unlink()


def test_a_model_without_safetensors(tiny_model: TinyModel, tmp_path: Path) -> None:
    path = save_model("bert", tmp_path / "model")
    expected = load(tiny_model("bert"), 2)
    as_torch_file(path, {})
    loaded = load(str(path), 2)
    tokens = loaded.tokenize(list(SENTENCES[:3]))
    assert torch.equal(loaded.encode(tokens), expected.encode(tokens))


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    path = save_model("bert", tmp_path / "model")
    as_torch_file(path, {"x": Payload(tmp_path / "written")})
    with pytest.raises(Exception, match=r"(?i)weights"):
        load(str(path), 2)
    assert not (tmp_path / "written").exists()


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    path = save_model("bert", tmp_path / "model")
    (path / "theirs.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'written')!r}).write_text('run')\n"
        "from transformers import BertConfig as C, BertModel as M\n",
        encoding="utf-8",
    )
    config = path / "config.json"
    text = config.read_text(encoding="utf-8")
    auto = '"auto_map": {"AutoConfig": "theirs.C", "AutoModel": "theirs.M"},'
    config.write_text(text.replace("{", "{" + auto, 1), encoding="utf-8")
    load(str(path), 2)  # the architecture is known, so its own code serves
    config.write_text(text.replace("{", "{" + auto, 1).replace('"bert"', '"theirs"'), "utf-8")
    with pytest.raises(ValueError, match=r"trust_remote_code|does not recognize|custom code"):
        load(str(path), 3)
    assert not (tmp_path / "written").exists()


def test_weights_that_the_checkpoint_lacks_are_reported(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    path = save_model("bert", tmp_path / "model")
    weights = load_file(path / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"1 weights of BertModel are not in the checkpoint"):
        load(str(path), 2)


def test_a_pooler_is_not_missed(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    path = save_model("bert", tmp_path / "model")
    weights = load_file(path / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "pooler" not in name}
    assert len(kept) < len(weights)
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    load(str(path), 2)


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        load(str(tmp_path / "none"), 2)


def test_a_folder_has_no_revision_to_pin(tiny_model: TinyModel) -> None:
    loaded = load(tiny_model("bert"), 2, revision="main")
    assert loaded.revision is None
    assert loading.wants_prefix_space(loaded.tokenizer) is False


def test_the_switch(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_model("bert")
    found = {}
    for value in ("plain", "fast"):
        monkeypatch.setenv(encoder.SWITCH, value)
        loaded = encoder.load(path, 3)
        found[value] = loaded.encode(loaded.tokenize(["a text", "another one"]))
        parts = ["own-attention"]
        if prepack.available():
            whole = ["own-layers"] * (isa() not in {"generic", "scalar"})
            parts = ["packed-linears", *parts, *whole]
        assert loaded.form == ("+".join(parts) if value == "fast" else "plain")
    torch.testing.assert_close(found["fast"], found["plain"], atol=1e-5, rtol=1e-5)
    monkeypatch.setenv(encoder.SWITCH, "quick")
    with pytest.raises(ValueError, match="FLASHBERTSCORE_ENCODER: expected fast or plain, got qui"):
        encoder.load(path, 3)


def test_a_thread_that_starts_meanwhile_has_all_threads(tiny_model: TinyModel) -> None:
    """What torch sets in one thread is what those start with that come after it."""
    loaded = encoder.load(tiny_model("bert"), 3)
    tokens = loaded.tokenize(list(SENTENCES))
    before = torch.get_num_threads()
    found: list[int] = []

    def look(*_: object) -> None:
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()

    try:
        torch.set_num_threads(4)
        loaded.encode(tokens, batch_size=3, progress=look)
    finally:
        torch.set_num_threads(before)
    assert len(found) > 2
    assert set(found) == {4}


def test_two_batches_at_once(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = encoder.load(tiny_model("bert"), 3)
    tokens = loaded.tokenize(list(SENTENCES))
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(loaded.encode(tokens, batch_size=3))
            assert torch.get_num_threads() == threads
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], atol=1e-6, rtol=0.0)

        def fail(*_: Any) -> torch.Tensor:
            msg = "out of order"
            raise RuntimeError(msg)

        monkeypatch.setattr(encoder, "_select", fail)
        with pytest.raises(RuntimeError, match="out of order"):
            loaded.encode(tokens, batch_size=3)
        assert torch.get_num_threads() == 5
    finally:
        torch.set_num_threads(before)


def encode_until_ctrl_c(loaded: encoder.Encoder, tokens: Tokens) -> None:
    """Encode text by text, two at once, until SIGINT ends it."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(KeyboardInterrupt):
            loaded.encode(tokens, batch_size=1)
    finally:
        torch.set_num_threads(before)
        signal.signal(signal.SIGINT, handler)


def test_what_waits_is_not_computed_once_a_call_is_given_up(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else Ctrl-C would wait for one batch more."""
    loaded = encoder.load(tiny_model("bert"), 3)
    tokens = loaded.tokenize(list(SENTENCES[:6]))
    original, numbers, began = encoder.Encoder.forward, itertools.count(), []

    def slow(self: encoder.Encoder, *given: Any) -> torch.Tensor:
        number = next(numbers)
        began.append(number)
        time.sleep(0.5)  # until the caller waits for the first
        if number == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.5)
        return original(self, *given)

    monkeypatch.setattr(encoder.Encoder, "forward", slow)
    encode_until_ctrl_c(loaded, tokens)
    assert sorted(began) == [0, 1]


def test_what_runs_ends_after_a_layer_once_a_call_is_given_up(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else Ctrl-C would wait for the batches of a large model."""
    loaded = encoder.load(tiny_model("bert"), 4)
    tokens = loaded.tokenize(list(SENTENCES[:2]))
    numbers, began = itertools.count(), []

    def slow(_: object, hidden: torch.Tensor, __: object) -> torch.Tensor:
        number = next(numbers)
        began.append(number)
        time.sleep(0.3)
        if number == 1:  # both batches are in their first layer
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.3)
        return hidden

    layer = next(m for m in loaded.model.modules() if isinstance(m, attention._Served))
    monkeypatch.setattr(type(layer), "served", slow)
    encode_until_ctrl_c(loaded, tokens)
    assert 2 <= len(began) <= 4  # of eight
