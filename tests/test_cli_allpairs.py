"""Fear: `flashbertscore mbr` or `matrix` prints another number or text than the library gives."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flashbertscore import BERTScorer
from flashbertscore.cli import main as command

GROUPS = [
    ["a cat sat", "the cat sat down", "dogs bark"],
    ["it rains", "it pours", "it rains a lot"],
]


@pytest.fixture
def run(
    tiny_model: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command with a tiny model; exit code, stdout, stderr."""

    def call(name: str, *arguments: str) -> tuple[int, str, str]:
        options = ["-m", tiny_model("bert"), "-l", "3", "--device", "cpu"]
        code = command.main([name, *arguments, *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def scorer(tiny_model: Callable[[str], str]) -> BERTScorer:
    return BERTScorer(tiny_model("bert"), num_layers=3, device="cpu")


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_mbr_of_groups_of_lines(
    run: Callable[..., tuple[int, str, str]], scorer: BERTScorer, tmp_path: Path
) -> None:
    path = write(tmp_path / "hyps.txt", [text for group in GROUPS for text in group])
    found = scorer.mbr(GROUPS)
    texts = [group[i] for group, i in zip(GROUPS, found.index.tolist(), strict=True)]
    assert run("mbr", path, "-n", "3") == (0, "".join(f"{t}\n" for t in texts), "")
    _, out, _ = run("mbr", path, "-n", "3", "--tsv")
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0] == ["group", "index", "f1", "tokens_seen", "tokens", "text"]
    tokens = [str(n) for n in scorer._encoder.tokenize(texts).lengths.tolist()]
    for g, row in enumerate(rows[1:]):
        assert row[:3] == [str(g + 1), str(int(found.index[g])), f"{found.utility[g]:.6f}"]
        assert row[3:] == [tokens[g], tokens[g], texts[g]]
    _, out, _ = run("mbr", path, "-n", "3", "--json", "--utility", "recall")
    recall = scorer.mbr(GROUPS, utilities="recall")
    records = [json.loads(line) for line in out.splitlines()]
    assert [r["index"] for r in records] == recall.index.tolist()
    assert all(r["tokens_seen"] == r["tokens"] > 2 for r in records)
    assert [r["recall"] for r in records] == pytest.approx(recall.utility.tolist(), abs=1e-8)


def test_mbr_of_json_lines(
    run: Callable[..., tuple[int, str, str]], scorer: BERTScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = [0.0, 0.0, 1.0]
    lines = [json.dumps(GROUPS[0]), json.dumps({"hypotheses": GROUPS[1], "weights": weights})]
    data = "\n".join(lines).encode()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    code, out, err = run("mbr", "-", "--json")
    assert (code, err) == (0, "")
    found = scorer.mbr(GROUPS, weights=[[1, 1, 1], weights])
    records = [json.loads(line) for line in out.splitlines()]
    assert [r["index"] for r in records] == found.index.tolist()
    assert records[1]["text"] == "it rains a lot"


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["a", "b", "c"], ["-n", "2"], "expected groups of 2 lines, got 3 lines"),
        (["a"], ["-n", "0"], "--group-size: expected at least 1, got 0"),
        (
            ["a"],
            [],
            "hyps:1: not JSON (Expecting value); for groups of N lines pass --group-size N",
        ),
        (['["a"]', "[]"], [], "hyps:2: expected a list of texts, or an object whose"),
        (['{"hypotheses": ["a", 1]}'], [], "hyps:1: expected a list of texts"),
        (['{"hypotheses": ["a"], "weights": [1, 2]}'], [], 'expected "weights" to be 1 numbers'),
        ([], ["-n", "2"], "empty, there is nothing to choose from"),
    ],
)
def test_mistakes_of_mbr_take_one_line(
    run: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    lines: list[str],
    options: list[str],
    message: str,
) -> None:
    code, out, err = run("mbr", write(tmp_path / "hyps", lines), *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_matrix(
    run: Callable[..., tuple[int, str, str]], scorer: BERTScorer, tmp_path: Path
) -> None:
    cands, refs = write(tmp_path / "c", GROUPS[0]), write(tmp_path / "r", GROUPS[1] + GROUPS[0])
    expected = torch.stack(scorer.score_matrix(GROUPS[0], GROUPS[1] + GROUPS[0])).numpy()
    code, out, err = run("matrix", "-c", cands, "-r", refs, "--metric", "precision")
    assert (code, err) == (0, "")
    table = np.array([line.split("\t") for line in out.splitlines()], dtype=np.float64)
    np.testing.assert_allclose(table, expected[0], rtol=0, atol=1e-6)
    path = tmp_path / "scores"
    assert run("matrix", "-c", cands, "-r", refs, "-o", str(path)) == (0, "", "")
    np.testing.assert_array_equal(np.load(path), expected)
    code, out, _ = run("matrix", "-c", cands)
    assert len(out.splitlines()) == len(out.splitlines()[0].split("\t")) == 3


def test_mistakes_of_matrix_take_one_line(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    empty = write(tmp_path / "empty", [])
    code, _, err = run("matrix", "-c", empty)
    assert code == 2
    assert err.endswith("empty: empty, there is nothing to score\n")
    code, _, err = run("matrix", "-c", str(tmp_path / "none"))
    assert code == 2
    assert err.endswith("none: No such file or directory\n")
