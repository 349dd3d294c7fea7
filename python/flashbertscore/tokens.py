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

# A longer text is tokenized in parts, at places where the ids around show that it makes no
# difference: characters of a part, of what is looked at before such a place (several lengths, so
# that no period of the text hides a difference) and after it, and how many places are tried before
# the text is tokenized as a whole.
_PART = 32_768
_BEFORE = (200, 199, 187)
_AFTER = 200
_TRIES = 100

# Numbers in a range from which on `ranges` makes them range by range.
_LONG = 10_000


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
    def coverage(self) -> torch.Tensor:
        """Ids of each text that are scored, and that it had before it was cut; int64 [n, 2]."""
        return torch.stack([self.lengths, self.totals], dim=1)

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

    def split(self) -> tuple[torch.Tensor, ...]:
        """Return the ids of each text, int64, sharing memory."""
        return torch.split(self.ids, self.lengths.tolist())

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


class LongTextError(TextError, ValueError):
    """A text that is longer than the model takes, where that is not allowed."""


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

    A text of more than some 260,000 characters goes through the tokenizer in parts. It is cut where
    the ids of some 200 characters on both sides are the same with and without the cut; a text
    without such a place (Chinese for sentencepiece, which puts a space before each part) goes as a
    whole.

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
    special: tuple[int, int] | None = None
    while encoded:
        for found in encoded:
            kept = found
            if max_length is not None and len(found) > max_length:
                special = special_around(tokenizer) if special is None else special
                kept = _truncate(found, max_length, special, tokenizer.truncation_side)
            ids.extend(kept)
            lengths.append(len(kept))
            totals.append(len(found))
            empty.append(len(found) == len(nothing) and list(found) == nothing)
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


def _encode(tokenizer: Any, texts: list[str], first: int) -> list[Sequence[int]]:
    """Call the tokenizer; `first` is the number of the first text, for what fails."""
    try:
        short = [text for text in texts if len(text) <= _CHUNK_CHARACTERS]
        encoded = iter(_call(tokenizer, short) if short else [])
        return [
            next(encoded) if len(text) <= _CHUNK_CHARACTERS else _encode_in_parts(tokenizer, text)
            for text in texts
        ]
    except Exception as error:
        for number, text in enumerate(texts, start=first):
            try:
                _call(tokenizer, [text])
            except Exception as alone:  # noqa: PERF203 - whichever fails
                msg = f"the tokenizer failed: {type(alone).__name__}: {alone}"
                raise TextError(msg, number) from alone
        msg = f"the tokenizer failed: {type(error).__name__}: {error}"
        raise TextError(msg) from error


def _call(tokenizer: Any, texts: list[str]) -> list[list[int]]:
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
    )
    found: list[list[int]] = encoded["input_ids"]
    return found


def _encode_in_parts(tokenizer: Any, text: str) -> Sequence[int]:
    """Return the ids of a long text, tokenized part by part."""
    before, after = special_around(tokenizer)

    def own(parts: list[str]) -> list[list[int]]:
        return [ids[before : len(ids) - after] for ids in _call(tokenizer, parts)]

    def changes_nothing(at: int) -> bool:
        """Whether the ids around a place are the same when the text is cut there."""
        right = text[at : at + _AFTER]
        lefts = [text[max(0, at - before) : at] for before in _BEFORE]
        second, *others = own([right, *lefts, *(left + right for left in lefts)])
        firsts, wholes = others[: len(lefts)], others[len(lefts) :]
        return all(whole == first + second for first, whole in zip(firsts, wholes, strict=True))

    (nothing,) = _call(tokenizer, [""])
    ids = array("q", nothing[:before])
    start, waiting = 0, list[str]()
    while start < len(text):
        stop = len(text)
        if stop - start > 2 * _PART:
            places = _places_to_cut(text, start + _PART)
            found = next((at for at in places if changes_nothing(at)), None)
            if found is None:
                return _call(tokenizer, [text])[0]
            stop = found
        waiting.append(text[start:stop])
        start = stop
        if start == len(text) or len(waiting) * _PART >= _CHUNK_CHARACTERS:
            for part in own(waiting):
                ids.extend(part)
            waiting.clear()
    ids.extend(nothing[len(nothing) - after :])
    return ids


def _places_to_cut(text: str, start: int) -> Iterator[int]:
    """Give places from `start` on, those before white space first, at most `_TRIES` of each."""
    near = range(start, min(len(text), start + _PART))
    spaces = (at for at in near if text[at].isspace() and not text[at - 1].isspace())
    yield from itertools.islice(spaces, _TRIES)
    yield from near[:_TRIES]


def special_around(tokenizer: Any) -> tuple[int, int]:
    """Return how many special tokens the tokenizer puts before a text, and how many after it."""
    special = tokenizer("a", return_special_tokens_mask=True, verbose=False)["special_tokens_mask"]
    return special.index(0), special[::-1].index(0)


def _truncate(
    ids: Sequence[int], max_length: int, special: tuple[int, int], side: str
) -> Sequence[int]:
    """Cut the text's own ids, keep the special ones around them."""
    before, after = special
    room = max_length - before - after
    end = len(ids) - after
    own = ids[end - room : end] if side == "left" else ids[before : before + room]
    return [*ids[:before], *own, *ids[end:]]


def ranges(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return start, start + 1, ... start + length - 1 of each, one after another, int64."""
    if int(lengths.sum()) > _LONG * len(lengths):  # a third of the memory, where it is much
        spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        return torch.cat([torch.arange(start, stop) for start, stop in spans])
    first = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) + (starts - first).repeat_interleave(lengths)


def _offsets(lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
