"""The functions of bert_score.utils, on the ids, weights and op of FlashBERTScore.

Signatures, the order of arguments (references first) and results are the reference's; what differs
are the rules in the README's compatibility table: ids as published, true maxima over valid tokens.
Arguments are never modified.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flashbertscore import encoder, functional, idf, matching, models, scorer
from flashbertscore.compat.bert_score import _lazy
from flashbertscore.models import lang2model, model2layers
from flashbertscore.tokens import tokenize

__version__ = scorer.REFERENCE_VERSION

#: Where the reference fetches models called "scibert-..."; here the Hub has them.
SCIBERT_URL_DICT = {
    name: "https://s3-us-west-2.amazonaws.com/ai2-s2-research/scibert/pytorch_models/"
    f"{name.replace('-', '_')}.tar"
    for name in models.SCIBERT
}

_LEAKED = {
    "AutoModel": "transformers:AutoModel",
    "AutoTokenizer": "transformers:AutoTokenizer",
    "BertConfig": "transformers:BertConfig",
    "GPT2Tokenizer": "transformers:GPT2Tokenizer",
    "Pool": "multiprocessing:Pool",
    "RobertaConfig": "transformers:RobertaConfig",
    "RobertaTokenizer": "transformers:RobertaTokenizer",
    "XLMConfig": "transformers:XLMConfig",
    "XLNetConfig": "transformers:XLNetConfig",
    "chain": "itertools:chain",
    "tqdm": "tqdm.auto:tqdm",
    "trans_version": "transformers:__version__",
    "version": "packaging.version",
}

__getattr__ = _lazy.names(__name__, _LEAKED)
__all__: list[str] = []  # as in the reference: a star import takes nothing


def __dir__() -> list[str]:
    return sorted({*globals(), *_LEAKED})


class ScorerHash(str):
    """The hash of a scorer: a string, but unequal to what `get_hash` returns (see BERTScorer)."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return not isinstance(other, RequestHash) and str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other


class RequestHash(str):
    """What `get_hash` returns: the hash of the scorer that somebody asks for."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return not isinstance(other, ScorerHash) and str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other


def get_hash(  # noqa: PLR0913 - the reference's signature
    model: str,
    num_layers: int,
    idf: bool | Mapping[int, float],  # noqa: FBT001
    rescale_with_baseline: bool,  # noqa: FBT001
    use_custom_baseline: bool,  # noqa: FBT001
    use_fast_tokenizer: bool,  # noqa: FBT001
) -> str:
    """Return the configuration as one string."""
    return RequestHash(
        scorer.get_hash(
            model, num_layers, idf, rescale_with_baseline, use_custom_baseline, use_fast_tokenizer
        )
    )
