"""Embeddings to raw scores: pairs of texts matched chunk by chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flashbertscore import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flashbertscore.encoder import Encoder
    from flashbertscore.tokens import Tokens

# Tokens whose embeddings a chunk adds: 400 MB at 1,024 floats a token.
CHUNK_TOKENS = 100_000


def score_pairs(
    encoder: Encoder,
    tokens: Tokens,
    pairs: torch.Tensor,
    weights: torch.Tensor,
    *,
    batch_size: int = 64,
    chunk_tokens: int = CHUNK_TOKENS,
    progress: Callable[[int], object] | None = None,
    when_encoded: Callable[[], object] | None = None,
) -> torch.Tensor:
    """Return raw P, R and F of pairs of texts (the reference's `bert_cos_score_idf`).

    Every text is encoded once. Pairs are taken in chunks of texts of similar length, and the
    embeddings of a text are freed after the last chunk that needs them: what is held does not grow
    with the number of pairs, and a similarity matrix never exists.

    Args:
        encoder: the model.
        tokens: ids of the n distinct texts.
        pairs: int64 [P, 2], text of the candidate and text of the reference.
        weights: float32 [T], weight of each token.
        batch_size: most texts of a batch of the encoder.
        chunk_tokens: most tokens that a chunk encodes; one pair may have more.
        progress: called with the number of texts of each batch that is encoded.
        when_encoded: called when everything is encoded.

    Returns:
        float32 [P, 3], or [L, P, 3] where the encoder gives all layers; on the CPU. A pair with a
        text of exactly the special tokens has 0, 0, 0.
    """
    order = _by_length(tokens.lengths, pairs)
    chunks = list(_chunks(tokens.lengths, pairs[order], chunk_tokens))
    last_use = torch.zeros(len(tokens), dtype=torch.int64)
    for number, (start, stop) in enumerate(chunks):
        last_use[pairs[order[start:stop]].flatten()] = number
    scores: list[torch.Tensor] = []
    held: dict[int, torch.Tensor] = {}  # embeddings of texts that a later chunk needs again
    for number, (start, stop) in enumerate(chunks):
        texts, local = torch.unique(pairs[order[start:stop]], return_inverse=True)
        wanted = texts.tolist()
        fresh = [text for text in wanted if text not in held]
        part = tokens.select(torch.tensor(fresh, dtype=torch.int64))
        embeddings = encoder.encode(part, batch_size=batch_size, progress=progress)
        later = [text for text in wanted if last_use[text] > number]
        known = held | dict(
            zip(fresh, torch.split(embeddings, part.lengths.tolist(), dim=-2), strict=True)
        )
        if len(fresh) < len(wanted):
            embeddings = torch.cat([known[text] for text in wanted], dim=-2)
        # Copies: a view would keep the embeddings of its whole chunk.
        kept = {text: known[text].clone() for text in later if text not in held}
        held = {text: rows for text, rows in held.items() if last_use[text] > number} | kept
        del known
        if number == len(chunks) - 1 and when_encoded is not None:
            when_encoded()
        scores.append(_match(embeddings, tokens.select(texts), local, weights[tokens.rows(texts)]))
        del embeddings  # before the next chunk's are made
    return torch.cat(scores, dim=-2)[..., order.argsort(), :]


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
    device = embeddings.device
    offsets, weights = tokens.offsets.to(device), weights.to(device)
    chosen = pairs.to(device)
    layers = embeddings if embeddings.dim() == 3 else embeddings[None]
    scores = torch.stack(
        [
            torch.stack(
                functional.bertscore_packed(
                    layer, offsets, layer, offsets, chosen, weights, weights
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
