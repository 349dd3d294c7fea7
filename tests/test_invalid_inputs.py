"""Fear: bad input crashes, is computed anyway, or is refused without saying which and why."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch

from backends import Backend, pack
from flashbertscore import checks, functional, ops

X, Y = torch.ones(2, 3, 4), torch.ones(2, 5, 4)

PADDED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "not a tensor": (
        {"candidate": [[1.0]]},
        TypeError,
        "candidate: expected a torch.Tensor or an array with __dlpack__, got list",
    ),
    "mask not a tensor": (
        {"candidate_mask": [[1, 1, 1]] * 2},
        TypeError,
        "candidate_mask: expected a torch.Tensor or an array with __dlpack__, got list",
    ),
    "rank": (
        {"candidate": X[0]},
        ValueError,
        "candidate: expected 3 dimensions [B, N, D], got shape [3, 4]",
    ),
    "reference rank": (
        {"reference": Y[None]},
        ValueError,
        "reference: expected 3 dimensions [B, N, D], got shape [1, 2, 5, 4]",
    ),
    "integer embeddings": (
        {"candidate": X.long()},
        TypeError,
        "candidate: expected dtype float32, float64, bfloat16, float16, got int64",
    ),
    "complex embeddings": (
        {"candidate": X.to(torch.complex64)},
        TypeError,
        "candidate: expected dtype float32, float64, bfloat16, float16, got complex64",
    ),
    "dtype mix": (
        {"reference": Y.double()},
        TypeError,
        "reference: expected the dtype of candidate, float32, got float64",
    ),
    "device mix": (
        {"reference": Y.to("meta")},
        ValueError,
        "reference: expected device cpu, got meta",
    ),
    "mask on another device": (
        {"candidate_mask": torch.ones(2, 3, device="meta")},
        ValueError,
        "candidate_mask: expected device cpu, got meta",
    ),
    "weights on another device": (
        {"reference_weights": torch.ones(2, 5, device="meta")},
        ValueError,
        "reference_weights: expected device cpu, got meta",
    ),
    "D": (
        {"reference": torch.ones(2, 5, 3)},
        ValueError,
        "reference: expected D = 4 as in candidate, got shape [2, 5, 3]",
    ),
    "D = 0": (
        {"candidate": torch.ones(2, 3, 0), "reference": torch.ones(2, 5, 0)},
        ValueError,
        "candidate: expected D >= 1 in [B, N, D], got shape [2, 3, 0]",
    ),
    "B": (
        {"reference": torch.ones(3, 5, 4)},
        ValueError,
        "reference: expected B = 2 as in candidate, got shape [3, 5, 4]",
    ),
    "mask shape": (
        {"reference_mask": torch.ones(2, 4)},
        ValueError,
        "reference_mask: expected [B, N] = [2, 5], got [2, 4]",
    ),
    "mask value": (
        {"candidate_mask": torch.tensor([[1, 1, 0], [1, 2, 0]])},
        ValueError,
        "candidate_mask: expected only 0 and 1, got 2",
    ),
    "mask dtype": (
        {"candidate_mask": torch.ones(2, 3, dtype=torch.complex64)},
        TypeError,
        "candidate_mask: expected a bool, integer or float dtype, got complex64",
    ),
    "weights shape": (
        {"candidate_weights": torch.ones(2, 3, 1)},
        ValueError,
        "candidate_weights: expected [B, N] = [2, 3], got [2, 3, 1]",
    ),
    "weights dtype": (
        {"candidate_weights": torch.ones(2, 3, dtype=torch.int64)},
        TypeError,
        "candidate_weights: expected a floating dtype, got int64",
    ),
    "negative weight": (
        {"candidate_weights": torch.tensor([[1.0, 1.0, 1.0], [1.0, -0.5, 1.0]])},
        ValueError,
        "candidate_weights: expected finite values >= 0, got -0.500000 at token 4",
    ),
    "NaN weight": (
        {"reference_weights": torch.full((2, 5), torch.nan)},
        ValueError,
        "reference_weights: expected finite values >= 0, got nan at token 0",
    ),
    "infinite weight": (
        {"reference_weights": torch.full((2, 5), torch.inf)},
        ValueError,
        "reference_weights: expected finite values >= 0, got inf at token 0",
    ),
    "sparse": (
        {"candidate": X.to_sparse()},
        TypeError,
        "candidate: expected a strided tensor, got layout torch.sparse_coo",
    ),
}


@pytest.mark.parametrize(("change", "error", "message"), PADDED.values(), ids=PADDED)
def test_padded(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match="^" + re.escape(message)):
        functional.bertscore(**{"candidate": X, "reference": Y, **change})


def tokens_of_every_kind(x: torch.Tensor) -> list[Any]:
    """``x``, in other memory, and whatever else may stand in its place."""
    others = [x.transpose(0, 1).contiguous().transpose(0, 1), torch.nn.Parameter(x), x.double()]
    wrong = [x.long(), x.to_sparse(), x.to_mkldnn(), x.to("meta"), x[0], x[None], x[:1], x[..., :0]]
    return [x, *others, *wrong, x[..., :3], None, x.numpy()]


def weights_of_every_kind(x: torch.Tensor) -> list[Any]:
    w = torch.ones(x.shape[:2])
    fine = [None, w, w.T.contiguous().T, w.bfloat16()]
    return [*fine, w.int(), w.to_sparse(), w.to("meta"), w.T, w[:1], w[0], w[..., None], w.numpy()]


def outcome(call: checks.Padded) -> str:
    try:
        call.check()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


def test_a_call_that_is_as_usual_is_one_that_all_the_checks_accept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The short way through the checks, over every combination, beside the long one."""
    sides = itertools.product(tokens_of_every_kind(X), tokens_of_every_kind(Y))
    mask = torch.ones(2, 3)  # the same object may be on both sides, where it is right or wrong
    others = list(
        itertools.product(
            (None, mask),
            (None, mask),
            weights_of_every_kind(X),
            weights_of_every_kind(Y),
        )
    )
    calls = [checks.Padded(*tokens, *rest) for tokens, rest in itertools.product(sides, others)]
    usual = [call._usual() for call in calls]
    short = [outcome(call) for call in calls]
    monkeypatch.setattr(checks.Padded, "_usual", lambda _: False)
    assert short == [outcome(call) for call in calls]
    # Either side's tokens three ways, with its weights three; both of D = 3, both of B = 1.
    assert sum(usual) == 3**4 + 3**2 + 2**2


@pytest.mark.parametrize(
    "view", [None, [0] * 10, (0,) * 9, (0,) * 11, (0.5,) * 10, (2**64,) * 10], ids=str
)
def test_a_view_that_is_no_tuple_of_ten_integers(view: Any) -> None:
    """Of no concern to users; but what reads the tuple does so without Python's checks."""
    with pytest.raises(TypeError, match="incompatible function arguments"):
        ops.core.validate(view, 0, view, 0, 0, 0)


PACKED_X, X_OFFSETS = pack([torch.ones(3, 4), torch.ones(2, 4)])
PACKED_Y, Y_OFFSETS = pack([torch.ones(1, 4), torch.ones(4, 4)])

PACKED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rank": (
        {"candidate": X},
        ValueError,
        "candidate: expected 2 dimensions [T, D], got shape [2, 3, 4]",
    ),
    "offsets not a tensor": (
        {"candidate_offsets": [0, 3, 5]},
        TypeError,
        "candidate_offsets: expected a torch.Tensor or an array with __dlpack__, got list",
    ),
    "offsets dtype": (
        {"candidate_offsets": X_OFFSETS.float()},
        TypeError,
        "candidate_offsets: expected dtype int64 or int32, got float32",
    ),
    "offsets rank": (
        {"reference_offsets": Y_OFFSETS[None]},
        ValueError,
        "reference_offsets: expected shape [R + 1], got [1, 3]",
    ),
    "no offsets": (
        {"reference_offsets": Y_OFFSETS[:0]},
        ValueError,
        "reference_offsets: expected shape [R + 1], got [0]",
    ),
    "first offset": (
        {"candidate_offsets": torch.tensor([1, 3, 5])},
        ValueError,
        "candidate_offsets: expected offsets[0] = 0, got offsets[0] = 1",
    ),
    "offsets decrease": (
        {"candidate_offsets": torch.tensor([0, 4, 3])},
        ValueError,
        "candidate_offsets: expected values that never decrease, got offsets[2] = 3",
    ),
    "offsets overrun": (
        {"reference_offsets": torch.tensor([0, 1, 6])},
        ValueError,
        "reference_offsets: expected values up to the 5 rows of reference, got offsets[2] = 6",
    ),
    "offsets end early": (
        {"candidate_offsets": torch.tensor([0, 3, 4])},
        ValueError,
        "candidate_offsets: expected the last value to be the 5 rows of candidate, "
        "got offsets[2] = 4",
    ),
    "documents without partner": (
        {"reference_offsets": torch.tensor([0, 5])},
        ValueError,
        "reference_offsets: expected as many documents as candidate_offsets has (2) "
        "when pairs is None, got 1",
    ),
    "pairs shape": (
        {"pairs": torch.tensor([[0, 1, 1]])},
        ValueError,
        "pairs: expected shape [P, 2], got [1, 3]",
    ),
    "pairs dtype": (
        {"pairs": torch.tensor([[0.0, 1.0]])},
        TypeError,
        "pairs: expected dtype int64 or int32, got float32",
    ),
    "candidate index": (
        {"pairs": torch.tensor([[0, 0], [2, 1]])},
        ValueError,
        "pairs[1, 0]: expected a candidate index in [0, 2), got 2",
    ),
    "reference index": (
        {"pairs": torch.tensor([[0, -1]])},
        ValueError,
        "pairs[0, 1]: expected a reference index in [0, 2), got -1",
    ),
    "weights shape": (
        {"candidate_weights": torch.ones(4)},
        ValueError,
        "candidate_weights: expected [T] = [5], got [4]",
    ),
    "negative weight": (
        {"reference_weights": -torch.ones(5)},
        ValueError,
        "reference_weights: expected finite values >= 0, got -1.000000 at token 0",
    ),
    "pairs on another device": (
        {"pairs": torch.ones(1, 2, dtype=torch.int64, device="meta")},
        ValueError,
        "pairs: expected device cpu, got meta",
    ),
    "offsets on another device": (
        {"candidate_offsets": X_OFFSETS.to("meta")},
        ValueError,
        "candidate_offsets: expected device cpu, got meta",
    ),
}


@pytest.mark.parametrize(("change", "error", "message"), PACKED.values(), ids=PACKED)
def test_packed(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {
        "candidate": PACKED_X,
        "candidate_offsets": X_OFFSETS,
        "reference": PACKED_Y,
        "reference_offsets": Y_OFFSETS,
    }
    with pytest.raises(error, match="^" + re.escape(message)):
        functional.bertscore_packed(**{**arguments, **change})


def test_values_are_checked_on_every_backend(op: Backend) -> None:
    with pytest.raises(ValueError, match=r"^candidate_offsets: expected values that never"):
        op.bertscore_packed(PACKED_X, torch.tensor([0, 4, 3]), PACKED_Y, Y_OFFSETS)
    with pytest.raises(ValueError, match=r"^pairs\[0, 0\]: expected a candidate index"):
        op.bertscore_packed(PACKED_X, X_OFFSETS, PACKED_Y, Y_OFFSETS, torch.tensor([[2**40, 0]]))
    if op.name.startswith("cuda"):  # values on the device are not waited for
        return
    with pytest.raises(ValueError, match=r"^reference_weights: expected finite values"):
        op.bertscore(X, Y, reference_weights=-torch.ones(2, 5))
    with pytest.raises(ValueError, match=r"^candidate_mask: expected only 0 and 1, got -1"):
        op.bertscore(X, Y, candidate_mask=-torch.ones(2, 3))


def test_direct_calls_of_the_torch_op_are_checked_too() -> None:
    with pytest.raises(ValueError, match=r"^reference: expected D = 4"):
        torch.ops.flashbertscore.bertscore(X, torch.ones(2, 5, 3))
