"""Fear: the cache of embeddings outgrows its bound, forgets what it should keep, or mixes up."""

from __future__ import annotations

import pytest
import torch

from flashbertscore.embeddings import EmbeddingCache, fill
from flashbertscore.tokens import Tokens

DIM = 8


def texts(*ids: list[int]) -> tuple[Tokens, torch.Tensor]:
    """Ids of texts, and embeddings from which each id can be read."""
    lengths = torch.tensor([len(one) for one in ids], dtype=torch.int64)
    flat = torch.tensor([token for one in ids for token in one], dtype=torch.int64)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    tokens = Tokens(flat, offsets, lengths, torch.zeros(len(ids), dtype=torch.bool))
    return tokens, flat[:, None] + torch.arange(DIM) / 10


def test_what_is_put_is_found() -> None:
    shelf = EmbeddingCache().of("model")
    tokens, rows = texts([1, 2, 3], [4], [5, 6])
    keys = shelf.keys(tokens)
    assert shelf.find(keys) == [None, None, None]
    shelf.put(keys, tokens, torch.tensor([2, 0]), rows, candidates=False)
    wanted, expected = texts([7, 7], [5, 6], [4], [1, 2, 3], [8])
    places = shelf.find(shelf.keys(wanted))
    assert [place is None for place in places] == [True, False, True, False, True]
    packed = expected.clone()
    packed[wanted.rows(torch.tensor([1, 3]))] = 0
    fill(packed, wanted, places)
    assert torch.equal(packed, expected)
    layers = torch.stack([rows, -rows])
    deep = EmbeddingCache().of("model")
    deep.put(keys, tokens, torch.tensor([2, 0]), layers, candidates=True)
    packed = torch.stack([expected, -expected])
    packed[:, wanted.rows(torch.tensor([1, 3]))] = 0
    fill(packed, wanted, deep.find(shelf.keys(wanted)))
    assert torch.equal(packed, torch.stack([expected, -expected]))


def test_what_is_kept_is_a_copy() -> None:
    shelf = EmbeddingCache().of(None)
    tokens, rows = texts([1, 2])
    keys = shelf.keys(tokens)
    shelf.put(keys, tokens, torch.tensor([0]), rows, candidates=False)
    expected = rows.clone()
    rows.zero_()
    fill(packed := torch.zeros_like(expected), tokens, shelf.find(keys))
    assert torch.equal(packed, expected)


def test_texts_are_told_apart_by_their_ids_alone() -> None:
    shelf = EmbeddingCache().of(None)
    tokens, rows = texts([1, 2], [258], [1], [])
    shelf.put(shelf.keys(tokens), tokens, torch.arange(4), rows, candidates=False)
    assert len(set(shelf.keys(tokens))) == 4
    other, _ = texts([2, 1], [1, 2, 1], [3])
    assert shelf.find(shelf.keys(other)) == [None] * 3


@pytest.mark.parametrize("capacity", [0, 1, 5000, 100_000])
def test_the_bound_holds(capacity: int) -> None:
    cache = EmbeddingCache(capacity)
    shelf = cache.of(None)
    generator = torch.Generator().manual_seed(0)
    for n in range(300):
        ids = torch.randint(0, 50, (4, 6), generator=generator).tolist()
        tokens, rows = texts(*ids)
        keys = shelf.keys(tokens)
        new = torch.tensor([i for i, place in enumerate(shelf.find(keys)) if place is None])
        shelf.put(keys, tokens, new, rows, candidates=n % 2 == 0)
        assert 0 <= cache.size <= capacity
        blocks = [*cache._candidates.values(), *cache._references.values()]
        assert sum(block.size for block in blocks) == cache.size
        assert sum(block.rows.nbytes for block in blocks) <= cache.size
        assert {key for block in blocks for key in block.keys} == set(cache._where)
    assert (len(cache) > 0) == (capacity > 1)


def one(cache: EmbeddingCache, token: int, *, candidates: bool = False) -> bool:
    """Whether the text of one id is kept; put it if it is not."""
    shelf = cache.of(None)
    tokens, rows = texts([token])
    keys = shelf.keys(tokens)
    if shelf.find(keys)[0] is not None:
        return True
    shelf.put(keys, tokens, torch.tensor([0]), rows, candidates=candidates)
    return False


def room_for(count: int) -> EmbeddingCache:
    probe = EmbeddingCache()
    one(probe, 0)
    return EmbeddingCache(count * probe.size)


def test_the_least_recently_used_leaves_first() -> None:
    cache = room_for(3)
    assert [one(cache, token) for token in (1, 2, 3, 1, 4)] == [False, False, False, True, False]
    assert [one(cache, token) for token in (1, 3, 4)] == [True] * 3
    assert not one(cache, 2)


def test_candidates_leave_before_references() -> None:
    cache = room_for(3)
    one(cache, 1)
    one(cache, 2, candidates=True)
    one(cache, 3, candidates=True)
    one(cache, 4)
    one(cache, 5)
    assert [one(cache, token) for token in (1, 4, 5)] == [True] * 3
    assert len(cache) == 3


def test_another_state_finds_nothing_and_is_not_found() -> None:
    cache = EmbeddingCache()
    tokens, rows = texts([1])
    old = cache.of("old")
    old.put(old.keys(tokens), tokens, torch.tensor([0]), rows, candidates=False)
    new = cache.of("new")
    assert len(cache) == 0
    # A call that began before the model was replaced goes on: what it puts stays its own.
    old.put(old.keys(tokens), tokens, torch.tensor([0]), rows, candidates=False)
    assert new.find(new.keys(tokens)) == [None]
    assert old.find(old.keys(tokens)) != [None]
    again = cache.of("new")
    assert again.keys(tokens) == new.keys(tokens)


def test_a_negative_bound() -> None:
    with pytest.raises(ValueError, match="cache_bytes: expected at least 0, got -1"):
        EmbeddingCache(-1)
