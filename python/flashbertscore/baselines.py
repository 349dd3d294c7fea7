"""Baselines for rescaling: `(x - b) / (1 - b)` with b the score of unrelated sentences.

The tables of bert-score 0.3.13 lie in one file, data/baselines.tsv; a table of one's own comes in
the reference's format: comma separated, header `LAYER,P,R,F`, one row a layer.
"""

from __future__ import annotations

import csv
import functools
import math
import os
from pathlib import Path

import torch

#: Where the shipped tables lie; messages about a missing table name it.
SHIPPED = str(Path(__file__).parent / "data" / "baselines.tsv")

_HEADER = ["LAYER", "P", "R", "F"]
_Table = dict[int, tuple[float, float, float]]


def lookup(
    lang: str | None,
    model_type: str,
    num_layers: int,
    *,
    all_layers: bool = False,
    path: str | os.PathLike[str] | None = None,
) -> torch.Tensor | None:
    """Return the baseline to rescale with, or None where there is none.

    Args:
        lang: language code, as the tables spell it ("en", "en-sci", "zh", ...).
        model_type: the model's name.
        num_layers: the layer; not read when `all_layers` is set.
        all_layers: return every layer.
        path: a file in the reference's format to use in place of the shipped tables.

    Returns:
        float32, the baselines of P, R, F: shape [3], or [L, 1, 3] with `all_layers` (row 0 is the
        embedding layer). None when `path` is no file, or nothing is shipped for lang and model.

    Raises:
        ValueError: the file is malformed, or lacks the layer; names file and line.
    """
    if path is None:
        table = _shipped().get((lang or "", model_type))
        source = f"the baseline of {model_type} on {lang}"
    elif Path(path).is_file():
        table = read(path)
        source = os.fspath(path)
    else:
        return None
    if table is None:
        return None
    if all_layers:
        if list(table) != list(range(len(table))):
            msg = f"{source}: all_layers needs the layers 0 to L in order, got {list(table)}"
            raise ValueError(msg)
        return torch.tensor(list(table.values()), dtype=torch.float32).unsqueeze(1)
    if num_layers not in table:
        msg = f"{source}: no row for layer {num_layers}, it has {_span(list(table))}"
        raise ValueError(msg)
    return torch.tensor(table[num_layers], dtype=torch.float32)


def missing(
    lang: str | None,
    model_type: str,
    path: str | os.PathLike[str] | None = None,
) -> str:
    """Return the reference's message for a baseline that `lookup` did not find."""
    where = SHIPPED if path is None else os.fspath(path)
    return f"Baseline not Found for {model_type} on {lang} at {where}"


def read(path: str | os.PathLike[str]) -> _Table:
    """Read a baseline file in the reference's format: `{layer: (P, R, F)}`.

    A row counts for the layer that it names. (The reference counts rows and never reads the column
    LAYER; for a file with the rows 0 to L, as all of its own are, that is the same.)

    Raises:
        ValueError: anything that would give other numbers than the file's author meant; names
            file, line, what was expected and what came.
    """
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{name}: not UTF-8 text ({error.reason} at byte {error.start})"
        raise ValueError(msg) from None
    rows = [
        (number, [cell.strip() for cell in row])
        for number, row in enumerate(csv.reader(text.splitlines()), start=1)
        if row
    ]
    if not rows:
        msg = f"{name}: empty, expected the header LAYER,P,R,F and a row for each layer"
        raise ValueError(msg)
    number, header = rows[0]
    if [cell.upper() for cell in header] != _HEADER:
        msg = f"{name}:{number}: expected the header LAYER,P,R,F, got {','.join(header)!r}"
        raise ValueError(msg)
    table: _Table = {}
    for number, row in rows[1:]:
        try:
            layer, values = _parse(row)
        except ValueError as error:
            msg = f"{name}:{number}: {error}, got {','.join(row)!r}"
            raise ValueError(msg) from None
        if layer in table:
            msg = f"{name}:{number}: a second row for layer {layer}"
            raise ValueError(msg)
        table[layer] = values
    if not table:
        msg = f"{name}: a header but no rows"
        raise ValueError(msg)
    return table


def _parse(row: list[str]) -> tuple[int, tuple[float, float, float]]:
    if len(row) != len(_HEADER):
        msg = f"expected 4 comma-separated values, found {len(row)}"
        raise ValueError(msg)
    if not row[0].isdecimal():
        msg = "expected a layer number in the first column"
        raise ValueError(msg)
    try:
        precision, recall, f1 = map(float, row[1:])
    except ValueError:
        msg = "expected three numbers after the layer"
        raise ValueError(msg) from None
    # (x - b) / (1 - b) turns the order of scores around above 1, and has no value at 1.
    if not all(math.isfinite(b) and b < 1 for b in (precision, recall, f1)):
        msg = "expected baselines below 1"
        raise ValueError(msg)
    return int(row[0]), (precision, recall, f1)


def _span(layers: list[int]) -> str:
    if layers == list(range(layers[0], layers[-1] + 1)) and len(layers) > 1:
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"


@functools.cache
def _shipped() -> dict[tuple[str, str], _Table]:
    tables: dict[tuple[str, str], _Table] = {}
    lines = Path(SHIPPED).read_text(encoding="utf-8").splitlines()[1:]
    for lang, model, layer, *values in (line.split("\t") for line in lines):
        precision, recall, f1 = map(float, values)
        tables.setdefault((lang, model), {})[int(layer)] = (precision, recall, f1)
    return tables
