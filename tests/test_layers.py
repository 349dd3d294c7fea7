"""Fear: a layer in one call is another layer, serves where it must not, or depends on the batch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from flashbertscore import attention, isas, layers, linear, prepack
from flashbertscore.linear import LayerWeights, Norm, Packed
from helpers.tiny_models import quiet

pytestmark = pytest.mark.skipif(
    not prepack.available(), reason="this build of torch has no oneDNN to pack weights with"
)


@pytest.fixture(autouse=True)
def _threads() -> object:
    before = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def plain_model(config: str = "Bert", **options: Any) -> Any:
    sizes = {
        "vocab_size": 99,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 80,
        "max_position_embeddings": 600,
    }
    made = getattr(transformers, f"{config}Config")(**{**sizes, **options})
    with quiet():
        return getattr(transformers, f"{config}Model")(made).eval()


def fast_model(plain: Any) -> Any:
    fast = copy.deepcopy(plain)
    prepack.prepack(fast)
    attention.install(fast)
    layers.install(fast)
    return fast


def embed(model: Any, ids: Tensor, lengths: Tensor) -> Tensor:
    """Embeddings of the real tokens [T, D], where our kernels may serve."""
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    with torch.inference_mode(), attention.padded(lengths):
        out: Tensor = model(ids, attention_mask=real.long())[0]
        return out[real]


def texts(*lengths: int) -> tuple[Tensor, Tensor]:
    return torch.randint(5, 99, (len(lengths), max(lengths))), torch.tensor(lengths)


@pytest.mark.parametrize("config", ["Bert", "Roberta", "XLMRoberta", "Electra", "Camembert"])
def test_same_numbers(config: str) -> None:
    plain = plain_model(config)
    fast = fast_model(plain)
    assert layers.served_layers(fast) == 2
    ids, lengths = texts(30, 17, 16, 1)
    torch.testing.assert_close(
        embed(fast, ids, lengths), embed(plain, ids, lengths), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("isa", isas())
def test_every_instruction_set(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHBERTSCORE_ISA", isa)
    x = torch.randn(3, 9, 24)
    lengths = torch.tensor([9, 0, 4])

    def packed(rows: int, depth: int) -> tuple[Packed, nn.Linear]:
        plain = nn.Linear(depth, rows)
        return Packed(linear.pack(plain.weight), rows, plain.bias.detach()), plain

    four = [packed(24, 24) for _ in range(4)]
    up, down = packed(50, 24), packed(24, 50)
    norms = [nn.LayerNorm(24) for _ in range(2)]
    for norm in norms:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    ours = [Norm(norm.weight.detach(), norm.bias.detach(), norm.eps) for norm in norms]
    weights = LayerWeights(3, *(one[0] for one in four), ours[0], up[0], "gelu", down[0], ours[1])
    out = linear.encoder_layer(x, lengths, weights)
    assert not out[1].any()
    assert not out[2, 4:].any()
    with torch.no_grad():
        for b in (0, 2):
            rows = x[b, : lengths[b]].double()
            q, k, v = (one[1].double()(rows).view(-1, 3, 8).transpose(0, 1) for one in four[:3])
            attended = ((q @ k.mT / 8**0.5).softmax(-1) @ v).transpose(0, 1).flatten(1)
            hidden = norms[0].double()(four[3][1].double()(attended) + rows)
            wide = nn.functional.gelu(up[1].double()(hidden))
            expected = norms[1].double()(down[1].double()(wide) + hidden)
            found = out[b, : lengths[b]].double()
            torch.testing.assert_close(found, expected, atol=3e-6, rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_text_has_the_same_bits_in_any_batch_and_with_any_threads(threads: int) -> None:
    model = fast_model(plain_model())
    ids, lengths = texts(300, 40, 40, 39, 25, 12, 3, 1)
    torch.set_num_threads(1)
    alone = [
        embed(model, ids[b : b + 1, :n], lengths[b : b + 1]) for b, n in enumerate(lengths.tolist())
    ]
    torch.set_num_threads(threads)
    assert torch.equal(embed(model, ids, lengths), torch.cat(alone))
    assert torch.equal(embed(model, ids[2:5, :40], lengths[2:5]), torch.cat(alone[2:5]))


@pytest.mark.parametrize("threads", [2, 3])
def test_texts_shared_among_threads_have_the_same_bits(threads: int) -> None:
    model = fast_model(plain_model())
    ids, lengths = texts(*range(172, 112, -1))  # none fit beside another: 60 pieces of work
    torch.set_num_threads(1)
    alone = embed(model, ids, lengths)
    torch.set_num_threads(threads)
    for _ in range(5):
        assert torch.equal(embed(model, ids, lengths), alone)


def test_padding_is_not_read() -> None:
    model = fast_model(plain_model())
    layer = model.encoder.layer[0]
    x, lengths = torch.randn(2, 9, 48), torch.tensor([9, 4])
    with torch.inference_mode():
        out = linear.encoder_layer(x, lengths, layers._weights(layer))
        x[1, 4:] = torch.nan
        assert torch.equal(linear.encoder_layer(x, lengths, layers._weights(layer)), out)
    assert not out[1, 4:].any()


def test_other_calls_run_the_plain_layer() -> None:
    plain = plain_model()
    fast = fast_model(plain)
    ids = torch.randint(5, 99, (2, 9))
    with torch.no_grad():  # no lengths were told
        torch.testing.assert_close(fast(ids)[0], plain(ids)[0], atol=1e-5, rtol=1e-5)
    fast(ids)[0].sum().backward()
    plain(ids)[0].sum().backward()
    found, expected = (m.encoder.layer[0].output.dense.weight.grad for m in (fast, plain))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert layers.served_layers(fast) == 0


@pytest.mark.parametrize(
    "place",
    ["intermediate", "intermediate.intermediate_act_fn", "output.dropout", "attention.self.query"],
)
def test_a_hook_sees_what_it_would_have_seen(place: str) -> None:
    fast = fast_model(plain_model())
    seen = []
    module = fast.encoder.layer[0].get_submodule(place)
    module.register_forward_hook(lambda *_: seen.append(1))
    embed(fast, *texts(9, 5))
    assert seen == [1]
    assert layers.served_layers(fast) == 1


class _Halving(nn.LayerNorm):
    """Half of what the norm gives."""

    def forward(self, x: Tensor) -> Tensor:
        """Return it."""
        return super().forward(x) / 2


def _another_norm(layer: Any) -> None:
    layer.output.LayerNorm = _Halving(48).eval()


def _another_dropout(layer: Any) -> None:
    layer.attention.output.dropout = nn.ReLU().eval()


def _own_forward(layer: Any) -> None:
    dense = layer.attention.output.dense
    forward = dense.forward
    dense.forward = lambda x: forward(x) * 2


@pytest.mark.parametrize("change", [_another_norm, _another_dropout, _own_forward])
def test_a_layer_with_other_parts_is_not_served(change: Any) -> None:
    plain = plain_model()
    fast = fast_model(plain)
    for model in (plain, fast):
        torch.manual_seed(1)
        change(model.encoder.layer[1])
    ids, lengths = texts(9, 5)
    torch.testing.assert_close(
        embed(fast, ids, lengths), embed(plain, ids, lengths), atol=1e-5, rtol=1e-5
    )
    assert layers.served_layers(fast) == 1


def test_dropout_that_is_on_drops() -> None:
    fast = fast_model(plain_model(hidden_dropout_prob=0.5))
    dropout = fast.encoder.layer[1].output.dropout.train()
    ids, lengths = texts(9, 5)
    assert not torch.equal(embed(fast, ids, lengths), embed(fast, ids, lengths))
    dropout.eval()
    assert torch.equal(embed(fast, ids, lengths), embed(fast, ids, lengths))
    assert layers.served_layers(fast) == 2


def test_a_norm_that_is_a_view() -> None:
    plain = plain_model()
    fast = fast_model(plain)
    wide = torch.randn(2 * 48)
    for model in (plain, fast):
        model.encoder.layer[1].output.LayerNorm.weight.data = wide[::2]
    ids, lengths = texts(9, 5)
    torch.testing.assert_close(
        embed(fast, ids, lengths), embed(plain, ids, lengths), atol=1e-5, rtol=1e-5
    )
    assert layers.served_layers(fast) == 2


def test_hidden_states_are_those_of_the_plain_model() -> None:
    plain = plain_model()
    fast = fast_model(plain)
    ids, lengths = texts(9, 9)
    with torch.inference_mode(), attention.padded(lengths):
        found, expected = (
            m(ids, attention_mask=torch.ones_like(ids), output_hidden_states=True).hidden_states
            for m in (fast, plain)
        )
    assert len(found) == len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])  # noqa: S301
def test_copies_are_plain_layers_on_packed_weights(duplicate: Any) -> None:
    plain = plain_model()
    twin = duplicate(fast_model(plain))
    assert type(twin.encoder.layer[0]) is type(plain.encoder.layer[0])
    assert prepack.count(twin) == prepack.count(fast_model(plain))
    ids, lengths = texts(9, 5)
    torch.testing.assert_close(
        embed(twin, ids, lengths), embed(plain, ids, lengths), atol=1e-5, rtol=1e-5
    )
    state = twin.state_dict()
    assert set(state) == set(plain.state_dict())
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("Bert", {"hidden_act": "silu"}),
        ("Bert", {"hidden_act": "gelu_new"}),
        ("RobertaPreLayerNorm", {}),
        ("MegatronBert", {}),
        ("Albert", {}),
    ],
)
def test_what_runs_module_by_module(config: str, options: dict[str, Any]) -> None:
    plain = plain_model(config, **options)
    fast = fast_model(plain)
    assert layers.served_layers(fast) == 0
    ids, lengths = texts(9, 5)
    torch.testing.assert_close(
        embed(fast, ids, lengths), embed(plain, ids, lengths), atol=1e-5, rtol=1e-5
    )


def test_bfloat16_stays_with_onednn() -> None:
    fast = fast_model(plain_model().bfloat16())
    assert layers.served_layers(fast) == 0
    assert all(m.in_panels() is None for m in fast.modules() if isinstance(m, prepack.PackedLinear))


def test_a_wrong_layer_is_found_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    right = linear.encoder_layer
    monkeypatch.setattr(linear, "encoder_layer", lambda *args: right(*args) * (1 + 1e-4))
    fast = fast_model(plain_model())
    assert layers.served_layers(fast) == 0
    assert attention.served_layers(fast) == 2
    packed = [m.packed for m in fast.modules() if isinstance(m, prepack.PackedLinear)]
    assert all(weight is not None and weight.is_mkldnn for weight in packed)


def test_bad_arguments() -> None:
    weights = layers._weights(fast_model(plain_model()).encoder.layer[0])
    assert weights is not None
    x, lengths = torch.randn(2, 9, 48), torch.tensor([9, 4])
    with torch.inference_mode():
        with pytest.raises(ValueError, match=r"lengths\[1\]: expected 0 to 9, got 10"):
            linear.encoder_layer(x, torch.tensor([9, 10]), weights)
        with pytest.raises(ValueError, match=r"lengths: expected int64 \[2\]"):
            linear.encoder_layer(x, lengths[:1], weights)
        with pytest.raises(ValueError, match="heads: expected a divisor of 48, got 7"):
            linear.encoder_layer(x, lengths, weights._replace(heads=7))
        with pytest.raises(ValueError, match="query: expected"):
            linear.encoder_layer(x[..., :47], lengths, weights)
        with pytest.raises(TypeError, match="x: expected dtype float32"):
            linear.encoder_layer(x.double(), lengths, weights)
