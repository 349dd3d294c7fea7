"""Token ids to embeddings, with models that are loaded once a process."""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from flashbertscore import architectures, attention, layers, prepack
from flashbertscore.loading import commit, load_model, load_tokenizer, wants_prefix_space
from flashbertscore.tokens import LongTextError, Tokens, special_around, tokenize
from flashbertscore.transfer import to_device
from flashbertscore.windows import POLICIES, Pieces, Windows, cut, make_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

__all__ = [
    "CACHE_SIZE",
    "SWITCH",
    "TOKEN_BUDGET",
    "Encoder",
    "batches",
    "clear_cache",
    "evict",
    "load",
    "load_model",
    "load_tokenizer",
    "wants_prefix_space",
]

# Padded tokens of a batch: enough to keep the matrix units busy, little enough that a batch's
# activations stay in the caches of a CPU.
TOKEN_BUDGET = 2048

# Models kept loaded. More would only serve a caller who walks through many models, and would hold
# on to the memory of each.
CACHE_SIZE = 4

# Environment variable that says how a model runs on a CPU: "fast", its linear layers on weights
# packed once (`flashbertscore.prepack`) and its attention by our kernel where it is of a kind that
# `flashbertscore.attention` knows, or "plain", as transformers made it.
SWITCH = "FLASHBERTSCORE_ENCODER"

# Tokenizers without a limit declare int(1e30).
_NO_LIMIT = 1_000_000_000


@dataclass(frozen=True)
class Encoder:
    """A model cut at a layer, and its tokenizer.

    Attributes:
        name: what it was loaded by.
        tokenizer: of transformers, the fast one wherever the family has one.
        model: of transformers, in eval mode.
        prefix_space: whether the ids of the family have a space before the first word.
        all_layers: whether `encode` returns every hidden state.
        revision: commit of the Hub that the files are from; None for a folder.
        tf32: whether float32 products on CUDA may be rounded to TF32.
        compiled: whether the model went through torch.compile.
        long_documents: what happens to a text longer than the model takes, see `for_documents`.
        windows: how such texts are cut, None where they are not.
    """

    name: str
    tokenizer: Any
    model: Any
    prefix_space: bool
    all_layers: bool
    revision: str | None
    tf32: bool = False
    compiled: bool = False
    long_documents: str = "truncate"
    windows: Windows | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The model's, and so that of the embeddings."""
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @property
    def form(self) -> str:
        """How the model runs: "plain", "compiled", or what of it runs otherwise."""
        if self.compiled:
            return "compiled"
        parts = {
            "packed-linears": prepack.count(self.model)[0],
            "own-attention": attention.served_layers(self.model),
            "own-layers": layers.served_layers(self.model),
        }
        return "+".join(part for part, count in parts.items() if count) or "plain"

    @property
    def max_length(self) -> int | None:
        """Ids a text may have: what the tokenizer declares, at most what the model can take."""
        declared = self.tokenizer.model_max_length
        limits = [declared if declared < _NO_LIMIT else None, self.position_limit]
        return min((int(limit) for limit in limits if limit is not None), default=None)

    @property
    def position_limit(self) -> int | None:
        """Tokens that the model's table of positions can tell apart, None if it has none."""
        return architectures.position_limit(self.model)

    @property
    def depth(self) -> int:
        """How many hidden states there are with all layers: layers + 1."""
        every = replace(self, all_layers=True)
        return len(every.encode(every.tokenize(["a"])))

    def with_parts(self, model: Any, tokenizer: Any, *, all_layers: bool) -> Encoder:
        """Return an encoder of these parts."""
        return replace(
            self,
            model=model,
            tokenizer=tokenizer,
            prefix_space=wants_prefix_space(tokenizer),
            all_layers=all_layers,
        )

    def for_documents(
        self, long_documents: str, window: int | None = None, stride: int | None = None
    ) -> Encoder:
        """Return an encoder that does to texts longer than the model takes what is asked for.

        Args:
            long_documents: "truncate", "window" or "error", see `flashbertscore.score`.
            window: see `flashbertscore.windows.make_windows`.
            stride: see there.

        Raises:
            TypeError, ValueError: an argument is none of these, or does not fit the model; names
                the argument.
        """
        if long_documents not in POLICIES:
            msg = f"long_documents: expected one of {', '.join(POLICIES)}, got {long_documents!r}"
            raise ValueError(msg)
        if long_documents == "window":
            special = special_around(self.tokenizer)
            windows = make_windows(self.max_length, special, window, stride)
            return replace(self, long_documents=long_documents, windows=windows)
        for name, value in (("window", window), ("stride", stride)):
            if value is not None:
                msg = f"{name}: expected None without long_documents='window', got {value}"
                raise ValueError(msg)
        return replace(self, long_documents=long_documents, windows=None)

    def own_tokenizer(self) -> Any:
        """Return a copy of the tokenizer whose settings others do not see."""
        return copy.copy(self.tokenizer)

    def of_last_layer(self) -> Encoder:
        """Return the encoder for the last layer that the model has."""
        return replace(self, all_layers=False)

    def own_positions(self, ids: list[int]) -> slice:
        """Where the text's own tokens are, without the special ones before and after them."""
        special = set(self.tokenizer.all_special_ids)
        own = [i for i, token in enumerate(ids) if token not in special]
        return slice(own[0], own[-1] + 1) if own else slice(0, 0)

    def tokenize(self, texts: list[str]) -> Tokens:
        """Return the ids of `texts` (see `flashbertscore.tokens.tokenize`).

        Raises:
            LongTextError: with long_documents="error", for the first text that is too long.
        """
        limit = self.max_length if self.windows is None else None
        tokens = tokenize(texts, self.tokenizer, prefix_space=self.prefix_space, max_length=limit)
        if self.long_documents == "error" and bool(tokens.cut.any()):
            text = int(tokens.cut.nonzero()[0])
            msg = (
                f"expected at most {limit} tokens, what the model takes, got "
                f"{int(tokens.totals[text])} (long_documents='window' scores longer texts)"
            )
            raise LongTextError(msg, text)
        return tokens

    def encode(
        self,
        tokens: Tokens,
        texts: torch.Tensor | None = None,
        *,
        batch_size: int = 64,
        token_budget: int = TOKEN_BUDGET,
        progress: Callable[[int, int], object] | None = None,
        allocate: Callable[[Sequence[int], torch.Tensor], torch.Tensor] | None = None,
        failed: Callable[[Pieces], object] | None = None,
    ) -> torch.Tensor:
        """Return the embedding of every token, packed as `tokens` packs the ids.

        Texts, and windows of long ones, go through the model sorted by length, so that little of a
        batch is padding.

        Args:
            tokens: ids of n texts.
            texts: int64 [k], those to encode; None: all. The rows of others are left as they are.
            batch_size: most texts or windows of a batch.
            token_budget: most tokens of a batch, padding included; one text may have more.
            progress: called for each batch that is done, with the tokens that went through the
                model and those of them whose embeddings are taken (of a window not all).
            allocate: returns the memory of the result, given its shape and a batch of embeddings;
                None: `batch.new_empty(shape)`.
            failed: called with each batch that the model fails on, before what it raised is.

        Returns:
            [T, D], or [L, T, D] with `all_layers` (L = layers + 1, the first the embedding layer);
            as `allocate` makes it, or of the model's dtype and on its device. D is 1 where there is
            no token to encode (empty texts, for a model without special tokens).
        """
        packed: torch.Tensor | None = None
        allocating, given_up = threading.Lock(), threading.Event()

        def embed(part: Pieces) -> Pieces:
            nonlocal packed
            try:
                hidden = self.forward(tokens, part, given_up)
            except Exception:
                if failed is not None:
                    failed(part)
                raise
            with allocating:
                if packed is None:
                    make = allocate or (lambda shape, batch: batch.new_empty(shape))
                    packed = make([*hidden.shape[:-2], len(tokens.ids), hidden.shape[-1]], hidden)
            # By the thread that computed it: an operation that torch shares among its threads
            # leaves them waiting in a loop for the next, on the cores that the other batch needs.
            rows = to_device(part.targets(), packed.device)
            with torch.inference_mode():  # `allocate` may have made it in the caller's
                packed.index_copy_(-2, rows, hidden.to(packed.device, packed.dtype))
            return part

        pieces = cut(tokens, self.windows, torch.arange(len(tokens)) if texts is None else texts)
        batch_size = self._most_texts(batch_size)
        parts = map(pieces.select, batches(pieces.lengths, batch_size, token_budget))
        with closing(self._each(embed, parts, given_up)) as done:  # also where `progress` raises
            for part in done:
                if progress is not None:
                    progress(int(part.sizes.sum()), int(part.taken[:, 1].sum()))
        if packed is None:
            states = [self.depth] if self.all_layers else []
            return torch.empty(*states, 0, 1, device=self.device)
        return packed

    def _most_texts(self, batch_size: int) -> int:
        """Return `batch_size`, or 1 for a model that treats a text by the longest beside it."""
        return min(batch_size, 1) if architectures.depends_on_longest(self.model) else batch_size

    def _each(
        self,
        embed: Callable[[Pieces], Pieces],
        parts: Iterator[Pieces],
        given_up: threading.Event,
    ) -> Generator[Pieces, None, None]:
        """Call `embed` with each part of the pieces, and yield what it returns, in order.

        Where that is given up (by Ctrl-C, an error, the caller), what waits is not computed, and
        what runs ends after a layer.
        """
        first = list(itertools.islice(parts, 2))
        with _handing_out:
            threads = torch.get_num_threads()
        if threads < 2 or len(first) < 2 or not self._side_by_side:
            for part in itertools.chain(first, parts):
                yield embed(part)
            return
        ready = threading.Barrier(3)
        share = threads // 2, ready
        with ThreadPoolExecutor(2, initializer=_share_threads, initargs=share) as pool:
            running = deque[Future[Pieces]]()
            # What a thread sets is also what later ones of the process start with: until both have.
            with _handing_out:
                try:
                    for part in first:
                        running.append(pool.submit(embed, part))
                    ready.wait()
                except BaseException:
                    ready.abort()  # a thread that waits for one that could not be started
                    raise
                finally:
                    torch.set_num_threads(threads)
            try:
                for part in parts:
                    running.append(pool.submit(embed, part))
                    if len(running) > 2:  # one waits, so that no thread does
                        yield running.popleft().result()
                for one in running:
                    yield one.result()
            finally:
                given_up.set()
                for one in running:
                    one.cancel()

    @property
    def _side_by_side(self) -> bool:
        """Whether two batches go through the model at once, each with half of the threads.

        Where one does what two threads cannot share, the other computes: 0 to 7 % of the time. Only
        models whose layers are known (by `flashbertscore.attention`) to keep nothing of a batch.
        """
        on_cpu = self.device.type == "cpu"
        return on_cpu and not self.all_layers and attention.served_layers(self.model) > 0

    def forward(
        self, tokens: Tokens, pieces: Pieces, given_up: threading.Event | None = None
    ) -> torch.Tensor:
        """Run the model once; return [t, D] or [L, t, D], the t tokens that are taken.

        Args:
            tokens: ids of the texts.
            pieces: what goes through the model; the tokens of one come after those of another.
            given_up: where served layers see that it is set, they raise CancelledError.
        """
        lengths = pieces.lengths
        real = torch.arange(int(lengths.max())) < lengths[:, None]  # [pieces, longest]
        pad = self.tokenizer.pad_token_id
        # A tokenizer without a padding id: any id will do, the mask hides it.
        ids = torch.full(real.shape, 0 if pad is None else pad)
        ids[real] = tokens.ids[pieces.rows()]
        # Always a mask: families differ in what they make of none, and those that attend through
        # torch drop one that is all ones themselves.
        mask = to_device(real, self.device, torch.int64)
        # Rows of the batch, not the mask itself: indexing with that one would wait for the device.
        taken = real.flatten().nonzero().squeeze(1)[pieces.sources()]
        rows = to_device(taken, self.device)
        with torch.inference_mode(), attention.padded(lengths, given_up):
            out = self.model(
                to_device(ids, self.device),
                attention_mask=mask,
                output_hidden_states=self.all_layers,
            )
            if not self.all_layers:
                return _select(out[0], rows)
            return torch.stack([_select(state, rows) for state in out.hidden_states])


_handing_out = threading.Lock()  # while the number of threads of the process is another


def _share_threads(count: int, ready: threading.Barrier) -> None:
    """Let torch compute with `count` threads in this one."""
    torch.get_num_threads()  # the first call in a thread takes the number of the process
    torch.set_num_threads(count)
    ready.wait()


def _select(hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows [t, D] of a batch [B, L, D]."""
    return hidden.flatten(0, 1).index_select(0, rows)


def batches(lengths: torch.Tensor, batch_size: int, token_budget: int) -> Iterator[torch.Tensor]:
    """Split texts into batches of similar length, longest first; int64 [k] each.

    Texts without a token are in no batch.

    Raises:
        ValueError: `batch_size` is below 1.
    """
    if batch_size < 1:
        msg = f"batch_size: expected at least 1, got {batch_size}"
        raise ValueError(msg)
    order = lengths.argsort(descending=True, stable=True)
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        size = max(1, min(batch_size, token_budget // longest))
        yield order[start : start + size]
        start += size


_Key = tuple[str, int | None, str, torch.dtype, str | None, bool, bool]
_cache: OrderedDict[_Key, Encoder] = OrderedDict()
_lock = threading.RLock()


def load(
    model_type: str,
    num_layers: int,
    *,
    all_layers: bool = False,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
    compiled: bool = False,
) -> Encoder:
    """Return the encoder for a model and layer, loading it at the first call.

    A process keeps the models it used last; `clear_cache` frees them. Safe to call from several
    threads: a model is loaded once.

    Weights come from safetensors where the model has them, else from a file that torch reads
    without running code in it; code that comes with a model is never run. They are float32 whatever
    the checkpoint holds, as under transformers 4, with which the published scores were made
    (transformers 5 would compute a half-precision checkpoint in half precision).

    Args:
        model_type: name on the Hub or path of a folder.
        num_layers: layers to keep; not read when `all_layers` is set.
        all_layers: let `Encoder.encode` return every hidden state.
        device: where the model goes.
        dtype: of weights and embeddings.
        revision: branch, tag or commit of the Hub; None takes the newest.
        compiled: let torch.compile make the model's kernels, and leave out what `SWITCH` tells of.

    Raises:
        AssertionError: the model has not that many layers.
        OSError: there is no such model, or it cannot be reached.
        ValueError: the architecture is not supported, or `SWITCH` is set to none of its values.
    """
    fast = _fast() and torch.device(device).type == "cpu" and not compiled
    depth = None if all_layers else num_layers
    key: _Key = (model_type, depth, str(torch.device(device)), dtype, revision, fast, compiled)
    with _lock:
        if key not in _cache:
            tokenizer = load_tokenizer(model_type, revision)
            model = load_model(model_type, depth, device=device, dtype=dtype, revision=revision)
            if fast:
                prepack.prepack(model)
                attention.install(model)
                layers.install(model)
            if compiled:
                model = torch.compile(model, dynamic=True)
            _cache[key] = Encoder(
                name=model_type,
                tokenizer=tokenizer,
                model=model,
                prefix_space=wants_prefix_space(tokenizer),
                all_layers=all_layers,
                revision=commit(model_type, revision),
                compiled=compiled,
            )
            while len(_cache) > CACHE_SIZE:
                _cache.popitem(last=False)
        _cache.move_to_end(key)
        return _cache[key]


def _fast() -> bool:
    value = os.environ.get(SWITCH, "fast")
    if value not in {"fast", "plain"}:
        msg = f"{SWITCH}: expected fast or plain, got {value}"
        raise ValueError(msg)
    return value == "fast"


def clear_cache() -> None:
    """Forget the loaded models; one that a scorer still uses is freed with the scorer."""
    with _lock:
        _cache.clear()


def evict(encoder: Encoder) -> None:
    """Forget one loaded model."""
    with _lock:
        for key in [key for key, kept in _cache.items() if kept.model is encoder.model]:
            del _cache[key]
