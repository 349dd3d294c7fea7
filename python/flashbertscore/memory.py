"""Texts through the encoder within the memory that a device has; what fails is named."""

from __future__ import annotations

import logging
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from flashbertscore import precision
from flashbertscore.storage import StorageError, free_memory
from flashbertscore.tokens import TextError
from flashbertscore.windows import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashbertscore.encoder import Encoder
    from flashbertscore.tokens import Tokens
    from flashbertscore.windows import Pieces

# Padded tokens of a batch on CUDA. Below, kernels wait for their launches; above, nothing is won.
LEAST_TOKENS = 512
MOST_TOKENS = 65_536

# Part of the free memory that a batch may take: the estimate of its need is rough, and embeddings,
# workspace and other processes need some.
_SHARE = 0.4

# Floats that a layer holds at its peak, in hidden sizes: input, query, key, value, context, output
# and two of the four times wider intermediate ones.
_HIDDEN_SIZES = 16

_log = logging.getLogger("flashbertscore")
# Of models that ran out of memory: what fitted in the end.
_found: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def token_budget(free: int, bytes_per_token: int) -> int:
    """Return how many padded tokens a batch may have: those that fit, within sensible limits.

    Args:
        free: bytes that are free on the device.
        bytes_per_token: what a token needs at the peak of the forward pass.
    """
    return min(MOST_TOKENS, max(LEAST_TOKENS, int(_SHARE * free) // bytes_per_token))


def bytes_per_token(config: Any, itemsize: int, longest: int, *, all_layers: bool) -> int:
    """Estimate what a padded token needs at the peak of the forward pass.

    Args:
        config: of transformers.
        itemsize: bytes of an element.
        longest: tokens of the longest text.
        all_layers: whether every hidden state stays.
    """
    hidden = getattr(config, "hidden_size", None) or 1024
    states = _HIDDEN_SIZES + (getattr(config, "num_hidden_layers", None) or 24) * all_layers
    floats = states * hidden
    kind = getattr(config, "_attn_implementation", None)
    if kind == "sdpa":
        floats += longest  # a row of the mask
    elif kind != "flash_attention_2":
        # Scores and probabilities of every head: rows of `longest`.
        floats += 2 * (getattr(config, "num_attention_heads", None) or 16) * longest
    return int(itemsize * floats)


def encode(
    encoder: Encoder,
    tokens: Tokens,
    texts: torch.Tensor | None = None,
    *,
    batch_size: int,
    progress: Callable[[int, int], object] | None = None,
    allocate: Callable[[Sequence[int], torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Return `encoder.encode(tokens, texts)`, on CUDA in batches that fit.

    There a batch has as many tokens as fit the free memory, and at most those of `batch_size` texts
    of the greatest length; running out of memory halves that, for this model from then on. On a CPU
    2,048 tokens are a batch, so that a longer text is one of its own and what attention takes for
    the mask, or the scores of a model that holds them, is that of one text.

    Raises:
        TextError: the model fails on a text; it is named by its number in `tokens`.
        ValueError: `batch_size` is below 1.
    """
    if batch_size < 1:
        msg = f"batch_size: expected at least 1, got {batch_size}"
        raise ValueError(msg)
    chosen = torch.arange(len(tokens)) if texts is None else texts
    batches: list[Pieces] = []  # that the model failed on
    run = partial(encoder.encode, tokens, chosen, allocate=allocate, failed=batches.append)
    try:
        if encoder.device.type == "cuda":
            return _encode_on_cuda(encoder, tokens, chosen, batch_size, progress, run)
        return run(batch_size=batch_size, progress=progress)
    except StorageError:
        raise
    except Exception as error:
        raise _blame(encoder, tokens, batches, error) from error


def _encode_on_cuda(
    encoder: Encoder,
    tokens: Tokens,
    texts: torch.Tensor,
    batch_size: int,
    progress: Callable[[int, int], object] | None,
    run: Callable[..., torch.Tensor],
) -> torch.Tensor:
    # Of what goes through the model at once: a text or a window.
    longest = int(cut(tokens, encoder.windows, texts).lengths.max()) if len(texts) else 1
    budget = _found.get(encoder.model) or _budget(encoder, longest)
    budget = min(budget, batch_size * (encoder.max_length or longest))
    while True:
        all_told = all_taken = 0

        def tell(through: int, taken: int) -> None:
            nonlocal all_told, all_taken
            all_told += through
            all_taken += taken
            if progress is not None:
                progress(through, taken)

        try:
            with precision.matrix_products(tf32=encoder.tf32, device=encoder.device):
                return run(batch_size=budget, token_budget=budget, progress=tell)
        except torch.OutOfMemoryError:
            if budget <= longest:  # one text of the longest: there is nothing to halve
                raise
            if progress is not None:
                progress(-all_told, -all_taken)
        # Out of the handler: the exception holds the frames, and with them the batch.
        torch.cuda.empty_cache()
        budget = max(longest, min(budget, int(tokens.lengths[texts].sum())) // 2)
        _found[encoder.model] = budget
        _log.info("out of memory on %s: batches of %d tokens from now on", encoder.device, budget)


def _budget(encoder: Encoder, longest: int) -> int:
    itemsize = next(encoder.model.parameters()).element_size()
    config = getattr(encoder.model, "config", None)
    need = bytes_per_token(config, itemsize, longest, all_layers=encoder.all_layers)
    return token_budget(free_memory(encoder.device), need)


def _blame(encoder: Encoder, tokens: Tokens, batches: list[Pieces], error: Exception) -> TextError:
    """Find the first text of the batches that failed of which a piece fails alone."""
    if not isinstance(error, torch.OutOfMemoryError) and _is_alive(encoder.device):
        pieces = [
            (text, batch, number)
            for batch in batches
            for number, text in enumerate(batch.texts.tolist())
        ]
        for text, batch, number in sorted(pieces, key=itemgetter(0)):
            try:
                encoder.forward(tokens, batch.select(torch.tensor([number])))
            except Exception as alone:  # noqa: BLE001, PERF203 - whatever a model raises
                return TextError(f"the model failed: {type(alone).__name__}: {alone}", text)
    return TextError(f"the model failed: {type(error).__name__}: {error}")


def _is_alive(device: torch.device) -> bool:
    """Whether the device still computes: after a failed assertion CUDA refuses everything."""
    try:
        return bool(torch.zeros(1, device=device).add(1).item() == 1)
    except RuntimeError:
        return False
