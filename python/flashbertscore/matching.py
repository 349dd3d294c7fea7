"""Embeddings to raw scores: pairs of texts matched chunk by chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flashbertscore import functional, memory
from flashbertscore.embeddings import EmbeddingCache, fill
from flashbertscore.storage import Storage
from flashbertscore.tokens import TextError
from flashbertscore.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flashbertscore.embeddings import Place, Shelf
    from flashbertscore.encoder import Encoder
    from flashbertscore.tokens import Tokens

# What the embeddings that a chunk adds may take: tokens, and bytes of wide models.
CHUNK_TOKENS = 100_000
_CHUNK_BYTES = 256 << 20
_LEAST_CHUNK = 2048


def score_pairs(
    encoder: Encoder,
    tokens: Tokens,
    pairs: torch.Tensor,
    weights: torch.Tensor,
    *,
    batch_size: int = 64,
    chunk_tokens: int | None = None,
    shelf: Shelf | None = None,
    storage: Storage | None = None,
    progress: Callable[[int, int], object] | None = None,
    when_encoded: Callable[[], object] | None = None,
) -> torch.Tensor:
    """Return raw P, R and F of pairs of texts (the reference's `bert_cos_score_idf`).

    Pairs are taken in chunks of texts of similar length. The texts of a chunk are encoded once, and
    those that come back in a later one are kept on `shelf` as far as it reaches: what is held does
    not grow with the number of pairs, and a similarity matrix never exists.

    Args:
        encoder: the model.
        tokens: ids of the n distinct texts.
        pairs: int64 [P, 2], text of the candidate and text of the reference.
        weights: float32 [T], weight of each token.
        batch_size: most texts of a batch of the encoder.
        chunk_tokens: most tokens that a chunk encodes; one pair may have more. None: what fits into
            256 MiB, at most 100,000.
        shelf: embeddings of earlier calls with this encoder; those of all texts are added. None
            keeps only what comes back in this call, and only until it ends.
        storage: where a chunk's embeddings lie; None: in memory, as the model gives them.
        progress: called for each batch that is encoded, see `Encoder.encode`.
        when_encoded: called when everything is encoded.

    Returns:
        float32 [P, 3], or [L, P, 3] where the encoder gives all layers; on the CPU. A pair with a
        text of exactly the special tokens has 0, 0, 0.

    Raises:
        TextError: the model fails on a text, named by its number.
        StorageError: the disk has no room for the embeddings.
    """
    storage = Storage() if storage is None else storage
    kept = EmbeddingCache().of(None) if shelf is None else shelf
    keys = kept.keys(tokens)
    pairs = _first_of_equals(keys)[pairs]
    order = _by_length(tokens.lengths, pairs)
    limit = _chunk_tokens(encoder) if chunk_tokens is None else chunk_tokens
    chunks = list(_chunks(tokens.lengths, pairs[order], limit))
    last_use = torch.zeros(len(tokens), dtype=torch.int64)
    for number, (start, stop) in enumerate(chunks):
        last_use[pairs[order[start:stop]].flatten()] = number
    is_reference = torch.zeros(len(tokens), dtype=torch.bool)
    is_reference[pairs[:, 1]] = True
    scores: list[torch.Tensor] = []
    for number, (start, stop) in enumerate(chunks):
        texts, local = torch.unique(pairs[order[start:stop]], return_inverse=True)
        part = tokens.select(texts)
        part_keys = [keys[text] for text in texts.tolist()]
        places = kept.find(part_keys)
        new = torch.tensor([place is None for place in places], dtype=torch.bool)
        try:
            embeddings = _encode(encoder, part, places, storage, batch_size, progress)
        except TextError as error:
            text = None if error.index is None else int(texts[error.index])
            raise TextError(str(error), text) from error.__cause__
        wanted = new if shelf is not None else new & (last_use[texts] > number)
        if embeddings.nbytes > storage.bound:
            wanted = torch.zeros_like(wanted)  # a copy in memory is what the bound is against
        for candidates in (True, False):
            chosen = (wanted & (is_reference[texts] != candidates)).nonzero().squeeze(1)
            kept.put(part_keys, part, chosen, embeddings, candidates=candidates)
        if number == len(chunks) - 1 and when_encoded is not None:
            when_encoded()
        scores.append(_match(embeddings, part, local, weights[tokens.rows(texts)]))
        del embeddings, places  # before the next chunk's are made
    return torch.cat(scores, dim=-2)[..., order.argsort(), :]


def _encode(
    encoder: Encoder,
    tokens: Tokens,
    places: Sequence[Place | None],
    storage: Storage,
    batch_size: int,
    progress: Callable[[int, int], object] | None,
) -> torch.Tensor:
    """Return the embeddings of all tokens: of texts that are kept from `places`, else encoded."""
    new = torch.tensor([n for n, place in enumerate(places) if place is None], dtype=torch.int64)
    kept = next((place[0] for place in places if place is not None), None)
    if kept is None or int(tokens.lengths[new].sum()):
        packed = memory.encode(
            encoder,
            tokens,
            new,
            batch_size=batch_size,
            progress=progress,
            allocate=storage.allocate,
        )
    else:
        shape = [*kept.shape[:-2], len(tokens.ids), kept.shape[-1]]
        packed = storage.allocate(shape, kept)
    fill(packed, tokens, places)
    return packed


def best_of_references(scores: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Return the maximum over the references of each candidate, of P, R and F on their own.

    As in the reference, the three may come from different references, and NaN wins.

    Args:
        scores: [P, 3] or [L, P, 3], the pairs of a candidate side by side.
        sizes: int64 [N], references of each candidate, at least 1 each; they sum to P.

    Returns:
        [N, 3] or [L, N, 3].
    """
    group = torch.repeat_interleave(sizes)[:, None].expand_as(scores)
    best = scores.new_empty(*scores.shape[:-2], len(sizes), 3)
    return best.scatter_reduce_(-2, group, scores, "amax", include_self=False)


def rescale(scores: torch.Tensor, baseline: torch.Tensor) -> torch.Tensor:
    """Return (x - b) / (1 - b), with the baseline of P, R and F each ([3] or [L, 1, 3])."""
    return (scores - baseline) / (1 - baseline)


def similarity(encoder: Encoder, tokens: Tokens) -> torch.Tensor:
    """Return the cosine of every token of text 0 with every token of text 1, float32 [N, M]."""
    embeddings = encoder.encode(tokens).float()
    unit = embeddings / embeddings.norm(dim=-1, keepdim=True)
    candidate, reference = unit.split(tokens.lengths.tolist())
    cosines: torch.Tensor = candidate @ reference.T
    return cosines.cpu()


def _match(
    embeddings: torch.Tensor, tokens: Tokens, pairs: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Score `pairs` [P, 2] of the texts in `tokens`; [P, 3] or [L, P, 3]."""
    # The op makes its schedule from offsets and pairs on the host, and moves them itself.
    weights = to_device(weights, embeddings.device)
    layers = embeddings if embeddings.dim() == 3 else embeddings[None]
    scores = torch.stack(
        [
            torch.stack(
                functional.bertscore_packed(
                    layer, tokens.offsets, layer, tokens.offsets, pairs, weights, weights
                ),
                dim=-1,
            )
            for layer in layers
        ]
    ).to("cpu", torch.float32)
    f1 = scores[..., 2]
    f1.masked_fill_(f1.isnan(), 0.0)  # as the reference: NaN stays in P and R only
    scores[:, tokens.empty[pairs].any(dim=1)] = 0.0
    return scores if embeddings.dim() == 3 else scores[0]


def _chunk_tokens(encoder: Encoder) -> int:
    """Return how many tokens' embeddings fit into a chunk."""
    config = getattr(encoder.model, "config", None)
    states = (getattr(config, "num_hidden_layers", 24) + 1) if encoder.all_layers else 1
    size = states * getattr(config, "hidden_size", 1024) * 4
    return max(_LEAST_CHUNK, min(CHUNK_TOKENS, _CHUNK_BYTES // size))


def _first_of_equals(keys: list[bytes]) -> torch.Tensor:
    """Return for each text the first one with the same ids, int64 [n]."""
    first: dict[bytes, int] = {}
    return torch.tensor([first.setdefault(key, n) for n, key in enumerate(keys)], dtype=torch.int64)


def _by_length(lengths: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """Return an order of the pairs: longest candidate first, those of a candidate together."""
    order = pairs[:, 0].argsort(stable=True)
    return order[lengths[pairs[order, 0]].argsort(descending=True, stable=True)]


def _chunks(
    lengths: torch.Tensor, pairs: torch.Tensor, chunk_tokens: int
) -> Iterator[tuple[int, int]]:
    """Cut the pairs where the texts that are new since the last cut pass `chunk_tokens`."""
    sizes = lengths.tolist()
    seen: set[int] = set()
    start = new = 0
    for stop, pair in enumerate(pairs.tolist()):
        added = sum(sizes[text] for text in set(pair) - seen)
        if stop > start and new + added > chunk_tokens:
            yield start, stop
            start, new = stop, 0
        seen.update(pair)
        new += added
    if start < len(pairs):
        yield start, len(pairs)
