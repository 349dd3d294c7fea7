"""Fear: a model that runs on packed weights is another model, or breaks whoever touches it."""

from __future__ import annotations

import copy
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from flashbertscore import prepack
from flashbertscore.prepack import PackedLinear

pytestmark = pytest.mark.skipif(
    not prepack.available(), reason="this build of torch has no oneDNN to pack weights with"
)


class Intermediate(nn.Module):
    """As in BERT."""

    def __init__(self, act: nn.Module) -> None:  # noqa: D107
        super().__init__()
        self.dense = nn.Linear(64, 96)
        self.intermediate_act_fn = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.intermediate_act_fn(self.dense(x))
        return out


class Model(nn.Module):
    """Two layers worth packing, one not."""

    def __init__(self, act: nn.Module | None = None) -> None:  # noqa: D107
        super().__init__()
        self.intermediate = Intermediate(act or nn.GELU())
        self.output = nn.Linear(96, 64, bias=False)
        self.small = nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.small(self.output(self.intermediate(x)))
        return out


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(5, 3, 64, generator=torch.Generator().manual_seed(0))


def model(act: nn.Module | None = None) -> Model:
    torch.manual_seed(1)
    return Model(act).eval()


@pytest.mark.parametrize("act", [nn.GELU(), nn.GELU("tanh"), nn.ReLU(), nn.SiLU()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_numbers(act: nn.Module, dtype: torch.dtype, x: torch.Tensor) -> None:
    plain = model(act).to(dtype)
    packed = copy.deepcopy(plain)
    assert prepack.prepack(packed) == 2
    assert prepack.count(packed) == (2, 3)
    fused = not isinstance(act, nn.SiLU)
    assert isinstance(packed.intermediate.intermediate_act_fn, nn.Identity) == fused
    with torch.inference_mode():
        expected, found = plain(x.to(dtype)), packed(x.to(dtype))
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def unchanged(packed: Model, plain: Model, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(packed(x), plain(x), atol=1e-5, rtol=1e-5)


def packed_and_plain() -> tuple[Model, Model]:
    plain = model()
    packed = copy.deepcopy(plain)
    prepack.prepack(packed)
    return packed, plain


def test_reading_the_weight_gives_it_and_makes_the_layer_plain(x: torch.Tensor) -> None:
    packed, plain = packed_and_plain()
    assert torch.equal(packed.output.weight, plain.output.weight)
    assert isinstance(packed.output.weight, nn.Parameter)
    assert prepack.count(packed) == (1, 3)
    unchanged(packed, plain, x)


def test_training_is_that_of_the_plain_model(x: torch.Tensor) -> None:
    packed, plain = packed_and_plain()
    packed.train()
    plain.train()
    assert prepack.count(packed) == (0, 3)
    for one in (packed, plain):
        one(x).sum().backward()
    gradient = packed.intermediate.dense.weight.grad
    torch.testing.assert_close(gradient, plain.intermediate.dense.weight.grad)


def test_gradients_flow_to_the_input(x: torch.Tensor) -> None:
    packed, plain = packed_and_plain()
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    packed(inputs[0]).sum().backward()
    plain(inputs[1]).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


def unpickled(one: Model) -> object:
    return pickle.loads(pickle.dumps(one))  # noqa: S301 - what was written a moment before


@pytest.mark.parametrize("duplicate", [copy.deepcopy, unpickled])
def test_copies_stay_packed(duplicate: object, x: torch.Tensor) -> None:
    packed, plain = packed_and_plain()
    twin = duplicate(packed)  # type: ignore[operator]
    assert prepack.count(twin) == prepack.count(packed) == (2, 3)
    unchanged(twin, plain, x)


def test_state_dict_is_that_of_the_plain_model(x: torch.Tensor) -> None:
    packed, plain = packed_and_plain()
    state = packed.state_dict()
    assert set(state) == set(plain.state_dict())
    other = model()
    other.load_state_dict(state)
    unchanged(other, plain, x)


def test_another_dtype(x: torch.Tensor) -> None:
    packed, plain = packed_and_plain()
    packed.double()
    with torch.no_grad():
        torch.testing.assert_close(packed(x.double()), plain.double()(x.double()))


def test_a_layer_in_two_places_is_one(x: torch.Tensor) -> None:
    plain = nn.Sequential(nn.Linear(64, 64), nn.Tanh()).eval()
    plain.append(plain[0])
    packed = copy.deepcopy(plain)
    prepack.prepack(packed)
    assert packed[0] is packed[2]
    with torch.no_grad():
        torch.testing.assert_close(packed(x), plain(x), atol=1e-5, rtol=1e-5)


class Special(nn.Linear):
    """Not nn.Linear itself: what it does is unknown."""


def test_what_is_left_alone(x: torch.Tensor) -> None:
    hooked = nn.Linear(64, 64)
    hooked.register_forward_hook(lambda *_: None)
    layers = nn.Sequential(Special(64, 64), hooked, nn.Linear(64, 64).double()).eval()
    assert prepack.prepack(layers) == 0
    assert prepack.prepack(Model().train()) == 0
    assert x.shape[-1] == 64


def test_a_wrong_product_is_found_at_load(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor) -> None:
    right = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: right(self, x) * (1 + 1e-4))
    packed, plain = packed_and_plain()
    assert prepack.count(packed) == (0, 3)
    assert torch.equal(packed(x), plain(x))


def test_a_missing_instruction_is_found_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: torch.Tensor) -> torch.Tensor:
        msg = "could not create a primitive"
        raise RuntimeError(msg)

    monkeypatch.setattr(prepack, "_pack", fail)
    assert prepack.prepack(model()) == 0


def test_loading_a_state_replaces_the_weights(x: torch.Tensor) -> None:
    packed, _ = packed_and_plain()
    torch.manual_seed(2)
    other = Model().eval()
    packed.load_state_dict(other.state_dict())
    unchanged(packed, other, x)


def test_gradients_reach_weights_and_biases_of_a_model_in_eval_mode(x: torch.Tensor) -> None:
    packed, plain = packed_and_plain()
    for one in (packed, plain):
        one(x).sum().backward()
    for name in ("weight", "bias"):
        found, expected = (getattr(one.intermediate.dense, name).grad for one in (packed, plain))
        torch.testing.assert_close(found, expected)


def test_a_weight_that_inference_read_can_be_trained(x: torch.Tensor) -> None:
    """T5's layers look at the dtype of a weight in every forward pass."""
    packed, _ = packed_and_plain()
    with torch.inference_mode():
        assert packed.output.weight.dtype == torch.float32
    packed.train()(x).sum().backward()
    assert packed.output.weight.grad is not None


def test_what_was_frozen_stays_frozen() -> None:
    frozen = model().requires_grad_(False)
    prepack.prepack(frozen)
    assert not any(weight.requires_grad for weight in frozen.train().parameters())


def test_threads_may_read_a_weight_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, plain = packed_and_plain()
    together = threading.Barrier(2, timeout=60)
    dense = torch.Tensor.to_dense

    def slow(tensor: torch.Tensor) -> torch.Tensor:
        together.wait()
        return dense(tensor)

    monkeypatch.setattr(torch.Tensor, "to_dense", slow)
    with ThreadPoolExecutor(2) as pool:
        found = [f.result() for f in [pool.submit(lambda: packed.output.weight) for _ in "ab"]]
    assert found[0] is found[1] is packed.output.weight
    assert torch.equal(found[0], plain.output.weight)


def test_parents_that_share_a_layer_keep_their_activations(x: torch.Tensor) -> None:
    first = Intermediate(nn.GELU())
    first.dense = nn.Linear(64, 64)
    second = Intermediate(nn.ReLU())
    second.dense = first.dense
    plain = nn.Sequential(first, second).eval()
    packed = copy.deepcopy(plain)
    assert prepack.prepack(packed) == 1
    with torch.no_grad():
        torch.testing.assert_close(packed(x), plain(x), atol=1e-5, rtol=1e-5)


def test_a_pickle_is_read_where_nothing_can_be_packed(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor
) -> None:
    packed, plain = packed_and_plain()
    written = pickle.dumps(packed)

    def fail(_: torch.Tensor) -> torch.Tensor:
        msg = "could not create a primitive"
        raise RuntimeError(msg)

    monkeypatch.setattr(prepack, "_pack", fail)
    found = pickle.loads(written)  # noqa: S301 - what was written a moment before
    assert prepack.count(found) == (0, 3)
    unchanged(found, plain, x)


def test_weights_are_let_go_of_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once would hold a large model twice."""
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).eval()
    plain = [weakref.ref(layer) for layer in layers]
    alive: list[int] = []
    replacement = prepack._replacement

    def spy(linear: nn.Linear, parents: list[nn.Module]) -> nn.Module:
        alive.append(sum(layer() is not None for layer in plain))
        return replacement(linear, parents)

    monkeypatch.setattr(prepack, "_replacement", spy)
    assert prepack.prepack(layers) == 4
    assert alive == [4, 3, 2, 1]
