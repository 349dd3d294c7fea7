"""What callers pass as candidates and references, checked and brought into one form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Corpus:
    """The distinct texts of a call, and which of them meet.

    Attributes:
        texts: the n distinct texts.
        pairs: int64 [P, 2], text of the candidate and text of the reference of each pair.
        sizes: int64 [N], references of each candidate; None where each has one that is not in a
            list of its own.
    """

    texts: list[str]
    pairs: torch.Tensor
    sizes: torch.Tensor | None

    @property
    def references(self) -> torch.Tensor:
        """Text of every reference, int64 [P]."""
        return self.pairs[:, 1]

    def places(self, marked: torch.Tensor) -> list[str]:
        """Name where texts that are marked (bool [n]) stand: "cands[0]", "refs[3][1]"."""
        if self.sizes is None:
            first = torch.arange(len(self.pairs))
            reference = [f"refs[{i}]" for i in range(len(self.pairs))]
        else:
            first = self.sizes.cumsum(0) - self.sizes
            sizes = self.sizes.tolist()
            reference = [f"refs[{i}][{j}]" for i, size in enumerate(sizes) for j in range(size)]
        candidates = marked[self.pairs[first, 0]].nonzero().squeeze(1).tolist()
        references = marked[self.references].nonzero().squeeze(1).tolist()
        return [f"cands[{i}]" for i in candidates] + [reference[p] for p in references]


def read_corpus(cands: Any, refs: Any) -> Corpus:
    """Check candidates and references and bring them into one form.

    Args:
        cands: an ordered collection of str: list, tuple, array, pandas Series, generator.
        refs: as many of them; each a str, or each a collection of at least one str.

    Raises:
        TypeError: something is not a str, or not a collection; names the argument and index.
        ValueError: a candidate has no reference, or a text is not Unicode; names the index.
        AssertionError: the numbers of candidates and references differ (as in the reference).
    """
    candidates = read_texts(cands, "cands")
    references = _items(refs, "refs")
    if len(candidates) != len(references):
        msg = (
            "Different number of candidates and references: "
            f"{len(candidates)} candidates, {len(references)} references"
        )
        raise AssertionError(msg)
    groups: list[list[str]]
    if not references or isinstance(references[0], str):
        for i, text in enumerate(references):
            check_text(text, f"refs[{i}]")
        groups = [[text] for text in references]
    else:
        groups = [read_texts(group, f"refs[{i}]") for i, group in enumerate(references)]
        for i, group in enumerate(groups):
            if not group:
                msg = f"refs[{i}]: expected at least one reference, got none"
                raise ValueError(msg)
    number: dict[str, int] = {}
    pairs = [
        (number.setdefault(candidate, len(number)), number.setdefault(reference, len(number)))
        for candidate, group in zip(candidates, groups, strict=True)
        for reference in group
    ]
    multiple = bool(references) and not isinstance(references[0], str)
    return Corpus(
        texts=list(number),
        pairs=torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2),
        sizes=torch.tensor([len(group) for group in groups]) if multiple else None,
    )


def read_texts(texts: Any, name: str) -> list[str]:
    """Return an ordered collection of str as a list; `name` is the argument's, for messages.

    Raises:
        TypeError: it is a str, not a collection, or holds something else than str.
        ValueError: a text is not Unicode.
    """
    items = _items(texts, name)
    for i, text in enumerate(items):
        check_text(text, f"{name}[{i}]")
    return items


def _items(texts: Any, name: str) -> list[Any]:
    # A str would be taken character by character; a set has no order; a mapping would give keys.
    if isinstance(texts, (str, bytes, Mapping, AbstractSet)) or not isinstance(texts, Iterable):
        hint = " (did you mean a list with this one text?)" if isinstance(texts, str) else ""
        msg = f"{name}: expected a sequence of str, got {_kind(texts)}{hint}"
        raise TypeError(msg)
    return list(texts)


def check_text(text: Any, where: str) -> None:
    """Raise TypeError if `text` is no str, ValueError if it is not Unicode; `where` it stands."""
    if not isinstance(text, str):
        msg = f"{where}: expected str, got {_kind(text)}"
        raise TypeError(msg)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = (
            f"{where}: expected Unicode text, got a lone surrogate "
            f"U+{ord(text[error.start]):04X} at character {error.start}"
        )
        raise ValueError(msg) from None


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return type(value).__name__
