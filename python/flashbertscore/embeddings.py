"""Embeddings kept for texts that come back: least recently used first out, bounded in bytes."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from flashbertscore.tokens import ranges
from flashbertscore.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashbertscore.tokens import Tokens

#: Bytes kept where the model's weights take less; else as many as they take. The references of
#: 3,000 sentences at 384 floats a token are 150 MB.
DEFAULT_BYTES = 256 << 20

# Blocks that a full cache is made of: what is let go at once is this part of it.
_BLOCKS = 16

# What an entry of the index and a block cost beside keys and embeddings, in bytes.
_ENTRY, _BLOCK = 300, 1000

Place = tuple[torch.Tensor, int]
"""Where a text is kept: the rows [..., T, D] of its block, and the first that is its own."""


@dataclass
class _Block:
    rows: torch.Tensor
    keys: list[bytes]
    size: int


class EmbeddingCache:
    """The embeddings of texts by their ids.

    A text is known by its token ids, not by its string: two strings with the same ids have the same
    embeddings, and one string has others under another tokenizer. Texts lie in blocks of those that
    were encoded together, and a block leaves as a whole, the one that was not used for the longest
    time first. Blocks of texts that were candidates only leave before any other: references are
    what comes back, with the next system. Safe to use from several threads.
    """

    def __init__(self, capacity: int = DEFAULT_BYTES) -> None:
        """Keep at most `capacity` bytes, index included; 0 keeps nothing.

        Raises:
            ValueError: `capacity` is negative.
        """
        if capacity < 0:
            msg = f"cache_bytes: expected at least 0, got {capacity}"
            raise ValueError(msg)
        self.capacity = capacity
        self._lock = threading.RLock()
        self._number = self._generation = 0
        self.clear()

    @property
    def size(self) -> int:
        """Bytes that are kept now."""
        return self._size

    def __len__(self) -> int:
        """Return how many texts are kept."""
        return len(self._where)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._state: object = None
            self._where: dict[bytes, tuple[int, int]] = {}  # key -> block, first row
            self._candidates: OrderedDict[int, _Block] = OrderedDict()
            self._references: OrderedDict[int, _Block] = OrderedDict()
            self._size = 0

    def of(self, state: object) -> Shelf:
        """Return what is kept of one state of a model; that of any other is forgotten.

        Args:
            state: all that embeddings depend on beside the ids, compared by ==.
        """
        with self._lock:
            if state != self._state:
                self.clear()
                self._state = state
                self._generation += 1
            return Shelf(self, self._generation)

    def find(self, keys: Sequence[bytes]) -> list[Place | None]:
        """Return for each key where its text is kept, None if it is not; counts as a use."""
        with self._lock:
            found = [self._where.get(key) for key in keys]
            blocks: dict[int, _Block] = {}
            for number in {place[0] for place in found if place is not None}:
                part = self._candidates if number in self._candidates else self._references
                part.move_to_end(number)
                blocks[number] = part[number]
        return [None if place is None else (blocks[place[0]].rows, place[1]) for place in found]

    def put(
        self,
        keys: Sequence[bytes],
        lengths: Sequence[int],
        embeddings: torch.Tensor,
        rows: torch.Tensor,
        *,
        candidates: bool,
    ) -> None:
        """Keep a copy of the embeddings of texts.

        Args:
            keys: of the texts.
            lengths: tokens of each text; they sum to R.
            embeddings: [..., T, D], of these texts and others.
            rows: int64 [R], which rows of `embeddings` are those of the texts, one after another.
            candidates: whether none of them is a reference.
        """
        row = embeddings[..., :1, :].nbytes
        start = first = 0
        while start < len(keys) and row > 0:
            stop, end, size = start, first, _BLOCK
            while stop < len(keys):
                more = lengths[stop] * row + len(keys[stop]) + _ENTRY
                if stop > start and size + more > self.capacity // _BLOCKS:
                    break
                stop, end, size = stop + 1, end + lengths[stop], size + more
            if size <= self.capacity:
                # A copy: a view would keep the embeddings of the whole chunk.
                own = embeddings.index_select(-2, to_device(rows[first:end], embeddings.device))
                block = _Block(own, list(keys[start:stop]), size)
                self._add(block, lengths[start:stop], candidates=candidates)
            start, first = stop, end

    def _add(self, block: _Block, lengths: Sequence[int], *, candidates: bool) -> None:
        with self._lock:
            while self._size + block.size > self.capacity:
                oldest = self._candidates or self._references
                number, old = oldest.popitem(last=False)
                self._size -= old.size
                for key in old.keys:
                    # Two threads may have put the same text.
                    if self._where.get(key, (0, 0))[0] == number:
                        del self._where[key]
            self._number += 1
            part = self._candidates if candidates else self._references
            part[self._number] = block
            self._size += block.size
            first = 0
            for key, length in zip(block.keys, lengths, strict=True):
                self._where[key] = (self._number, first)
                first += length

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the capacity alone."""
        return {"capacity": self.capacity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start empty."""
        self.__init__(**state)  # type: ignore[misc]


class Shelf:
    """The part of a cache that belongs to one state of a model."""

    def __init__(self, cache: EmbeddingCache, generation: int) -> None:
        """Belong to `cache`; what another generation puts there is not found."""
        self._cache = cache
        self._tag = generation.to_bytes(8, "little")

    def keys(self, tokens: Tokens) -> list[bytes]:
        """Return what each text is known by: the bytes of its ids."""
        ids = tokens.ids.to(torch.int32).numpy().tobytes()
        offsets = (4 * tokens.offsets).tolist()
        return [self._tag + ids[a:b] for a, b in itertools.pairwise(offsets)]

    def find(self, keys: Sequence[bytes]) -> list[Place | None]:
        """See `EmbeddingCache.find`."""
        return self._cache.find(keys)

    def put(
        self,
        keys: Sequence[bytes],
        tokens: Tokens,
        texts: torch.Tensor,
        embeddings: torch.Tensor,
        *,
        candidates: bool,
    ) -> None:
        """Keep the embeddings of some texts.

        Args:
            keys: of all texts.
            tokens: all texts, packed as `embeddings` [..., T, D] are.
            texts: int64 [k], those to keep.
            embeddings: of all texts.
            candidates: whether none of those to keep is a reference.
        """
        if len(texts):
            chosen = [keys[text] for text in texts.tolist()]
            lengths = tokens.lengths[texts].tolist()
            rows = tokens.rows(texts)
            self._cache.put(chosen, lengths, embeddings, rows, candidates=candidates)


def fill(packed: torch.Tensor, tokens: Tokens, places: Sequence[Place | None]) -> None:
    """Write the embeddings of texts that are kept to where they belong.

    Args:
        packed: [..., T, D], packed as `tokens` are; rows of texts that are not kept stay.
        tokens: the texts.
        places: where each is kept, None for those that are not.
    """
    parts: dict[int, tuple[torch.Tensor, list[int], list[int]]] = {}
    for text, place in enumerate(places):
        if place is not None:
            rows, first = place
            _, texts, starts = parts.setdefault(id(rows), (rows, [], []))
            texts.append(text)
            starts.append(first)
    lengths = tokens.lengths
    for rows, texts, starts in parts.values():
        chosen = torch.tensor(texts)
        source = ranges(torch.tensor(starts), lengths[chosen])
        into = tokens.rows(chosen)
        packed.index_copy_(
            -2,
            to_device(into, packed.device),
            rows.index_select(-2, to_device(source, rows.device)).to(packed.device),
        )
