"""Inverse document frequencies (IDF), counted from ids that are there already."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashbertscore.tokens import Tokens


class Idf(defaultdict[int, float]):
    """Token id -> weight log((N + 1) / (df + 1)); an id in no document has log(N + 1).

    Reads like the dictionary of the reference's `get_idf_dict`, but looking an id up adds nothing,
    and it can be pickled.
    """

    def __missing__(self, token: int) -> float:
        """Return the weight of an id that no document has."""
        return float(self.default_factory())  # type: ignore[misc]  # always set, see count


class Counter:
    """Document frequencies, counted part by part: memory is that of the vocabulary."""

    def __init__(self) -> None:
        """Start with no document."""
        self.documents = 0
        self._frequency = torch.zeros(0, dtype=torch.int64)

    def add(self, tokens: Tokens, documents: torch.Tensor) -> None:
        """Count more documents.

        Args:
            tokens: ids of distinct texts.
            documents: int64 [N], the text of each document. A text that stands there twice counts
                as two documents, as in the reference.
        """
        self.documents += len(documents)
        copies = torch.bincount(documents, minlength=len(tokens))
        width = int(tokens.ids.max()) + 1 if len(tokens.ids) else 1
        if width > len(self._frequency):
            more = torch.zeros(width - len(self._frequency), dtype=torch.int64)
            self._frequency = torch.cat([self._frequency, more])
        # Each id counts once a document.
        if len(tokens.ids) > width * len(tokens):  # books: less memory than a sort of all ids takes
            for ids, count in zip(tokens.split(), copies, strict=True):
                self._frequency[:width] += (torch.bincount(ids, minlength=width) > 0) * count
            return
        text = torch.repeat_interleave(tokens.lengths)
        once = torch.unique(text * width + tokens.ids)
        self._frequency.index_add_(0, once % width, copies[once // width])

    def idf(self) -> Idf:
        """Return the weights of what was counted."""
        total = self.documents
        found = self._frequency.nonzero().squeeze(1)
        weights = {
            token: math.log((total + 1) / (df + 1))
            for token, df in zip(found.tolist(), self._frequency[found].tolist(), strict=True)
        }
        return Idf(partial(float, math.log(total + 1)), weights)


def count(tokens: Tokens, documents: torch.Tensor) -> Idf:
    """Return the IDF over a collection of documents (the reference's `get_idf_dict`).

    Args:
        tokens: ids of the distinct texts.
        documents: int64 [N], the text of each document, see `Counter.add`.
    """
    counter = Counter()
    counter.add(tokens, documents)
    return counter.idf()


def weigh(tokens: Tokens, idf: Mapping[int, float]) -> torch.Tensor:
    """Return the weight of every token, float32 [T], from a dictionary id -> weight.

    A `defaultdict` gives its default for an id that it lacks, and is not added to.

    Raises:
        KeyError: a plain dictionary lacks an id (those of the special tokens are needed too).
        ValueError: a weight is negative, NaN or infinite; a weighted mean needs none such.
    """
    distinct = torch.bincount(tokens.ids).nonzero().squeeze(1)
    weights = [_look_up(idf, token) for token in distinct.tolist()]
    for token, weight in zip(distinct.tolist(), weights, strict=True):
        if not (weight >= 0 and math.isfinite(weight)):
            msg = f"idf: expected finite weights >= 0, got {weight} for token id {token}"
            raise ValueError(msg)
    table = torch.zeros(int(distinct[-1]) + 1 if len(distinct) else 0)
    table[distinct] = torch.tensor(weights, dtype=torch.float32)
    return table[tokens.ids]


def uniform(tokens: Tokens, special: tuple[int | None, ...]) -> torch.Tensor:
    """Return weights without IDF, float32 [T]: 1, and 0 for the ids in `special`.

    By id, as in the reference: a "[SEP]" that stands in the text weighs 0 too.
    """
    weights = torch.ones(len(tokens.ids), dtype=torch.float32)
    for token in special:
        if token is not None:
            weights[tokens.ids == token] = 0.0
    return weights


def _look_up(idf: Mapping[int, float], token: int) -> float:
    if token in idf:
        return idf[token]
    if isinstance(idf, defaultdict) and idf.default_factory is not None:
        return float(idf.default_factory())
    try:
        return idf[token]  # a mapping with a __missing__ of its own
    except KeyError:
        msg = (
            f"idf: no weight for token id {token}; a plain dict needs one for every id that "
            "occurs, special tokens included. Pass a defaultdict to give the others a default."
        )
        raise KeyError(msg) from None
