"""Why two texts score what they do: which token matched which, and what each costs.

An :class:`Explanation` is data; :mod:`flashbertscore.page` draws it, ``flashbertscore explain``
prints it. O(tokens) memory: it works where a matrix of similarities does not fit.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from flashbertscore import functional
from flashbertscore.coverage import Coverage

if TYPE_CHECKING:
    from flashbertscore.allpairs import Method


@dataclass(frozen=True)
class Token:
    """A token of one text and its best match in the other.

    Attributes:
        text: as the tokenizer decodes it.
        special: whether it is one of the tokenizer's own, such as [CLS].
        match: index of the best match in the other text, of equals the lowest; None if that is
            empty.
        similarity: cosine of both, in [-1, 1].
        weight: share of the token in the mean, w_i / sum w: 0 for special tokens without IDF.
        contribution: weight times similarity; they sum to precision or recall.
        cost: weight times (1 - similarity), what the token takes from a perfect 1.
    """

    text: str
    special: bool
    match: int | None
    similarity: float
    weight: float
    contribution: float
    cost: float


@dataclass(frozen=True)
class Explanation:
    """The alignment of two texts.

    Attributes:
        candidate: its tokens; their contributions sum to ``precision``.
        reference: its tokens; their contributions sum to ``recall``.
        precision: raw score, likewise ``recall`` and ``f1``.
        rescaled: the three scores rescaled with the baseline; None if the scorer does not rescale.
        coverage: tokens of both texts that are explained, and that they have.
    """

    candidate: list[Token]
    reference: list[Token]
    precision: float
    recall: float
    f1: float
    rescaled: tuple[float, float, float] | None
    coverage: Coverage

    def as_dict(self) -> dict[str, Any]:
        """As what JSON can hold: None for NaN."""
        return {
            "candidate": [_finite(asdict(token)) for token in self.candidate],
            "reference": [_finite(asdict(token)) for token in self.reference],
            **_finite({"precision": self.precision, "recall": self.recall, "f1": self.f1}),
            "rescaled": None if self.rescaled is None else [*map(_or_none, self.rescaled)],
            "coverage": self.coverage.as_dict(),
        }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _or_none(value) for name, value in values.items()}


def _or_none(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def explain(method: Method, candidate: str, reference: str) -> Explanation:
    """Align two texts; see ``BERTScorer.explain``."""
    texts = [candidate, reference] if candidate != reference else [candidate]
    places = ["candidate", "reference"]
    tokens, weights = method.tokenize(texts, places)
    embeddings = method.encode(tokens, places)[0]
    pair = torch.tensor([[0, len(texts) - 1]])
    offsets = tokens.offsets
    scores, alignment = functional.bertscore_packed(
        embeddings,
        offsets,
        embeddings,
        offsets,
        pair,
        weights.to(embeddings.device),
        weights.to(embeddings.device),
        return_alignment=True,
    )
    empty = tokens.empty[[0, -1]]
    raw = torch.stack(scores).view(3, 1, 1)
    whole = method._replace(baseline=None).finish(raw.clone(), (empty[:1], empty[1:]), 0).flatten()
    rescaled = None
    if method.baseline is not None:
        found = method.finish(raw.clone(), (empty[:1], empty[1:]), 0).flatten().tolist()
        rescaled = (found[0], found[1], found[2])
    ids = tokens.tolist()
    sides = []
    for text, index, similarity in (
        (0, alignment.candidate_index, alignment.candidate_similarity),
        (len(texts) - 1, alignment.reference_index, alignment.reference_similarity),
    ):
        own = weights[offsets[text] : offsets[text + 1]]
        sides.append(_tokens(method, ids[text], own, index.cpu(), similarity.cpu()))
    precision, recall, f1 = whole.tolist()
    coverage = Coverage(tokens.coverage[:1], tokens.coverage[-1:])
    return Explanation(sides[0], sides[1], precision, recall, f1, rescaled, coverage)


def _tokens(
    method: Method,
    ids: list[int],
    weights: torch.Tensor,
    index: torch.Tensor,
    similarity: torch.Tensor,
) -> list[Token]:
    tokenizer = method.encoder.tokenizer
    special = set(tokenizer.all_special_ids)
    share = (weights.double() / weights.double().sum()).nan_to_num(0.0)
    rows = zip(ids, share.tolist(), index.tolist(), similarity.double().tolist(), strict=True)
    return [
        Token(
            text=tokenizer.decode([token]),
            special=token in special,
            match=None if match < 0 else match,
            similarity=value,
            weight=weight,
            contribution=weight * value,
            cost=weight * (1 - value),
        )
        for token, weight, match, value in rows
    ]


def pieces(tokenizer: Any, ids: list[int]) -> list[str]:
    """Decode ids to text, token by token, each with the space that stands before it.

    A token is decoded beside the one before it, which tells whether a space is between them; a byte
    sequence that a character is split into shows as the replacement character until its last token.
    """
    special = set(tokenizer.all_special_ids)
    found: list[str] = []
    for i, token in enumerate(ids):
        alone = tokenizer.decode([token], clean_up_tokenization_spaces=False)
        if i == 0 or token in special or ids[i - 1] in special:
            found.append(f" {alone} " if token in special else alone)
            continue
        before = tokenizer.decode([ids[i - 1]], clean_up_tokenization_spaces=False)
        both = tokenizer.decode([ids[i - 1], token], clean_up_tokenization_spaces=False)
        found.append(both[len(before) :] if both.startswith(before) else alone)
    return found
