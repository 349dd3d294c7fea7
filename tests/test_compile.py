"""Fear: a model that goes through torch.compile scores otherwise, or says nothing of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import flashbertscore
from helpers.texts import SENTENCES

TinyModel = Callable[[str], str]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled(tiny_model: TinyModel) -> None:
    options = {"model_type": tiny_model("bert"), "num_layers": 2, "device": "cpu"}
    cands, refs = SENTENCES[:4], SENTENCES[4:8]
    expected = flashbertscore.score(cands, refs, **options)
    with flashbertscore.BERTScorer(**options, compile=True) as scorer:
        found = scorer.score(cands, refs)
        assert "|encoder:compiled|" in scorer.signature
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0.0)
