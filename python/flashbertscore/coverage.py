"""How much of each text a score is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flashbertscore import functional

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Coverage:
    """Tokens of texts that are scored, and tokens that the texts have.

    Special tokens count, as they do in the scores. The two differ where a text was longer than the
    model takes and was cut.

    Attributes:
        candidates: int64 [C, 2], seen and total of each candidate.
        references: int64 [R, 2], seen and total of each reference; those of a candidate that has
            several stand one after another.
        sizes: int64 [C], how many each candidate has; None: one each, or, of a grid, all.
    """

    candidates: torch.Tensor
    references: torch.Tensor
    sizes: torch.Tensor | None = None

    @property
    def seen(self) -> int:
        """Tokens that are scored, of all texts together."""
        return int(self.candidates[:, 0].sum() + self.references[:, 0].sum())

    @property
    def total(self) -> int:
        """Tokens that all texts together have."""
        return int(self.candidates[:, 1].sum() + self.references[:, 1].sum())

    @property
    def cut(self) -> int:
        """Texts of which something is missing."""
        return sum(
            int((side[:, 0] < side[:, 1]).sum()) for side in (self.candidates, self.references)
        )

    @property
    def complete(self) -> bool:
        """Whether nothing of any text is missing."""
        return self.seen == self.total

    def each(self) -> Iterator[Coverage]:
        """Give the coverage of each candidate and its references; not of a grid."""
        sizes = [1] * len(self.candidates) if self.sizes is None else self.sizes.tolist()
        own, theirs = torch.split(self.candidates, 1), torch.split(self.references, sizes)
        # Copies: a view holds on to the counts of all texts, and is pickled with them.
        return (Coverage(a.clone(), b.clone()) for a, b in zip(own, theirs, strict=True))

    def as_dict(self) -> dict[str, int]:
        """Return the counts of all texts together, as JSON has them."""
        return {
            "tokens_seen": self.seen,
            "tokens_total": self.total,
            "texts": len(self),
            "texts_cut": self.cut,
        }

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.candidates) + len(self.references)

    def __str__(self) -> str:
        """Return a line for people."""
        return in_words(**self.as_dict())


def in_words(*, tokens_seen: int, tokens_total: int, texts: int, texts_cut: int) -> str:
    """Return the counts of `Coverage.as_dict` as a line for people."""
    if tokens_seen == tokens_total:
        return f"all {tokens_total:,} tokens of {texts:,} texts"
    return (
        f"{tokens_seen:,} of {tokens_total:,} tokens ({percent(tokens_seen, tokens_total):.1f} %), "
        f"{texts_cut:,} of {texts:,} texts were cut"
    )


def percent(seen: int, total: int) -> float:
    """Return the part that is seen; 100 only where nothing is missing, however large the total."""
    return 100.0 if seen == total else min(99.9, 100 * seen / total)


#: Of no text.
NOTHING = Coverage(torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2, dtype=torch.int64))


def join(parts: Sequence[Coverage]) -> Coverage:
    """Return the coverage of all texts of several."""
    sizes = [part.sizes for part in parts if part.sizes is not None]
    return Coverage(
        torch.cat([part.candidates for part in parts]),
        torch.cat([part.references for part in parts]),
        torch.cat(sizes) if sizes else None,
    )


class TextScores(functional.Scores):
    """Precision, recall and F1 of texts: a tuple of three tensors that knows how much was seen.

    Attributes:
        coverage: tokens seen and total of each text.
    """

    coverage: Coverage

    def _replace(self, **columns: torch.Tensor) -> TextScores:
        """Return a copy with other columns, as of any named tuple."""
        made: TextScores = super()._replace(**columns)
        made.coverage = self.coverage
        return made

    @classmethod
    def of(cls, scores: torch.Tensor, coverage: Coverage) -> TextScores:
        """Return scores [..., 3] as three tensors."""
        made = cls(*(column.contiguous() for column in scores.unbind(-1)))
        made.coverage = coverage
        return made
