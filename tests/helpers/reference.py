"""bert-score 0.3.13, run so that its numbers are what its formulas say.

It is run one pair at a time: with more, it pads similarities with 0, and a negative maximum comes
out as 0 for the shorter texts of a batch.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import transformers

from helpers.tiny_models import quiet

V5 = int(transformers.__version__.split(".")[0]) >= 5

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports pandas and matplotlib
    import bert_score
    import bert_score.utils


def score(*args: Any, **options: Any) -> Any:
    """Call `bert_score.score`, one pair at a time and without forking."""
    with quiet():
        return bert_score.score(*args, **({"batch_size": 1, "nthreads": 0} | options))


def make_scorer(*args: Any, **options: Any) -> bert_score.BERTScorer:
    """Make a `bert_score.BERTScorer`."""
    with quiet():
        return bert_score.BERTScorer(*args, **({"nthreads": 0} | options))


@contextlib.contextmanager
def given_ids(encode: Callable[[str], list[int]]) -> Iterator[None]:
    """Let the reference score ids that it is given, where its own tokenization fails.

    Under transformers 5 it crashes on an empty text, and takes other ids than the published ones
    for RoBERTa.
    """

    def sent_encode(tokenizer: object, text: str) -> list[int]:
        del tokenizer
        return encode(text)

    with mock.patch.object(bert_score.utils, "sent_encode", sent_encode):
        yield


def largest_difference(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """Return the largest difference of P, R, F; NaN must stand in the same places."""
    worst = 0.0
    for our, their in zip(ours, theirs, strict=True):
        assert our.shape == their.shape
        assert our.dtype == their.dtype == torch.float32
        assert torch.equal(our.isnan(), their.isnan())
        if our.numel():
            worst = max(worst, float((our - their).nan_to_num().abs().max()))
    return worst
