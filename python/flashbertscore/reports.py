"""What a caller is told: the reference's progress messages, and warnings that name indices."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashbertscore.corpus import Corpus
    from flashbertscore.tokens import Tokens

# Indices that a warning spells out.
_NAMED = 10


class Progress:
    """The messages that the reference prints with `verbose`, and its bar on standard error.

    The bar counts texts, duplicates and those whose embeddings are kept as well, a part of a long
    text as that part, and shows how many tokens a second go through the model.
    """

    def __init__(
        self, *, messages: bool = False, bar: bool = False, texts: int | None = None
    ) -> None:
        """Print the messages, show the bar, or both; `texts` is how many there will be."""
        self._messages = messages
        self._shown = bar
        self._texts = texts
        self._start = self._began = time.perf_counter()
        self._bar: Any = None
        self._through = self._counted = 0
        # Of the portion: texts, tokens, and those whose embeddings are there.
        self._portion = (0, 0)
        self._taken = 0

    def say(self, message: str) -> None:
        """Print a message to standard output and start the clock anew."""
        self._start = time.perf_counter()
        if self._messages:
            print(message)  # noqa: T201 - where asked for

    def encoding(self) -> None:
        """Begin the bar."""
        if self._messages:
            print("computing bert embedding.")  # noqa: T201 - where asked for
        if self._shown:
            from tqdm import tqdm  # type: ignore[import-untyped]  # noqa: PLC0415 - for a bar only

            self._bar = tqdm(total=self._texts, unit="texts")
            self._began = time.perf_counter()

    def begin(self, texts: int, tokens: int) -> None:
        """Begin a portion of this many texts, duplicates included, and tokens of distinct ones."""
        self._portion = (texts, tokens)
        self._taken = 0

    def encoded(self, through: int, taken: int) -> None:
        """Move the bar on by tokens that went through the model; see `Encoder.encode`."""
        if self._bar is not None:
            self._through += through
            self._taken += taken
            seconds = time.perf_counter() - self._began
            self._bar.set_postfix_str(f"{self._through / seconds:,.0f} tokens/s", refresh=False)
            # Texts by their tokens: a book beside its summary is nearly all of the two.
            texts, tokens = self._portion
            self._show(self._counted + texts * self._taken / max(1, tokens))

    def end(self) -> None:
        """Count the texts of the portion, also those that did not have to be encoded."""
        if self._bar is not None:
            self._counted += self._portion[0]
            self._show(self._counted)

    def _show(self, texts: float) -> None:
        rounded = round(texts, 2)
        self._bar.n = int(rounded) if rounded == int(rounded) else rounded
        self._bar.update(0)  # shows it when it is time to

    def matching(self) -> None:
        """Tell that everything is encoded; all that is left is to match what came last."""
        if self._bar is not None:
            self._bar.set_postfix_str("matching")
        if self._messages:
            print("computing greedy matching.")  # noqa: T201 - where asked for

    def done(self, sentences: int | None = None) -> None:
        """Print the time since the last message."""
        if self._messages:
            took = time.perf_counter() - self._start
            rate = "" if sentences is None else f", {sentences / took:.2f} sentences/sec"
            print(f"done in {took:.2f} seconds{rate}")  # noqa: T201 - where asked for

    def close(self) -> None:
        """Leave the terminal in order, also after an error."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Notices:
    """What is odd about texts and scores, gathered over a call to be said once."""

    def __init__(self, max_length: int | None) -> None:
        """Begin a call; `max_length` is how many tokens the model takes."""
        self._max_length = max_length
        self.tokens_seen = self.tokens_total = 0
        self._texts = self._cut = 0
        self._empty, self._nan = _Places(), _Places()
        self._weightless = False
        self._told: set[str] = set()

    def texts(self, tokens: Tokens, corpus: Corpus) -> None:
        """Take note of the texts of a portion."""
        self.tokens_seen += tokens.tokens_seen
        self.tokens_total += tokens.tokens_total
        self._texts += len(tokens)
        self._cut += int(tokens.cut.sum())
        if tokens.empty.any():
            self._empty.add(corpus.places(tokens.empty))

    def scores(
        self, scores: torch.Tensor, tokens: Tokens, weights: torch.Tensor, first: int
    ) -> None:
        """Take note of scores: [N, 3] or [L, N, 3]; `weights` of all tokens of the portion [T]."""
        nan = scores.isnan().any(dim=-1)
        nan = nan.any(dim=0) if nan.dim() > 1 else nan
        if not nan.any():
            return
        text = torch.repeat_interleave(tokens.lengths)
        totals = torch.zeros(len(tokens)).index_add_(0, text, weights)
        self._weightless |= bool((totals[~tokens.empty] == 0).any())
        self._nan.add([f"pair {first + i}" for i in nan.nonzero().squeeze(1).tolist()])

    def warn(self, stacklevel: int, *, again: bool = True) -> None:
        """Warn once of each kind; `again`: also of kinds of which a warning was given before.

        Args:
            stacklevel: as of `warnings.warn`, seen from the caller of this.
            again: False in the middle of a stream, where more is to come.
        """
        found: dict[str, str] = {}
        if self._cut:
            found["cut"] = (
                f"{self._cut} of {self._texts} distinct texts are longer than the "
                f"{self._max_length} tokens that the model takes and were cut: {self.tokens_seen} "
                f"of {self.tokens_total} tokens are scored"
            )
        if self._empty.count:
            found["empty"] = (
                f"{self._empty}: no tokens in the text; the raw scores of its pairs are 0"
            )
        if self._nan.count:
            why = (
                "the token weights of a text sum to 0 (IDF counted over one reference, or over "
                "references that are all the same, gives every token in them 0; so does a text of "
                "special tokens only)"
                if self._weightless
                else "the model gives embeddings that are not finite"
            )
            found["nan"] = f"{self._nan}: P or R is NaN and F1 is 0, because {why}"
        for kind, message in found.items():
            if message not in self._told and (again or kind not in self._told):
                self._told |= {kind, message}
                warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)


class _Places:
    """Names of places, of which only the first are spelled out."""

    def __init__(self) -> None:
        self.count = 0
        self._named: list[str] = []

    def add(self, places: Sequence[str]) -> None:
        self.count += len(places)
        self._named += places[: _NAMED - len(self._named)]

    def __str__(self) -> str:
        rest = self.count - _NAMED
        return ", ".join(self._named) + (f" and {rest} more" if rest > 0 else "")
