"""Fear: arrays give other numbers than tensors, need torch, or are misread for their layout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flashbertscore
from flashbertscore import functional
from flashbertscore import numpy as fnp

RNG = np.random.default_rng(7)


def sides(dtype: Any = np.float32) -> tuple[Any, Any]:
    return RNG.normal(size=(3, 5, 16)).astype(dtype), RNG.normal(size=(3, 7, 16)).astype(dtype)


def same(got: Any, expected: Any) -> None:
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a), b.numpy())


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_padded_as_tensors(dtype: Any) -> None:
    x, y = sides(dtype)
    masks = RNG.random((3, 5)) > 0.3, (RNG.random((3, 7)) > 0.3).astype(np.int32)
    weights = RNG.random((3, 5)), RNG.random((3, 7)).astype(np.float16)
    tensors = [torch.from_numpy(np.asarray(v)) for v in (x, y, *masks, *weights)]
    same(fnp.bertscore(x, y, *masks, *weights), functional.bertscore(*tensors))
    same(fnp.bertscore(x, y), functional.bertscore(*tensors[:2]))
    assert fnp.bertscore(x, y).f1.dtype == (np.float64 if dtype is np.float64 else np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_packed_as_tensors(dtype: Any) -> None:
    x, y = (v.reshape(-1, 16) for v in sides(dtype))
    offsets = np.array([0, 4, 4, 15], np.int32), np.array([0, 20, 21])
    pairs = np.array([[0, 1], [2, 0], [1, 0]], np.uint8)
    w = RNG.random(15)
    tensors = [torch.from_numpy(np.asarray(v)) for v in (x, offsets[0], y, offsets[1])]
    expected = functional.bertscore_packed(
        *tensors, torch.from_numpy(pairs.astype(np.int64)), torch.from_numpy(w)
    )
    same(fnp.bertscore_packed(x, offsets[0], y, offsets[1], pairs, w), expected)
    one = fnp.bertscore_packed(x, offsets[0][[0, 1, 3]], y, offsets[1])
    assert one.f1.shape == (2,)


def test_any_layout() -> None:
    x, y = sides()
    expected = fnp.bertscore(x, y)
    turned = np.ascontiguousarray(x.transpose(2, 0, 1)).transpose(1, 2, 0)
    flipped = np.ascontiguousarray(x[:, ::-1])[:, ::-1]
    swapped = x.astype(x.dtype.newbyteorder())
    apart = np.zeros((3, 5, 40), np.float32)[:, :, :16]
    apart[...] = x
    record = np.zeros((3, 5), [("tag", "u1"), ("v", "f4", 16)])
    record["v"] = x
    for other in (turned, flipped, swapped, apart, record["v"]):
        same(fnp.bertscore(other, y), [torch.from_numpy(v) for v in expected])
    first = np.broadcast_to(x[:1], x.shape)
    same(
        fnp.bertscore(first, y),
        functional.bertscore(torch.from_numpy(first.copy()), torch.from_numpy(y)),
    )


def test_functional_takes_arrays_without_copying_them() -> None:
    x, y = sides()
    expected = functional.bertscore(torch.from_numpy(x), torch.from_numpy(y))
    read_only = x.copy()
    read_only.flags.writeable = False
    mapped = y.view()
    mapped.flags.writeable = False
    for a, b in ((x, y), (read_only, mapped), (torch.from_numpy(x), y)):
        for got, exact in zip(functional.bertscore(a, b), expected, strict=True):
            assert isinstance(got, torch.Tensor)
            assert torch.equal(got, exact)
    shared = flashbertscore.arrays.tensor("x", read_only)  # type: ignore[attr-defined]
    assert shared.data_ptr() == read_only.ctypes.data
    found = functional.bertscore_matrix(
        x.reshape(-1, 16), np.array([0, 5, 10, 15]), x.reshape(-1, 16), np.array([0, 5, 10, 15])
    )
    assert torch.equal(found.f1, found.f1.T)


class Foreign:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, values: Any) -> None:
        """Hand over ``values``."""
        self._values = values

    def __dlpack__(self, **options: Any) -> Any:
        """Return its capsule."""
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return its device."""
        device: tuple[int, int] = self._values.__dlpack_device__()
        return device


def test_functional_takes_everything_with_dlpack() -> None:
    x, y = sides()
    mask = torch.ones(3, 5, dtype=torch.bool)
    got = functional.bertscore(Foreign(x), Foreign(torch.from_numpy(y)), Foreign(mask))
    for a, b in zip(got, fnp.bertscore(x, y), strict=True):
        assert torch.equal(a, torch.from_numpy(b))


class Refusing(Foreign):
    """An array that is not to be read."""

    def __dlpack__(self, **options: Any) -> Any:
        """Raise."""
        message = "not today"
        raise BufferError(message)


def test_what_cannot_be_read_is_refused_by_name() -> None:
    x, y = sides()
    with pytest.raises(
        TypeError, match=r"^candidate: expected an array that DLPack hands over, got"
    ):
        functional.bertscore(Refusing(x), y)
    with pytest.raises(TypeError, match=r"^candidate: expected an array that torch can read, got"):
        functional.bertscore(x.astype(object), y)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"candidate": [1]}, TypeError, "candidate: expected a numpy.ndarray, got list"),
        ({"reference": "int"}, TypeError, "reference: expected dtype float32, .*, got int64"),
        ({"reference": "double"}, TypeError, "reference: expected the dtype of candidate, float32"),
        ({"reference": "flat"}, ValueError, r"reference: expected 3 dimensions \[B, N, D\]"),
        ({"reference": "narrow"}, ValueError, "reference: expected D = 16 as in candidate"),
        ({"reference": "short"}, ValueError, "reference: expected B = 3 as in candidate"),
        ({"candidate": "empty"}, ValueError, r"candidate: expected D >= 1 in \[B, N, D\]"),
        ({"candidate_mask": "wide"}, ValueError, r"candidate_mask: expected \[B, N\] = \[3, 5\]"),
        ({"candidate_mask": "twos"}, ValueError, "candidate_mask: expected only 0 and 1, got 2"),
        (
            {"candidate_mask": "text"},
            TypeError,
            "candidate_mask: expected a bool, integer or float",
        ),
        (
            {"candidate_weights": "negative"},
            ValueError,
            "candidate_weights: expected finite values",
        ),
        ({"reference_weights": "int"}, ValueError, r"reference_weights: expected \[B, N\]"),
    ],
)
def test_mistakes_are_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    x, y = sides()
    values = {
        "int": y.astype(np.int64),
        "double": y.astype(np.float64),
        "flat": y[0],
        "narrow": y[:, :, :8],
        "short": y[:2],
        "empty": x[:, :, :0],
        "wide": np.ones((3, 6)),
        "twos": np.full((3, 5), 2),
        "text": np.full((3, 5), "a"),
        "negative": np.full((3, 5), -1.0),
    }
    given = {n: values[v] if isinstance(v, str) else v for n, v in arguments.items()}
    with pytest.raises(error, match=message):
        fnp.bertscore(**{"candidate": x, "reference": y} | given)


@pytest.mark.parametrize("threads", [0, -1])
def test_no_thread_is_refused(threads: int) -> None:
    x = np.ones((64, 128, 64), np.float32)  # enough work for several
    with pytest.raises(ValueError, match=f"threads: expected at least 1, got {threads}"):
        fnp.bertscore(x, x, threads=threads)
    rows, offsets = x.reshape(-1, 64), np.arange(65) * 128
    with pytest.raises(ValueError, match=f"threads: expected at least 1, got {threads}"):
        fnp.bertscore_packed(rows, offsets, rows, offsets, threads=threads)


def test_mistakes_of_the_packed_form_are_named() -> None:
    x = RNG.normal(size=(6, 4))
    for offsets, pairs, message in (
        (np.array([0, 5]), None, "candidate_offsets: expected the last value to be the 6 rows"),
        (np.array([0, 6]), np.array([[0, 1]]), r"pairs\[0, 1\]: expected a reference index in"),
        (np.array([0, 6]), np.array([0, 1]), r"pairs: expected shape \[P, 2\], got \[2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            fnp.bertscore_packed(x, offsets, x, np.array([0, 6]), pairs)
    with pytest.raises(
        TypeError, match="candidate_offsets: expected an integer dtype, got float64"
    ):
        fnp.bertscore_packed(x, np.array([0.0, 6.0]), x, np.array([0, 6]))
    with pytest.raises(
        ValueError, match=r"expected as many documents as candidate_offsets has \(1\)"
    ):
        fnp.bertscore_packed(x, np.array([0, 6]), x, np.array([0, 3, 6]))


PROGRAM = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError(name)
import importlib.util as u
find = u.find_spec
u.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
sys.meta_path.insert(0, NoTorch())
import numpy as np
import flashbertscore.numpy as fnp
x = np.eye(4, dtype=np.float32)[None]
print(fnp.bertscore(x, x[:, :2]).recall[0], "torch" in sys.modules)
"""


def test_where_torch_is_missing_arrays_are_scored_all_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(flashbertscore.__file__).parent.parent,
    )
    assert (done.stdout, done.stderr) == ("1.0 False\n", "")
