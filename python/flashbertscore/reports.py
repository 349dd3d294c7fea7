"""What a caller is told: the reference's progress messages, and warnings that name indices."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashbertscore.inputs import Corpus
    from flashbertscore.tokens import Tokens

# Indices that a warning spells out.
_NAMED = 10


class Progress:
    """The messages that the reference prints with `verbose`, and its bar on standard error."""

    def __init__(self, *, verbose: bool) -> None:
        """Print only if `verbose`."""
        self._verbose = verbose
        self._start = time.perf_counter()
        self._bar: Any = None

    def say(self, message: str) -> None:
        """Print a message to standard output and start the clock anew."""
        self._start = time.perf_counter()
        if self._verbose:
            print(message)  # noqa: T201 - where asked for

    def encoding(self, texts: int) -> None:
        """Begin the bar over the texts that are encoded."""
        if self._verbose:
            from tqdm import tqdm  # type: ignore[import-untyped]  # noqa: PLC0415 - for a bar only

            print("computing bert embedding.")  # noqa: T201 - where asked for
            self._bar = tqdm(total=texts, unit="texts")

    def encoded(self, texts: int) -> None:
        """Move the bar on."""
        if self._bar is not None:
            self._bar.update(texts)

    def matching(self) -> None:
        """End the bar: all that is left is to match what was encoded last."""
        self.close()
        if self._verbose:
            print("computing greedy matching.")  # noqa: T201 - where asked for

    def done(self, sentences: int | None = None) -> None:
        """Print the time since the last message."""
        if self._verbose:
            took = time.perf_counter() - self._start
            rate = "" if sentences is None else f", {sentences / took:.2f} sentences/sec"
            print(f"done in {took:.2f} seconds{rate}")  # noqa: T201 - where asked for

    def close(self) -> None:
        """Leave the terminal in order, also after an error."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def warn_of_cut_texts(tokens: Tokens, max_length: int | None) -> None:
    """Warn once if texts were longer than the model can take."""
    if tokens.cut.any():
        _warn(
            f"{int(tokens.cut.sum())} of {len(tokens)} distinct texts are longer than the "
            f"{max_length} tokens that the model takes and were cut: {tokens.tokens_seen} of "
            f"{tokens.tokens_total} tokens are scored"
        )


def warn_of_empty_texts(tokens: Tokens, corpus: Corpus) -> None:
    """Warn once if texts have no tokens of their own."""
    if tokens.empty.any():
        places = corpus.places(tokens.empty)
        _warn(f"{_some(places)}: no tokens in the text; the raw scores of its pairs are 0")


def warn_of_nan(scores: torch.Tensor, tokens: Tokens, weights: torch.Tensor) -> None:
    """Warn once if P or R is NaN; `scores` is [N, 3] or [L, N, 3], `weights` of all tokens [T]."""
    nan = scores.isnan().any(dim=-1)
    nan = nan.any(dim=0) if nan.dim() > 1 else nan
    if not nan.any():
        return
    text = torch.repeat_interleave(tokens.lengths)
    totals = torch.zeros(len(tokens)).index_add_(0, text, weights)
    places = [f"pair {i}" for i in nan.nonzero().squeeze(1).tolist()]
    why = (
        "the token weights of a text sum to 0 (IDF counted over one reference, or over references "
        "that are all the same, gives every token in them 0; so does a text of special tokens only)"
        if (totals[~tokens.empty] == 0).any()
        else "the model gives embeddings that are not finite"
    )
    _warn(f"{_some(places)}: P or R is NaN and F1 is 0, because {why}")


def _some(places: Sequence[str]) -> str:
    rest = len(places) - _NAMED
    return ", ".join(places[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _warn(message: str) -> None:
    # The levels between a caller and here: score, the run, warn_of_..., _warn.
    warnings.warn(message, UserWarning, stacklevel=5)
