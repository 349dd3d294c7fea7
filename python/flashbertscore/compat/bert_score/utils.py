"""The functions of bert_score.utils, on the ids, weights and op of FlashBERTScore.

Signatures, the order of arguments (references first) and results are the reference's; what differs
are the rules in the README's compatibility table: ids as published, true maxima over valid tokens.
Arguments are never modified.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flashbertscore import encoder, functional, idf, loading, matching, models, signature
from flashbertscore.compat.bert_score import _lazy
from flashbertscore.tokens import Tokens, tokenize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__version__ = signature.REFERENCE_VERSION
lang2model, model2layers = models.lang2model, models.model2layers

#: Where the reference fetches models called "scibert-..."; here the Hub has them.
SCIBERT_URL_DICT = {
    name: "https://s3-us-west-2.amazonaws.com/ai2-s2-research/scibert/pytorch_models/"
    f"{name.replace('-', '_')}.tar"
    for name in models.SCIBERT
}

_LEAKED = {
    "AutoModel": "transformers:AutoModel",
    "AutoTokenizer": "transformers:AutoTokenizer",
    "BertConfig": "transformers:BertConfig",
    "Counter": "collections:Counter",
    "GPT2Tokenizer": "transformers:GPT2Tokenizer",
    "Pool": "multiprocessing:Pool",
    "RobertaConfig": "transformers:RobertaConfig",
    "RobertaTokenizer": "transformers:RobertaTokenizer",
    "XLMConfig": "transformers:XLMConfig",
    "XLNetConfig": "transformers:XLNetConfig",
    "chain": "itertools:chain",
    "defaultdict": "collections:defaultdict",
    "log": "math:log",
    "os": "os",
    "tqdm": "tqdm.auto:tqdm",
    "trans_version": "transformers:__version__",
    "version": "packaging.version",
}

__getattr__ = _lazy.names(__name__, _LEAKED)
__all__: list[str] = []  # as in the reference: a star import takes nothing


def __dir__() -> list[str]:
    return sorted({*globals(), *_LEAKED})


class ScorerHash(str):
    """The hash of a scorer: a string, but unequal to what `get_hash` returns (see BERTScorer)."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return not isinstance(other, RequestHash) and str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other


class RequestHash(str):
    """What `get_hash` returns: the hash of the scorer that somebody asks for."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return not isinstance(other, ScorerHash) and str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other


def get_hash(
    model: str,
    num_layers: int,
    idf: bool | Mapping[int, float],
    rescale_with_baseline: bool,
    use_custom_baseline: bool,
    use_fast_tokenizer: bool,
) -> str:
    """Return the configuration as one string."""
    return RequestHash(
        signature.get_hash(
            model, num_layers, idf, rescale_with_baseline, use_custom_baseline, use_fast_tokenizer
        )
    )


def get_model(model_type: str, num_layers: int, all_layers: bool | None = None) -> Any:
    """Return a model of transformers, its layers above `num_layers` dropped unless `all_layers`.

    It is the caller's own: not the one that scorers share.
    """
    return loading.load_model(model_type, None if all_layers else num_layers)


def get_tokenizer(model_type: str, use_fast: bool = False) -> Any:  # noqa: ARG001
    """Return the tokenizer of a model: always the fast one, the ids being those of the slow."""
    return loading.load_tokenizer(model_type)


def cache_scibert(
    model_type: str,
    cache_folder: str = "~/.cache/torch/transformers",  # noqa: ARG001 - the Hub keeps its own
) -> str:
    """Return the name on the Hub of a model called "scibert-..."; other names as they are."""
    return models.hub_name(model_type)


def sent_encode(tokenizer: Any, sent: str) -> list[int]:
    """Return the ids of a text, cut to the tokenizer's `model_max_length`."""
    return _tokenize([sent], tokenizer).tolist()[0]


def process(a: Any, tokenizer: Any = None) -> set[Any]:
    """Return the set of ids of a text; without a tokenizer, of the ids given."""
    return set(a if tokenizer is None else sent_encode(tokenizer, a))


def padding(
    arr: Sequence[Sequence[float]], pad_token: float, dtype: torch.dtype = torch.long
) -> tuple[Tensor, Tensor, Tensor]:
    """Pad n lists to the longest, m: values [n, m] of `dtype`, lengths int64 [n], mask [n, m]."""
    rows = [torch.as_tensor(row, dtype=dtype) for row in arr]
    padded = pad_sequence(rows, batch_first=True, padding_value=pad_token)
    lens = torch.tensor([len(row) for row in arr], dtype=torch.long)
    mask = (torch.arange(padded.shape[1]) < lens[:, None]).long()
    return padded, lens, mask


def get_idf_dict(
    arr: Sequence[str],
    tokenizer: Any,
    nthreads: int = 4,  # noqa: ARG001 - counted in this process, from ids that come in one batch
) -> idf.Idf:
    """Return the IDF of each id over the documents `arr`, as a dictionary with a default."""
    tokens = _tokenize(arr, tokenizer)
    return idf.count(tokens, torch.arange(len(tokens)))


def collate_idf(
    arr: Sequence[str],
    tokenizer: Any,
    idf_dict: Mapping[int, float],
    device: str | torch.device | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return padded ids [n, m], weights float32 [n, m], lengths [n] and mask [n, m] of n texts.

    All but the weights on `device` (None: the GPU if there is one).
    """
    tokens = _tokenize(arr, tokenizer)
    weights = torch.split(idf.weigh(tokens, idf_dict), tokens.lengths.tolist())
    pad = tokenizer.pad_token_id
    padded, lens, mask = padding(tokens.tolist(), 0 if pad is None else pad)
    padded_idf = pad_sequence(list(weights), batch_first=True)
    device = _device(device)
    return padded.to(device), padded_idf, lens.to(device), mask.to(device)


def bert_encode(
    model: Any,
    x: Tensor,
    attention_mask: Tensor,
    all_layers: bool = False,
) -> Tensor:
    """Return the embeddings [n, m, D] of padded ids [n, m], or [n, m, L, D] with `all_layers`."""
    model.eval()
    with torch.no_grad():
        out = model(x, attention_mask=attention_mask, output_hidden_states=all_layers)
    if all_layers:
        return torch.stack(out[-1], dim=2)
    embedding: Tensor = out[0]
    return embedding


def get_bert_embedding(
    all_sens: Sequence[str],
    model: Any,
    tokenizer: Any,
    idf_dict: Mapping[int, float],
    batch_size: int = -1,
    device: str | torch.device | None = None,
    all_layers: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return padded embeddings (see `bert_encode`), mask [n, m] and weights [n, m] of n texts."""
    ids, weights, _, mask = collate_idf(all_sens, tokenizer, idf_dict, device)
    size = len(all_sens) if batch_size == -1 else batch_size
    parts = [
        bert_encode(model, x, mask_of_x, all_layers)
        for x, mask_of_x in zip(torch.split(ids, size), torch.split(mask, size), strict=True)
    ]
    return torch.cat(parts), mask, weights


def greedy_cos_idf(
    ref_embedding: Tensor,
    ref_masks: Tensor,
    ref_idf: Tensor,
    hyp_embedding: Tensor,
    hyp_masks: Tensor,
    hyp_idf: Tensor,
    all_layers: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return P, R and F of B pairs of padded embeddings: [B] each, or [L, B] with `all_layers`.

    Args:
        ref_embedding: [B, M, D], or [B, M, L, D] with `all_layers`; any scale.
        ref_masks: [B, M], 1 where there is a token.
        ref_idf: [B, M], weights.
        hyp_embedding: of the candidates, [B, N, D] or [B, N, L, D].
        hyp_masks: [B, N].
        hyp_idf: [B, N].
        all_layers: whether the embeddings have an axis of layers.

    As in the reference, a side of exactly two tokens counts as empty: P = R = 0, and F is
    what it was before.
    """
    layers = hyp_embedding.shape[2] if all_layers else 1
    device = hyp_embedding.device

    def flat(x: Tensor) -> Tensor:
        return x.movedim(2, 0).flatten(0, 1) if all_layers else x

    def repeated(x: Tensor) -> Tensor:
        return x.to(device).repeat(layers, 1)

    dtype = torch.float64 if hyp_embedding.dtype == torch.float64 else torch.float32
    scores = functional.bertscore(
        flat(hyp_embedding),
        flat(ref_embedding),
        candidate_mask=repeated(hyp_masks),
        reference_mask=repeated(ref_masks),
        candidate_weights=repeated(hyp_idf).to(dtype),
        reference_weights=repeated(ref_idf).to(dtype),
    )
    empty = torch.zeros(len(hyp_masks), dtype=torch.bool, device=device)
    for masks, side in ((hyp_masks, "candidate"), (ref_masks, "reference")):
        two = masks.to(device).sum(dim=1) == _SPECIAL_TOKENS
        if two.any():
            _warn_empty(side)
        empty |= two
    precision, recall, f1 = (
        x.view(layers, -1) if all_layers else x
        for x in (scores.precision, scores.recall, scores.f1)
    )
    return (
        precision.masked_fill(empty, 0.0),
        recall.masked_fill(empty, 0.0),
        f1.nan_to_num(nan=0.0),
    )


def bert_cos_score_idf(
    model: Any,
    refs: Sequence[str],
    hyps: Sequence[str],
    tokenizer: Any,
    idf_dict: Mapping[int, float],
    verbose: bool = False,
    batch_size: int = 64,
    device: str | torch.device | None = None,  # noqa: ARG001 - the model is where it is
    all_layers: bool = False,
) -> Tensor:
    """Return raw P, R, F of n pairs of texts, references first: float32 [n, 3] or [L, n, 3]."""
    both = encoder.Encoder(
        name=str(tokenizer.name_or_path),
        tokenizer=tokenizer,
        model=model.eval(),
        prefix_space=loading.wants_prefix_space(tokenizer),
        all_layers=all_layers,
        revision=None,
    )
    number = {text: i for i, text in enumerate(dict.fromkeys([*refs, *hyps]))}
    tokens = both.tokenize(list(number))
    pairs = torch.tensor(
        [[number[hyp], number[ref]] for hyp, ref in zip(hyps, refs, strict=True)],
        dtype=torch.int64,
    )
    for column, side in enumerate(("candidate", "reference")):
        if tokens.empty[pairs[:, column]].any():
            _warn_empty(side)
    if verbose:
        print("computing bert embedding.")  # noqa: T201 - as the reference's verbose does
    return matching.score_pairs(
        both,
        tokens,
        pairs,
        idf.weigh(tokens, idf_dict),
        batch_size=batch_size,
        when_encoded=partial(print, "computing greedy matching.") if verbose else None,
    )


_SPECIAL_TOKENS = 2  # the reference's test for a text without tokens of its own
_NO_LIMIT = 10**9  # tokenizers without a limit declare 10**30


def _tokenize(texts: Sequence[str], tokenizer: Any) -> Tokens:
    limit = tokenizer.model_max_length
    return tokenize(
        texts,
        tokenizer,
        prefix_space=loading.wants_prefix_space(tokenizer),
        max_length=int(limit) if limit < _NO_LIMIT else None,
    )


def _device(device: str | torch.device | None) -> str | torch.device:
    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def _warn_empty(side: str) -> None:
    """Say on stderr what the reference says there, in its spelling."""
    spelled = "BERTscores" if side == "candidate" else "BERTScores"
    print(  # noqa: T201
        f"Warning: Empty {side} sentence detected; setting raw {spelled} to 0.", file=sys.stderr
    )
