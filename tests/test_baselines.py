"""Baselines: every shipped figure against the reference's files, and files of one's own."""

from pathlib import Path
from typing import Any

import bert_score
import pandas as pd
import pytest
import torch

from flashbertscore import baselines

FOLDER = Path(bert_score.__file__).parent / "rescale_baseline"
FILES = sorted(FOLDER.rglob("*.tsv"))


def as_the_reference_reads(path: Path, num_layers: int | None = None) -> Any:
    table = pd.read_csv(path)
    if num_layers is None:
        return torch.from_numpy(table.to_numpy(copy=True))[:, 1:].unsqueeze(1).float()
    return torch.from_numpy(table.iloc[num_layers].to_numpy(copy=True))[1:].float()


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "mine.tsv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_all_72_tables_are_shipped() -> None:
    names = {
        tuple(path.relative_to(FOLDER).with_suffix("").as_posix().split("/", 1)) for path in FILES
    }
    assert len(names) == 72
    assert set(baselines._shipped()) == names


def test_every_shipped_value_is_the_references() -> None:
    for path in FILES:
        lang, model = path.relative_to(FOLDER).with_suffix("").as_posix().split("/", 1)
        expected = as_the_reference_reads(path)
        assert torch.equal(baselines.lookup(lang, model, 0, all_layers=True), expected)
        for layer in range(len(expected)):
            row = as_the_reference_reads(path, layer)
            assert torch.equal(baselines.lookup(lang, model, layer), row)


def test_a_published_value() -> None:
    row = baselines.lookup("en", "roberta-large", 17)
    assert row.dtype == torch.float32
    assert row.shape == (3,)
    torch.testing.assert_close(row, torch.tensor([0.83150584, 0.8314941, 0.83122575]))


@pytest.mark.parametrize("lang", ["tr", "EN", "", None, "no"])
def test_no_table_is_none(lang: str | None) -> None:
    assert baselines.lookup(lang, "roberta-large", 17) is None


def test_no_file_is_none_and_the_message_is_the_references(tmp_path: Path) -> None:
    path = tmp_path / "absent.tsv"
    assert baselines.lookup("en", "m", 0, path=path) is None
    assert baselines.lookup("en", "m", 0, path=tmp_path) is None  # a folder is no file
    assert baselines.missing("en", "m", path) == f"Baseline not Found for m on en at {path}"
    assert baselines.SHIPPED in baselines.missing("tr", "m")


def test_a_layer_that_the_table_lacks() -> None:
    with pytest.raises(ValueError, match=r"roberta-large on en: no row for layer 25, .* 0 to 24"):
        baselines.lookup("en", "roberta-large", 25)
    with pytest.raises(ValueError, match="no row for layer -1"):
        baselines.lookup("en", "roberta-large", -1)


@pytest.mark.parametrize(
    "content",
    [
        "LAYER,P,R,F\n0,0.1,0.2,0.3\n1,0.4,0.5,-0.6\n",
        "\ufeffLAYER,P,R,F\r\n0,0.1,0.2,0.3\r\n1,0.4,0.5,-0.6",
        "layer, p, r, f\n\n0, 0.1, 0.2, 0.3\n\n1, 4e-1, .5, -0.6\n\n",
    ],
    ids=["plain", "bom-crlf", "blanks"],
)
def test_a_file_of_ones_own(file: Any, content: str | bytes) -> None:
    path = file(content)
    row = baselines.lookup(None, "any", 1, path=path)
    assert torch.equal(row, torch.tensor([0.4, 0.5, -0.6]))
    assert torch.equal(row, as_the_reference_reads(path, 1))
    every = baselines.lookup(None, "any", 1, all_layers=True, path=str(path))
    assert torch.equal(every, torch.tensor([[[0.1, 0.2, 0.3]], [[0.4, 0.5, -0.6]]]))


def test_a_row_counts_for_the_layer_it_names(file: Any) -> None:
    path = file("LAYER,P,R,F\n6,0.1,0.2,0.3\n")
    assert torch.equal(baselines.lookup("en", "m", 6, path=path), torch.tensor([0.1, 0.2, 0.3]))
    with pytest.raises(ValueError, match=r"mine\.tsv: no row for layer 5, it has layer 6"):
        baselines.lookup("en", "m", 5, path=path)
    with pytest.raises(ValueError, match=r"all_layers needs the layers 0 to L in order, got \[6\]"):
        baselines.lookup("en", "m", 6, all_layers=True, path=path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "mine.tsv: empty, expected the header LAYER,P,R,F"),
        ("\n\n", "mine.tsv: empty"),
        ("LAYER,P,R,F\n", "mine.tsv: a header but no rows"),
        ("0,0.1,0.1,0.1\n", "mine.tsv:1: expected the header LAYER,P,R,F, got '0,0.1,0.1,0.1'"),
        ("LAYER\tP\tR\tF\n0\t0\t0\t0\n", "mine.tsv:1: expected the header"),
        ("LAYER,R,P,F\n0,0.1,0.1,0.1\n", "mine.tsv:1: expected the header LAYER,P,R,F"),
        (",LAYER,P,R,F\n0,0,0.1,0.1,0.1\n", "mine.tsv:1: expected the header"),
        ("LAYER,P,R,F\n0,0.1,0.1\n", "mine.tsv:2: expected 4 comma-separated values, found 3"),
        ("LAYER,P,R,F\n\n0,0.1,0.1,x\n", "mine.tsv:3: expected three numbers after the layer"),
        ("LAYER,P,R,F\n0,0.1,0.1,\n", "mine.tsv:2: expected three numbers"),
        ("LAYER,P,R,F\n0,0.1,nan,0.1\n", "mine.tsv:2: expected baselines below 1"),
        ("LAYER,P,R,F\n0,0.1,1,0.1\n", "mine.tsv:2: expected baselines below 1"),
        ("LAYER,P,R,F\nmax,0.1,0.1,0.1\n", "mine.tsv:2: expected a layer number"),
        ("LAYER,P,R,F\n-1,0.1,0.1,0.1\n", "mine.tsv:2: expected a layer number"),
        ("LAYER,P,R,F\n0,0,0,0\n0,0,0,0\n", "mine.tsv:3: a second row for layer 0"),
        (b"LAYER,P,R,F\n0,\xff,0,0\n", "mine.tsv: not UTF-8 text"),
    ],
)
def test_a_malformed_file_says_where(file: Any, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        baselines.lookup("en", "m", 0, path=file(content))
