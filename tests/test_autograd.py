"""Fear: gradients do not reach torch: autograd, vmap, compile, autocast, checkpointing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from backends import pack
from flashbertscore import autograd, functional, oracle

OPS = torch.ops.flashbertscore

# Some versions of torch's own compiler use what torch itself deprecates.
compiles = pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def positive(*shape: int) -> Tensor:
    return (torch.rand(*shape, dtype=torch.float64) + 0.1).requires_grad_()


def packed() -> tuple[Any, ...]:
    x, x_offsets = leaf(9, 6), torch.tensor([0, 4, 4, 9])
    y, y_offsets = leaf(7, 6), torch.tensor([0, 3, 7])
    pairs = torch.tensor([[0, 1], [2, 0], [1, 1], [2, 1], [2, 0]])
    return x, x_offsets, y, y_offsets, pairs, positive(9), positive(7)


def test_gradcheck_padded() -> None:
    masks = torch.rand(2, 5) > 0.3, torch.rand(2, 6) > 0.3
    arguments = leaf(2, 5, 7), leaf(2, 6, 7), *masks, positive(2, 5), positive(2, 6)
    assert torch.autograd.gradcheck(functional.bertscore, arguments)


def test_gradcheck_packed() -> None:
    assert torch.autograd.gradcheck(functional.bertscore_packed, packed())


@pytest.mark.parametrize("op", [OPS.bertscore_aligned, OPS.bertscore_packed_aligned], ids=str)
def test_gradcheck_of_similarities(op: Any) -> None:
    def scores_and_similarities(*arguments: Any) -> tuple[Tensor, ...]:
        found = op(*arguments)
        assert not found[3].requires_grad
        assert not found[5].requires_grad
        return (*found[:3], found[4], found[6])

    padded = leaf(2, 5, 7), leaf(2, 6, 7), None, None, positive(2, 5), positive(2, 6)
    arguments = packed() if "packed" in str(op) else padded
    assert torch.autograd.gradcheck(scores_and_similarities, arguments)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # torch's own, at its first use
@pytest.mark.parametrize("op", ["bertscore", "bertscore_matrix"])
def test_forward_mode_is_refused_instead_of_losing_the_tangent(op: str) -> None:
    offsets = torch.tensor([0, 2, 5])
    x, y = (torch.randn(5, 6), torch.randn(5, 6))

    def scores(tokens: Tensor) -> Tensor:
        if op == "bertscore":
            return functional.bertscore(tokens[None], y[None]).f1
        return functional.bertscore_matrix(tokens, offsets, y, offsets).f1

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="forward-mode derivatives are not supported"):
            scores(dual)
        assert torch.allclose(scores(x), scores(x.clone()))
    if op == "bertscore":
        with pytest.raises(NotImplementedError, match="forward-mode derivatives are not supported"):
            torch.func.jvp(scores, (x,), (x,))


def test_only_one_side_needs_a_gradient_and_gets_it() -> None:
    x, y = leaf(2, 3, 4), torch.randn(2, 5, 4, dtype=torch.float64)
    functional.bertscore(x, y).f1.sum().backward()
    assert x.grad is not None
    w = positive(2, 5)
    scores = functional.bertscore(x.detach(), y, reference_weights=w)
    (gradient,) = torch.autograd.grad(scores.recall.sum(), w)
    (exact,) = torch.autograd.grad(oracle.bertscore(x, y, None, None, None, w)[1].sum(), w)
    torch.testing.assert_close(gradient, exact)


def test_weights_of_another_dtype_get_gradients_of_it() -> None:
    x, y = leaf(1, 3, 4, dtype=torch.float32), leaf(1, 5, 4, dtype=torch.float32)
    w = torch.rand(1, 3, dtype=torch.bfloat16, requires_grad=True)
    functional.bertscore(x, y, candidate_weights=w).precision.sum().backward()
    assert w.grad is not None
    assert w.grad.dtype == torch.bfloat16


def test_without_a_gradient_no_alignment_is_computed() -> None:
    x, y = leaf(1, 3, 4), leaf(1, 5, 4)
    with torch.profiler.profile() as profile:
        with torch.no_grad():
            assert not functional.bertscore(x, y).f1.requires_grad
        functional.bertscore(x.detach(), y.detach())
    names = [event.key for event in profile.key_averages()]
    assert "flashbertscore::bertscore" in names
    assert not any("aligned" in name for name in names)


def test_only_a_plain_call_on_the_cpu_goes_past_the_dispatcher() -> None:
    """What torch says to a kernel for autograd, for tensors on the CPU and for others."""
    seen = []

    def kernel(keyset: Any, x: Tensor) -> Tensor:
        seen.append(keyset.raw_repr() == autograd._PLAIN)
        return x.new_empty(x.shape)

    with torch.library._scoped_library("plain_keys", "DEF") as library:
        library.define("f(Tensor x) -> Tensor")
        library.impl("f", kernel, "Autograd", with_keyset=True)
        f = torch.ops.plain_keys.f
        x = torch.randn(2, 3)
        f(x)
        f(torch.nn.Parameter(x))
        for other in (torch._neg_view(x), x.to_sparse(), x.to_mkldnn(), x.to("meta")):
            f(other)
        with FakeTensorMode() as mode:
            f(mode.from_tensor(x))
        with FakeTensorMode(allow_non_fake_inputs=True):
            f(x)
    assert seen == [True, True, *[False] * 6]


@pytest.mark.parametrize("create", [functional.bertscore, functional.bertscore_packed])
def test_double_backward_says_that_it_is_unsupported(create: Any) -> None:
    arguments = (
        packed() if create is functional.bertscore_packed else (leaf(1, 3, 4), leaf(1, 2, 4))
    )
    f1 = create(*arguments).f1.sum()
    (gradient,) = torch.autograd.grad(f1, arguments[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward is not supported"):
        gradient.sum().backward()


def test_checkpointing_gives_the_same_gradient() -> None:
    x, y = leaf(2, 30, 8, dtype=torch.float32), torch.randn(2, 40, 8)
    (plain,) = torch.autograd.grad(functional.bertscore(x * 2, y).f1.sum(), x)

    def loss(x: Tensor) -> Tensor:
        return functional.bertscore(x * 2, y).f1.sum()

    found = checkpoint(loss, x, use_reentrant=False)
    (again,) = torch.autograd.grad(found, x)
    assert torch.equal(plain, again)


def test_autocast_takes_both_sides_in_the_wider_dtype() -> None:
    layer = torch.nn.Linear(8, 8)
    x, y = leaf(2, 3, 8, dtype=torch.float32), torch.randn(2, 4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = layer(x)
        assert hidden.dtype == torch.bfloat16
        scores = functional.bertscore(hidden, y)  # bfloat16 and float32
        (1 - scores.f1).sum().backward()
        exact = functional.bertscore(hidden.float(), y)
        packed_scores = functional.bertscore_packed(
            hidden[0], torch.tensor([0, 3]), y[0], torch.tensor([0, 4])
        )
    assert x.grad is not None
    assert layer.weight.grad is not None
    torch.testing.assert_close(torch.stack(scores), torch.stack(exact), rtol=0, atol=0)
    torch.testing.assert_close(torch.stack(packed_scores)[:, 0], torch.stack(exact)[:, 0])


def loop(function: Any, *arguments: Tensor) -> Any:
    """What vmap over dimension 0 stands for."""
    found = [function(*values) for values in zip(*arguments, strict=True)]
    return tuple(torch.stack(values) for values in zip(*found, strict=True))


def test_vmap_padded() -> None:
    x, y = torch.randn(4, 2, 5, 8), torch.randn(4, 2, 6, 8)
    mask, w = torch.rand(4, 2, 5) > 0.3, torch.rand(4, 2, 6)
    for op in (OPS.bertscore, OPS.bertscore_aligned):

        def call(x: Tensor, y: Tensor, mask: Tensor, w: Tensor, op: Any = op) -> Any:
            return op(x, y, mask, None, None, w)

        got = torch.func.vmap(call)(x, y, mask, w)
        for a, b in zip(got, loop(call, x, y, mask, w), strict=True):
            assert torch.equal(a, b)
    moved = torch.func.vmap(functional.bertscore, in_dims=(1, None), out_dims=1)(
        x.movedim(0, 1), y[0]
    )
    for a, b in zip(moved, loop(lambda x: functional.bertscore(x, y[0]), x), strict=True):
        assert torch.equal(a, b.T)
    nested = torch.func.vmap(torch.func.vmap(functional.bertscore))(
        x.unflatten(0, (2, 2)), y.unflatten(0, (2, 2))
    )
    assert torch.equal(nested.f1.flatten(0, 1), loop(functional.bertscore, x, y)[2])


def test_vmap_packed() -> None:
    x, x_offsets = torch.randn(3, 9, 8), torch.tensor([0, 4, 4, 9])
    y, y_offsets = torch.randn(3, 7, 8), torch.tensor([0, 3, 7])
    pairs = torch.tensor([[0, 1], [2, 0], [2, 0]])
    w = torch.rand(3, 9)
    for op in (OPS.bertscore_packed, OPS.bertscore_packed_aligned):

        def call(x: Tensor, y: Tensor, w: Tensor, op: Any = op) -> Any:
            return op(x, x_offsets, y, y_offsets, pairs, w)

        got = torch.func.vmap(call)(x, y, w)
        for a, b in zip(got, loop(call, x, y, w), strict=True):
            assert torch.equal(a, b)
    one = torch.tensor([[0, 4, 5, 9], [0, 1, 2, 9], [0, 0, 9, 9]])

    def own(x: Tensor, offsets: Tensor) -> Any:
        return functional.bertscore_packed(x, offsets, y[0].flip(0), torch.tensor([0, 1, 2, 7]))

    for a, b in zip(torch.func.vmap(own)(x, one), loop(own, x, one), strict=True):
        assert torch.equal(a, b)

    def chosen(pairs: Tensor) -> Any:
        return functional.bertscore_packed(x[0], x_offsets, y[0], y_offsets, pairs)

    several = torch.stack([pairs, pairs.flip(0)])
    for a, b in zip(torch.func.vmap(chosen)(several), loop(chosen, several), strict=True):
        assert torch.equal(a, b)


def test_vmap_does_not_fall_back_to_a_loop() -> None:
    x = torch.randn(64, 1, 3, 4)
    with torch.profiler.profile() as profile:
        torch.func.vmap(functional.bertscore)(x, x)
    calls = [e.count for e in profile.key_averages() if e.key == "flashbertscore::bertscore"]
    assert sum(calls) <= 2  # the batched one, and the one that its rule makes


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_gradients_of_torch_func(layout: str) -> None:
    x, y = torch.randn(4, 2, 5, 8), torch.randn(4, 2, 6, 8)
    if layout == "packed":
        x, y = x[:, 0], y[:, 0]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        if layout == "padded":
            return functional.bertscore(x, y).f1.sum()
        offsets = torch.tensor([0, 3, 5]), torch.tensor([0, 2, 6])
        return functional.bertscore_packed(x, offsets[0], y, offsets[1]).f1.sum()

    each = torch.func.vmap(torch.func.grad(loss))(x, y)
    for i in range(4):
        leaves = x[i].clone().requires_grad_()
        (exact,) = torch.autograd.grad(loss(leaves, y[i]), leaves)
        assert torch.equal(each[i], exact)
    torch.testing.assert_close(each[0], torch.func.jacrev(loss)(x[0], y[0]))


@compiles
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compile_forward_and_backward(dtype: torch.dtype) -> None:
    def loss(x: Tensor, y: Tensor, mask: Tensor, w: Tensor) -> Tensor:
        scores = functional.bertscore(2 * x, y, candidate_mask=mask, reference_weights=w)
        return (1 - scores.f1).sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True)
    for B, N, M in ((2, 3, 5), (4, 9, 7), (3, 2, 8)):
        y, mask = torch.randn(B, M, 8).to(dtype), torch.rand(B, N) > 0.2
        gradients = []
        values = torch.randn(B, N, 8).to(dtype), torch.rand(B, M)
        for function in (compiled, loss):
            x, w = (value.clone().requires_grad_() for value in values)
            function(x, y, mask, w).backward()
            gradients.append((x.grad, w.grad))
        for a, b in zip(*gradients, strict=True):
            assert a is not None
            torch.testing.assert_close(a, b)


@compiles
def test_compile_packed_forward_and_backward() -> None:
    def loss(x: Tensor, x_offsets: Tensor, y: Tensor, y_offsets: Tensor) -> Tensor:
        return functional.bertscore_packed(x * 2, x_offsets, y, y_offsets).f1.sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True)
    for lengths in ((3, 4), (5, 6, 7), (2, 9, 4, 8)):
        x, x_offsets = pack([torch.randn(n, 8) for n in lengths])
        y, y_offsets = pack([torch.randn(n + 1, 8) for n in lengths])
        gradients = []
        for function in (compiled, loss):
            leaves = x.clone().requires_grad_()
            function(leaves, x_offsets, y, y_offsets).backward()
            gradients.append(leaves.grad)
        torch.testing.assert_close(*gradients)


def backward_arguments(arguments: tuple[Any, ...], found: tuple[Tensor, ...]) -> tuple[Any, ...]:
    rest = [value.detach() for value in (*found[:2], *found[3:])]
    ones = [torch.ones_like(found[i]) for i in (0, 1, 2, 4)]
    return (*arguments, *rest, *ones, None, [True, True, False, True])


def detached(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v.detach() if isinstance(v, Tensor) else v for v in arguments)


def opcheck_cases() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    torch.manual_seed(1)
    padded = (leaf(2, 3, 8), leaf(2, 5, 8), None, None, positive(2, 3), None)
    one_to_one = (*packed()[:4], None, None, None)
    one_to_one = (leaf(7, 6), torch.tensor([0, 2, 7]), *one_to_one[2:])
    cases = {
        "padded": (OPS.bertscore_aligned, padded),
        "no pairs": (OPS.bertscore_aligned, (leaf(0, 3, 8), leaf(0, 5, 8))),
        "no tokens": (OPS.bertscore_aligned, (leaf(2, 0, 8), leaf(2, 5, 8))),
        "packed": (OPS.bertscore_packed_aligned, one_to_one),
        "packed pairs": (OPS.bertscore_packed_aligned, packed()),
        "plain with gradients": (OPS.bertscore, padded),
        "plain packed with gradients": (OPS.bertscore_packed, packed()),
    }
    found = OPS.bertscore_aligned(*padded)
    arguments = (*detached(padded[:2]), *detached(padded[4:]))
    cases["padded backward"] = (OPS.bertscore_backward, backward_arguments(arguments, found))
    for name, given in (("packed backward", one_to_one), ("packed pairs backward", packed())):
        found = OPS.bertscore_packed_aligned(*given)
        arguments = backward_arguments(detached(given), found)
        cases[name] = (OPS.bertscore_packed_backward, arguments)
    return cases


CASES = opcheck_cases()


@compiles
@pytest.mark.parametrize(("op", "arguments"), CASES.values(), ids=CASES)
def test_opcheck(op: Any, arguments: tuple[Any, ...]) -> None:
    results = torch.library.opcheck(op.default, arguments)
    assert set(results.values()) == {"SUCCESS"}


def test_fake_tensors_have_the_shapes_of_an_alignment() -> None:
    with FakeTensorMode():
        x, y = torch.empty(6, 3, 8), torch.empty(6, 5, 8)
        found = OPS.bertscore_aligned(x, y)
        shapes = [(value.shape, value.dtype) for value in found[3:]]
        assert shapes == [
            ((6, 3), torch.int32),
            ((6, 3), torch.float32),
            ((6, 5), torch.int32),
            ((6, 5), torch.float32),
        ]
