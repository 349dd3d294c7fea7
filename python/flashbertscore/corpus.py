"""Candidates and references as numbered texts and pairs, in portions of a bounded size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from flashbertscore.coverage import Coverage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flashbertscore.inputs import Item
    from flashbertscore.tokens import Tokens

# What the texts of a portion have: characters, and what a text costs whatever its length. A million
# are some 250,000 tokens of English: enough to find texts of equal length in, and two megabytes.
PORTION_CHARACTERS = 1_000_000
_TEXT = 32


class Source(NamedTuple):
    """How the texts of a call are called in messages."""

    candidate: str
    reference: str
    several: str


#: Of `score(cands, refs)`, where `refs` holds one text or several a candidate.
ARGUMENTS = Source("cands[{0}]", "refs[{0}]", "refs[{0}][{1}]")
#: Of the references alone.
REFERENCES = Source("refs[{0}]", "refs[{0}]", "refs[{0}][{1}]")
#: Of `compute_idf(sents)`.
SENTENCES = Source("sents[{0}]", "sents[{0}]", "sents[{0}]")
#: Of `score_stream(pairs)`.
PAIRS = Source("pairs[{0}][0]", "pairs[{0}][1]", "pairs[{0}][1][{1}]")


@dataclass(frozen=True)
class Corpus:
    """The distinct texts of some items, and which of them meet.

    Attributes:
        texts: the n distinct texts.
        pairs: int64 [P, 2], text of the candidate and text of the reference of each pair.
        sizes: int64 [N], references of each candidate; None where each has one that is not in a
            list of its own.
        source: how the texts are called.
        first: index of the first item among those of the call.
    """

    texts: list[str]
    pairs: torch.Tensor
    sizes: torch.Tensor | None
    source: Source = ARGUMENTS
    first: int = 0

    def __len__(self) -> int:
        """Return the number of candidates N."""
        return len(self.pairs) if self.sizes is None else len(self.sizes)

    @property
    def references(self) -> torch.Tensor:
        """Text of every reference, int64 [P]."""
        return self.pairs[:, 1]

    def places(self, marked: torch.Tensor) -> list[str]:
        """Name where texts that are marked (bool [n]) stand: "cands[0]", "refs[3][1]"."""
        item, which = self._items()
        candidates = torch.unique(item[marked[self.pairs[:, 0]]]).tolist()
        found = marked[self.references].nonzero().squeeze(1)
        references = zip(item[found].tolist(), which[found].tolist(), strict=True)
        return [self._candidate(i) for i in candidates] + [
            self._reference(i, j) for i, j in references
        ]

    def first_place(self, text: int) -> tuple[int, str]:
        """Return the item of these that a text stands in, and what the place is called."""
        pair = int((self.pairs == text).any(dim=1).nonzero()[0])
        item, which = (int(x[pair]) for x in self._items())
        if self.pairs[pair, 0] == text:
            return item, self._candidate(item)
        return item, self._reference(item, which)

    def coverage(self, tokens: Tokens) -> Coverage:
        """Return how much of each candidate and reference is in `tokens`, the ids of the texts."""
        of_text = tokens.coverage
        _, which = self._items()
        return Coverage(of_text[self.pairs[which == 0, 0]], of_text[self.references], self.sizes)

    def head(self, items: int) -> Corpus | None:
        """Return the first items as a corpus of their own; None for none of them."""
        if items == 0:
            return None
        item, _ = self._items()
        texts, pairs = torch.unique(self.pairs[item < items], return_inverse=True)
        return replace(
            self,
            texts=[self.texts[text] for text in texts.tolist()],
            pairs=pairs,
            sizes=None if self.sizes is None else self.sizes[:items],
        )

    def _items(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the item of each pair, and which of its references it has, int64 [P] each."""
        if self.sizes is None:
            return torch.arange(len(self.pairs)), torch.zeros(len(self.pairs), dtype=torch.int64)
        item = torch.repeat_interleave(self.sizes)
        first = self.sizes.cumsum(0) - self.sizes
        return item, torch.arange(len(self.pairs)) - first[item]

    def _candidate(self, item: int) -> str:
        return self.source.candidate.format(item + self.first)

    def _reference(self, item: int, which: int) -> str:
        plain = self.sizes is None or (self.source is PAIRS and self.sizes[item] == 1)
        name = self.source.reference if plain else self.source.several
        return name.format(item + self.first, which)


def portions(
    items: Iterable[Item], *, source: Source = ARGUMENTS, several: bool = False
) -> Iterator[Corpus]:
    """Cut items into runs of a bounded number of characters, each at least one item long.

    Where taking an item fails, what came before it is handed out first.

    Args:
        items: any number of them; taken when they are needed.
        source: how the texts are called.
        several: whether references are called by two indices though an item has but one.
    """
    taken: list[Item] = []
    first = size = 0
    failure: Exception | None = None
    iterator = iter(items)
    while True:
        try:
            item = next(iterator, None)
        except Exception as error:  # noqa: BLE001 - raised again below
            item, failure = None, error
        if item is not None:
            taken.append(item)
            size += _size(item)
        if taken and (item is None or size >= PORTION_CHARACTERS):
            yield gather(taken, source=source, several=several, first=first)
            first, size, taken = first + len(taken), 0, []
        if failure is not None:
            raise failure
        if item is None:
            return


def fit_one_portion(items: Iterable[Item]) -> bool:
    """Whether `portions` makes no more than one of these items."""
    size = 0
    for item in items:
        if size >= PORTION_CHARACTERS:
            return False
        size += _size(item)
    return True


def gather(
    items: Sequence[Item], *, source: Source = ARGUMENTS, several: bool = False, first: int = 0
) -> Corpus:
    """Return the distinct texts of items and their pairs."""
    number: dict[str, int] = {}
    pairs = [
        (
            number.setdefault(item.candidate, len(number)),
            number.setdefault(reference, len(number)),
        )
        for item in items
        for reference in item.references
    ]
    sizes = torch.tensor([len(item.references) for item in items], dtype=torch.int64)
    several = several or bool((sizes > 1).any())
    return Corpus(
        texts=list(number),
        pairs=torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2),
        sizes=sizes if several else None,
        source=source,
        first=first,
    )


def _size(item: Item) -> int:
    return len(item.candidate) + sum(map(len, item.references)) + _TEXT * (1 + len(item.references))
