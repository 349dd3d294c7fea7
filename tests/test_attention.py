"""Fear: our attention gives other numbers than torch's, or serves where it must not."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from flashbertscore import attention, isas, layers, ops
from flashbertscore.encoder import load
from helpers.texts import SENTENCES
from helpers.tiny_models import quiet

BOUND = {torch.float32: 2e-6, torch.bfloat16: 1e-2}

every_isa = pytest.mark.usefixtures("isa")
both_dtypes = pytest.mark.parametrize("dtype", list(BOUND), ids=str)


@pytest.fixture(params=isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHBERTSCORE_ISA", request.param)


def heads(*shape: int, dtype: torch.dtype = torch.float32, size: float = 1.0) -> list[Tensor]:
    """Queries, keys and values [B, H, L, d] as layers make them: views of [B, L, H * d]."""
    B, H, L, d = shape
    return [
        (factor * torch.randn(B, L, H * d)).to(dtype).view(B, L, H, d).transpose(1, 2)
        for factor in (size, size, 1.0)
    ]


def truth(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float | None = None) -> Tensor:
    """The definition, in float64."""
    B, H, L, d = q.shape
    real = torch.arange(L) < lengths[:, None]  # [B, L]
    scores = q.double() @ k.double().mT * (d**-0.5 if scale is None else scale)
    weights = scores.masked_fill(~real[:, None, None], -torch.inf).softmax(-1).nan_to_num()
    values = v.double().masked_fill(~real[:, None, :, None], 0.0)
    out = (weights @ values).transpose(1, 2).reshape(B, L, H * d)
    return out.masked_fill(~real[..., None], 0.0)


@every_isa
@both_dtypes
@pytest.mark.parametrize("d", [1, 3, 8, 16, 31, 32, 33, 64, 80])
def test_every_edge_of_vectors_and_tiles(dtype: torch.dtype, d: int) -> None:
    for L in (1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 49):
        q, k, v = heads(2, 2, L, d, dtype=dtype)
        lengths = torch.tensor([L, L // 2])
        out = ops.self_attention(q, k, v, lengths)
        assert (out.shape, out.dtype, out.is_contiguous()) == ((2, L, 2 * d), dtype, True)
        assert (out - truth(q, k, v, lengths)).abs().max() < BOUND[dtype], L


@every_isa
@pytest.mark.parametrize("length", [511, 512, 513])
def test_documents(length: int) -> None:
    q, k, v = heads(1, 1, length, 32)
    lengths = torch.tensor([length])
    difference = ops.self_attention(q, k, v, lengths) - truth(q, k, v, lengths)
    assert difference.abs().max() < BOUND[torch.float32]


@every_isa
@both_dtypes
def test_sharp_and_flat_weights(dtype: torch.dtype) -> None:
    for size, bound in ((0.0, 1e-6), (1e-20, 1e-6), (100.0, 1e-2), (1e4, 1e-2)):
        q, k, v = heads(2, 2, 20, 16, dtype=dtype, size=size)
        # A score of 1e8 is known to 8 in float32: weights of 0 and 1 only where one key wins.
        q = q.sign() * size if size > 1e3 else q
        k = (k.sign() * size) if size > 1e3 else k
        lengths = torch.tensor([20, 13])
        out = ops.self_attention(q, k, v, lengths)
        assert out.isfinite().all()
        wanted = truth(q, k, v, lengths)
        assert (out - wanted).abs().max() < max(bound, BOUND[dtype])


@every_isa
def test_scores_far_below_the_largest_weigh_nothing() -> None:
    q = torch.ones(1, 1, 4, 1)
    k = torch.tensor([0.0, -1e30, -200.0, -torch.inf]).view(1, 1, 4, 1)
    v = torch.tensor([1.0, 1e6, 1e6, 1e6]).view(1, 1, 4, 1)
    out = ops.self_attention(q, k, v, torch.tensor([4]), scale=1)
    assert (out == 1).all()


@every_isa
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_with_its_text(bad: float) -> None:
    q, k, v = heads(2, 1, 18, 16)
    clean = ops.self_attention(q, k, v, torch.tensor([18, 18]))
    k[0, 0, 3, 2] = bad
    q[0, 0, :, 2] = 1.0  # +inf is the largest score of each row
    out = ops.self_attention(q, k, v, torch.tensor([18, 18]))
    assert out[0].isnan().all()
    assert torch.equal(out[1], clean[1])


@every_isa
@both_dtypes
def test_padding_is_not_read(dtype: torch.dtype) -> None:
    q, k, v = heads(3, 2, 21, 24, dtype=dtype)
    lengths = torch.tensor([21, 0, 6])
    out = ops.self_attention(q, k, v, lengths)
    for x in (q, k, v):
        x[1] = torch.nan
        x[2, :, 6:] = torch.inf
    assert torch.equal(ops.self_attention(q, k, v, lengths), out)
    assert not out[1].any()
    assert not out[2, 6:].any()


@every_isa
@both_dtypes
def test_bits_depend_neither_on_the_batch_nor_on_threads(dtype: torch.dtype) -> None:
    B, L = 24, 45
    q, k, v = heads(B, 12, L, 32, dtype=dtype)  # enough work for several threads
    lengths = torch.randint(1, L + 1, (B,))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = ops.self_attention(q, k, v, lengths)
        torch.set_num_threads(3)
        assert torch.equal(ops.self_attention(q, k, v, lengths), one)
    finally:
        torch.set_num_threads(before)
    for b in (0, 7, B - 1):
        n = int(lengths[b])
        alone = [x[b : b + 1, :, :n].clone() for x in (q, k, v)]
        assert torch.equal(ops.self_attention(*alone, lengths[b : b + 1])[0], one[b, :n])


@every_isa
def test_any_strides() -> None:
    lengths = torch.tensor([9, 4])
    q = torch.randn(2, 24, 3, 9).permute(0, 2, 3, 1)  # the last dimension is not contiguous
    k, v = torch.randn(2, 3, 9, 60)[..., 7:31], torch.randn(1, 3, 9, 24).expand(2, -1, -1, -1)
    out = ops.self_attention(q, k, v, lengths)
    assert (out - truth(q, k, v, lengths)).abs().max() < BOUND[torch.float32]


def test_nothing_to_attend() -> None:
    for shape in ((0, 2, 5, 8), (2, 2, 0, 8), (2, 0, 5, 8)):
        q = torch.randn(shape)
        out = ops.self_attention(q, q, q, torch.zeros(shape[0], dtype=torch.int64))
        assert out.shape == (shape[0], shape[2], shape[1] * 8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": [1]}, TypeError, r"q: expected a torch.Tensor, got list"),
        ({"q": torch.ones(2, 1, 3, 4, dtype=torch.half)}, TypeError, "q: .* float32 or bfloat16"),
        ({"k": torch.ones(2, 1, 3, 4).bfloat16()}, TypeError, "k: expected dtype that of q"),
        ({"v": torch.ones(2, 1, 3, 5)}, ValueError, r"v: expected \[2, 1, 3, 4\] as q, got"),
        ({"q": torch.ones(2, 3, 4)}, ValueError, r"q: expected \[B, H, L, d >= 1\], got"),
        ({"k": torch.ones(2, 1, 3, 4, device="meta")}, ValueError, "k: expected device cpu"),
        ({"lengths": torch.ones(2)}, TypeError, "lengths: expected dtype int64, got float32"),
        ({"lengths": torch.ones(3).long()}, ValueError, r"lengths: expected \[B\] = \[2\]"),
        ({"lengths": torch.tensor([3, 4])}, ValueError, r"lengths\[1\]: expected 0 to 3, got 4"),
        ({"lengths": torch.tensor([-1, 3])}, ValueError, r"lengths\[0\]: expected 0 to 3, got -1"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = dict.fromkeys("qkv", torch.ones(2, 1, 3, 4))
    arguments["lengths"] = torch.tensor([3, 3])
    with pytest.raises(error, match=message):
        ops.self_attention(**(arguments | change))


# In models


SMALL = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
OTHERWISE: dict[str, dict[str, Any]] = {
    "albert": SMALL | {"embedding_size": 16, "num_hidden_groups": 3},
    "distilbert": {"vocab_size": 320, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48},
    "rembert": SMALL | {"input_embedding_size": 16},
    "xmod": SMALL | {"languages": ["en_XX"], "default_language": "en_XX"},
}
# Plain attention of other forms, relative positions, windows, causal masks.
OTHER_KINDS = {
    "deberta-v2": SMALL,
    "gpt2": {"vocab_size": 320, "n_embd": 32, "n_layer": 3, "n_head": 4},
    "longformer": SMALL | {"attention_window": 8},
    "mpnet": SMALL,
    "modernbert": SMALL | {"pad_token_id": 3},
}


def random_model(model_type: str, **settings: object) -> Any:
    """A small model of a family, spread so that layers and tokens differ."""
    made = OTHERWISE.get(model_type, OTHER_KINDS.get(model_type, SMALL)) | settings
    with quiet():
        config = transformers.CONFIG_MAPPING[model_type](**made)
        model = transformers.AutoModel.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model


LENGTHS = torch.tensor([33, 20, 7, 1])


def run(model: Any, *, told: bool = True, **options: Any) -> Any:
    """The model's output for random texts, called as `Encoder` does."""
    real = torch.arange(33) < LENGTHS[:, None]
    ids = torch.randint(5, 300, real.shape, generator=torch.Generator().manual_seed(1))
    told_or_not = attention.padded(LENGTHS) if told else attention.padded(LENGTHS[:0])
    with torch.no_grad(), told_or_not:
        return model(ids, attention_mask=real.long(), **options)


def real_tokens(hidden: Tensor) -> Tensor:
    return hidden[torch.arange(33) < LENGTHS[:, None]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one at each use of the kernel."""
    made: list[int] = []
    kernel = ops.self_attention

    def counted(*arguments: Any, **named: Any) -> Tensor:
        made.append(1)
        return kernel(*arguments, **named)

    monkeypatch.setattr(ops, "self_attention", counted)
    return made


@pytest.mark.parametrize("family", sorted(attention.FAMILIES))
def test_families_of_berts_kind(family: str, calls: list[int]) -> None:
    model = random_model(family)
    plain = real_tokens(run(model)[0])
    assert attention.install(model) == 3
    assert attention.served_layers(model) == 3
    calls.clear()
    out = run(model, output_hidden_states=True)
    assert len(calls) == 3
    assert len(out.hidden_states) == 4
    ours = real_tokens(out[0])
    assert (ours - plain).abs().max() < 1e-5 * plain.abs().max()
    attention.uninstall(model)
    assert attention.served_layers(model) == 0
    assert torch.equal(real_tokens(run(model)[0]), plain)
    assert len(calls) == 3


@pytest.mark.parametrize("family", sorted(OTHER_KINDS))
def test_other_families_are_left_alone(family: str) -> None:
    model = random_model(family)
    classes = [type(module) for module in model.modules()]
    assert attention.install(model) == 0
    assert [type(module) for module in model.modules()] == classes


def test_bfloat16(calls: list[int]) -> None:
    model = random_model("bert").bfloat16()
    plain = real_tokens(run(model)[0]).float()
    assert attention.install(model) == 3
    calls.clear()
    ours = real_tokens(run(model)[0]).float()
    assert len(calls) == 3
    assert (ours - plain).abs().mean() < 0.02 * plain.abs().mean()


@pytest.mark.parametrize(
    "settings",
    [{"is_decoder": True}, {"position_embedding_type": "relative_key"}],
    ids=["causal", "relative"],
)
def test_a_bert_that_attends_otherwise(settings: dict[str, Any]) -> None:
    assert attention.install(random_model("bert", **settings)) == 0


def test_training_float16_and_what_is_no_model() -> None:
    assert attention.install(random_model("bert").train()) == 0
    assert attention.install(random_model("bert").half()) == 0
    assert attention.install(torch.nn.Linear(2, 2)) == 0
    assert attention.install(torch.nn.Identity()) == 0


def test_calls_outside_the_encoder_run_the_plain_layer(calls: list[int]) -> None:
    model = random_model("bert")
    real = torch.arange(33) < LENGTHS[:, None]
    ids = torch.randint(5, 300, real.shape)
    mask = real.long()
    mask[0, 4:9] = 0  # a mask that no lengths describe
    plain = model(ids, attention_mask=mask)[0]
    assert attention.install(model) == 3
    calls.clear()
    ours = model(ids, attention_mask=mask)[0]
    with torch.no_grad():
        assert torch.equal(model(ids, attention_mask=mask)[0], plain)
    assert torch.equal(ours, plain)
    assert ours.requires_grad
    ours.sum().backward()
    assert not calls


def test_gradients_training_and_other_batches_run_the_plain_layer(calls: list[int]) -> None:
    model = random_model("bert")
    attention.install(model)
    calls.clear()
    real = torch.arange(33) < LENGTHS[:, None]
    ids = torch.randint(5, 300, real.shape)
    with attention.padded(LENGTHS):
        assert model(ids, attention_mask=real.long())[0].requires_grad
        with torch.no_grad():
            model(ids[:, :9], attention_mask=real[:, :9].long())
            model.train()(ids, attention_mask=real.long())
    assert not calls
    run(model.eval())
    assert len(calls) == 3


def test_attentions_come_from_the_plain_layer(calls: list[int]) -> None:
    model = random_model("bert", attn_implementation="eager")
    plain = run(model, output_attentions=True)
    attention.install(model)
    calls.clear()
    ours = run(model, output_attentions=True)
    assert len(ours.attentions) == 3
    assert all(map(torch.equal, ours.attentions, plain.attentions))
    assert not calls


def test_copies_and_pickles_are_plain() -> None:
    model = random_model("bert")
    attention.install(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - ours
        assert attention.served_layers(other) == 0
        assert torch.equal(run(other)[0], run(model, told=False)[0])
    assert attention.served_layers(model) == 3


def test_other_numbers_undo_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = ops.self_attention
    model = random_model("bert")
    plain = run(model)[0]
    monkeypatch.setattr(ops, "self_attention", lambda *a: kernel(*a, scale=0.3))
    with caplog.at_level(logging.INFO, logger="flashbertscore"):
        assert attention.install(model) == 0
    assert "attention of BertModel: torch's, since ours served 3 of 3 layers and differed by" in (
        caplog.text
    )
    assert attention.served_layers(model) == 0
    assert torch.equal(run(model)[0], plain)


def test_a_failing_trial_undoes_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Tensor:
        msg = "no kernel"
        raise RuntimeError(msg)

    model = random_model("bert")
    monkeypatch.setattr(ops, "self_attention", broken)
    with caplog.at_level(logging.INFO, logger="flashbertscore"):
        assert attention.install(model) == 0
    assert "a trial failed: RuntimeError('no kernel')" in caplog.text
    assert attention.served_layers(model) == 0


def test_random_numbers_of_the_caller_are_not_used_up() -> None:
    model = random_model("bert")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    attention.install(model)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("all_layers", [False, True])
def test_the_encoder_says_which_tokens_are_real(
    tiny_model: Any, calls: list[int], *, all_layers: bool
) -> None:
    encoder = load(tiny_model("roberta"), 4, all_layers=all_layers)
    tokens = encoder.tokenize(list(SENTENCES[:20]))
    layers.uninstall(encoder.model)  # whole layers do not come to the op
    attention.uninstall(encoder.model)
    plain = encoder.encode(tokens, batch_size=6)
    assert attention.install(encoder.model) == 4
    calls.clear()
    ours = encoder.encode(tokens, batch_size=6)
    assert len(calls) == 4 * 4  # layers times batches
    assert (ours - plain).abs().max() < 1e-5 * plain.abs().max()
