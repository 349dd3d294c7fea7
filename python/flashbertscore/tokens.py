"""Text to token ids: one batched call of the tokenizer, the ids packed one text after another."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What a call of the tokenizer gets at once: its intermediate objects take a hundred times the
# memory of the ids.
_CHUNK = 2048  # texts
_CHUNK_CHARACTERS = 262_144


@dataclass(frozen=True)
class Tokens:
    """Token ids of n texts in one buffer.

    Attributes:
        ids: int64 [T], the ids of all texts one after another, special tokens included.
        offsets: int64 [n + 1], text i owns ids[offsets[i]:offsets[i + 1]].
        totals: int64 [n], how many ids each text had before it was cut to the model's length.
        empty: bool [n], whether a text has exactly the ids of the empty text.
    """

    ids: torch.Tensor
    offsets: torch.Tensor
    totals: torch.Tensor
    empty: torch.Tensor

    def __len__(self) -> int:
        """Return the number of texts n."""
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> torch.Tensor:
        """Ids that each text has, int64 [n]."""
        return self.offsets.diff()

    @property
    def cut(self) -> torch.Tensor:
        """Whether a text was longer than the model can take, bool [n]."""
        return self.totals > self.lengths

    @property
    def tokens_seen(self) -> int:
        """Ids that are scored."""
        return len(self.ids)

    @property
    def tokens_total(self) -> int:
        """Ids that the texts had before they were cut."""
        return int(self.totals.sum())

    def rows(self, texts: torch.Tensor) -> torch.Tensor:
        """Positions in `ids` of the ids of `texts` (int64 [k]), one text after another."""
        return ranges(self.offsets[:-1][texts], self.lengths[texts])

    def select(self, texts: torch.Tensor) -> Tokens:
        """Return the tokens of some texts, in the order of `texts` (int64 [k])."""
        lengths = self.lengths[texts]
        return Tokens(
            self.ids[self.rows(texts)], _offsets(lengths), self.totals[texts], self.empty[texts]
        )

    def tolist(self) -> list[list[int]]:
        """Return the ids as one list a text."""
        ids, offsets = self.ids.tolist(), self.offsets.tolist()
        return [ids[a:b] for a, b in itertools.pairwise(offsets)]


class TextError(RuntimeError):
    """A text that the tokenizer or the model fails on.

    Attributes:
        index: which text; out of `score` or a scorer, the candidate that it is or belongs to. None
            where no single text fails alone.
    """

    def __init__(self, message: str, index: int | None = None) -> None:
        """Say what happened, and to which text."""
        super().__init__(message)
        self.index = index


def tokenize(
    texts: Sequence[str],
    tokenizer: Any,
    *,
    prefix_space: bool = False,
    max_length: int | None = None,
) -> Tokens:
    """Turn texts into the ids that BERTScores were published with (the reference's `sent_encode`).

    White space around a text is dropped. A text that is then empty has the ids that the tokenizer
    gives an empty text: [CLS] [SEP] for BERT, the end of sentence alone for T5.

    Args:
        texts: the texts.
        tokenizer: of transformers; only called, never modified.
        prefix_space: put a space before the first word, as the slow tokenizers of RoBERTa and
            GPT-2 do when asked for `add_prefix_space`. The fast ones ignore that argument of a
            call, so the space is put into the text.
        max_length: ids a text may have, special tokens included; a longer one is cut as the
            tokenizer would cut it. None: no limit.

    Raises:
        TextError: the tokenizer fails on a text, named by its number.
        ValueError: `max_length` leaves no room for a token beside the special ones.
    """
    runs = _runs(texts)
    # The empty text goes along with the first run: a call of its own costs as much as two texts.
    *encoded, nothing = _encode(tokenizer, [*_prepare(next(runs, []), space=prefix_space), ""], 0)
    if max_length is not None and max_length <= len(nothing):
        msg = (
            f"model_max_length: expected more than {len(nothing)}, the number of special tokens, "
            f"got {max_length}"
        )
        raise ValueError(msg)
    ids = array("q")
    lengths: list[int] = []
    totals: list[int] = []
    empty: list[bool] = []
    while encoded:
        for found in encoded:
            kept = found
            if max_length is not None and len(found) > max_length:
                kept = _truncate(found, max_length, tokenizer)
            ids.extend(kept)
            lengths.append(len(kept))
            totals.append(len(found))
            empty.append(found == nothing)
        run = _prepare(next(runs, []), space=prefix_space)
        encoded = _encode(tokenizer, run, len(lengths)) if run else []
    return Tokens(
        # frombuffer refuses an empty buffer
        torch.frombuffer(ids, dtype=torch.int64) if ids else torch.empty(0, dtype=torch.int64),
        _offsets(torch.tensor(lengths, dtype=torch.int64)),
        torch.tensor(totals, dtype=torch.int64),
        torch.tensor(empty, dtype=torch.bool),
    )


def _runs(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    start = 0
    while start < len(texts):
        stop, size = start + 1, len(texts[start])
        while stop < len(texts) and stop - start < _CHUNK and size < _CHUNK_CHARACTERS:
            size += len(texts[stop])
            stop += 1
        yield texts[start:stop]
        start = stop


def _prepare(texts: Sequence[str], *, space: bool) -> list[str]:
    stripped = [text.strip() for text in texts]
    return [" " + text if text else text for text in stripped] if space else stripped


def _encode(tokenizer: Any, texts: list[str], first: int) -> list[list[int]]:
    """Call the tokenizer; `first` is the number of the first text, for what fails."""
    try:
        return _call(tokenizer, texts)
    except Exception as error:
        for number, text in enumerate(texts, start=first):
            try:
                _call(tokenizer, [text])
            except Exception as alone:  # noqa: PERF203 - whichever fails
                msg = f"the tokenizer failed: {type(alone).__name__}: {alone}"
                raise TextError(msg, number) from alone
        msg = f"the tokenizer failed: {type(error).__name__}: {error}"
        raise TextError(msg) from error


def _call(tokenizer: Any, texts: list[str], **options: bool) -> list[list[int]]:
    # Never asks for truncation or padding: the fast tokenizers keep both as state, which two
    # threads that share a tokenizer would change under each other.
    encoded = tokenizer(
        texts,
        add_special_tokens=True,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,  # "sequence is longer than the specified maximum": we say so ourselves
        **options,
    )
    found: list[list[int]] = encoded["input_ids"]
    return found


def _truncate(ids: list[int], max_length: int, tokenizer: Any) -> list[int]:
    """Cut the text's own ids, keep the special ones around them."""
    special = tokenizer("a", return_special_tokens_mask=True, verbose=False)["special_tokens_mask"]
    before = special.index(0)
    after = special[::-1].index(0)
    own = ids[before : len(ids) - after]
    room = max_length - before - after
    own = own[-room:] if tokenizer.truncation_side == "left" else own[:room]
    return ids[:before] + own + ids[len(ids) - after :]


def ranges(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return start, start + 1, ... start + length - 1 of each, one after another, int64."""
    first = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) + (starts - first).repeat_interleave(lengths)


def _offsets(lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
