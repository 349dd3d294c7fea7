"""All pairs of texts: grids of scores, and minimum Bayes risk (MBR) decoding over them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from flashbertscore import idf, inputs, matrix, memory
from flashbertscore.coverage import NOTHING, Coverage, TextScores
from flashbertscore.matrix import Side
from flashbertscore.storage import Storage
from flashbertscore.tokens import TextError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashbertscore.encoder import Encoder
    from flashbertscore.tokens import Tokens

UTILITIES = ("precision", "recall", "f1")

# Tokens of the hypotheses that are encoded and held together: 400 MB at 1,024 floats a token.
GROUP_TOKENS = 100_000

# Texts that a warning names.
_NAMED = 10


@dataclass(frozen=True)
class Choice:
    """The result of MBR decoding, for G groups of hypotheses.

    Attributes:
        index: int64 [G], the hypothesis with the highest expected utility; of equals the first.
        utility: float32 [G], its expected utility.
        expected: expected utility of every hypothesis, float32 [n] for each group of n.
        coverage: tokens seen and total of every hypothesis, one group after another, as
            candidates.
    """

    index: Tensor
    utility: Tensor
    expected: list[Tensor]
    coverage: Coverage


class Method(NamedTuple):
    """How texts are compared.

    Attributes:
        encoder: the model.
        weights: token id to IDF weight; None for none.
        baseline: of P, R and F1, [3], or [L, 1, 3] with all layers; None for raw scores.
        batch_size: most texts that go through the model at once.
        storage: where embeddings lie.
    """

    encoder: Encoder
    weights: Mapping[int, float] | None
    baseline: Tensor | None
    batch_size: int
    storage: Storage = Storage()

    def tokenize(self, texts: list[str], places: Sequence[str]) -> tuple[Tokens, Tensor]:
        """Ids and token weights of texts; warns of those that are cut or have no token.

        Args:
            texts: distinct texts.
            places: what to call each of them in a warning or an error.

        Raises:
            TextError: the tokenizer fails on a text.
        """
        try:
            tokens = self.encoder.tokenize(texts)
        except TextError as error:
            raise _named(error, places) from error.__cause__
        if tokens.cut.any():
            _warn(
                f"{int(tokens.cut.sum())} of {len(tokens)} distinct texts are longer than the "
                f"{self.encoder.max_length} tokens that the model takes and were cut: "
                f"{tokens.tokens_seen} of {tokens.tokens_total} tokens are scored"
            )
        if tokens.empty.any():
            empty = [places[i] for i in tokens.empty.nonzero().squeeze(1).tolist()]
            more = f" and {len(empty) - _NAMED} more" if len(empty) > _NAMED else ""
            _warn(
                f"{', '.join(empty[:_NAMED])}{more}: no tokens in the text; "
                "the raw scores of its pairs are 0"
            )
        if self.weights is not None:
            return tokens, idf.weigh(tokens, self.weights)
        tokenizer = self.encoder.tokenizer
        return tokens, idf.uniform(tokens, (tokenizer.sep_token_id, tokenizer.cls_token_id))

    def encode(self, tokens: Tokens, places: Sequence[str]) -> Tensor:
        """Embeddings [L, T, D]; L is 1 without all layers.

        Raises:
            TextError: the model fails on a text, which `places` names.
        """
        try:
            embeddings = memory.encode(
                self.encoder,
                tokens,
                batch_size=self.batch_size,
                allocate=self.storage.allocate,
            )
        except TextError as error:
            raise _named(error, places) from error.__cause__
        return embeddings if embeddings.dim() == 3 else embeddings[None]

    def finish(self, scores: Tensor, empty: tuple[Tensor, Tensor], layer: int) -> Tensor:
        """Scores [3, C, R] of one layer, by the rules for texts, rescaled.

        Args:
            scores: raw, of the op.
            empty: bool [C] and [R], texts without a token.
            layer: which row of the baselines.
        """
        scores = scores.to("cpu", torch.float32)
        scores[2].nan_to_num_(0.0)
        scores[:, empty[0]] = 0.0
        scores[:, :, empty[1]] = 0.0
        if self.baseline is None:
            return scores
        base = self.baseline if self.baseline.dim() == 1 else self.baseline[layer, 0]
        return (scores - base[:, None, None]) / (1 - base[:, None, None])


def _named(error: TextError, places: Sequence[str]) -> TextError:
    """The error with what the text is called: of a grid there is no one candidate to number."""
    return error if error.index is None else type(error)(f"{places[error.index]}: {error}")


def _warn(message: str) -> None:
    # The caller of a method of the scorer: it, the function here, tokenize, this.
    warnings.warn(message, UserWarning, stacklevel=5)


def score_matrix(method: Method, cands: Any, refs: Any) -> TextScores:
    """Score every candidate with every reference; see ``BERTScorer.score_matrix``."""
    candidates, references = inputs.read_texts(cands, "cands"), inputs.read_texts(refs, "refs")
    layers, coverage = 1, NOTHING
    if candidates and references:
        texts, rows, columns, grid = _distinct(candidates, references)
        places = _places(candidates, references, texts)
        tokens, weights = method.tokenize(texts, places)
        embeddings = method.encode(tokens, places)
        layers = len(embeddings)
        parts = [
            _grid(method, layer, i, tokens, weights, grid)[:, rows][:, :, columns]
            for i, layer in enumerate(embeddings)
        ]
        scores = torch.stack(parts, dim=1)
        coverage = Coverage(tokens.coverage[rows], tokens.coverage[columns + grid.start])
    else:
        if method.encoder.all_layers:
            layers = method.encoder.depth
        scores = torch.empty(3, layers, len(candidates), len(references))
    if not method.encoder.all_layers:
        scores = scores[:, 0]
    return TextScores.of(scores.movedim(0, -1), coverage)


class _Grid(NamedTuple):
    """Which of the distinct texts are candidates (0 to stop) and references (from start on)."""

    stop: int
    start: int


def _distinct(
    candidates: list[str], references: list[str]
) -> tuple[list[str], Tensor, Tensor, _Grid]:
    """Number texts so that both sides are slices: those of one side, of both, of the other."""
    both = dict.fromkeys(references).keys() & dict.fromkeys(candidates).keys()
    only = [t for t in dict.fromkeys(candidates) if t not in both]
    shared = [t for t in dict.fromkeys(candidates) if t in both]
    rest = [t for t in dict.fromkeys(references) if t not in both]
    texts = only + shared + rest
    number = {text: i for i, text in enumerate(texts)}
    start = len(only)
    rows = torch.tensor([number[text] for text in candidates])
    columns = torch.tensor([number[text] - start for text in references])
    return texts, rows, columns, _Grid(start + len(shared), start)


def _places(candidates: list[str], references: list[str], texts: list[str]) -> list[str]:
    """Where each distinct text stands first."""
    first: dict[str, str] = {}
    for name, side in (("cands", candidates), ("refs", references)):
        for i, text in enumerate(side):
            first.setdefault(text, f"{name}[{i}]")
    return [first[text] for text in texts]


def _grid(
    method: Method, embeddings: Tensor, layer: int, tokens: Tokens, weights: Tensor, grid: _Grid
) -> Tensor:
    """Scores [3, C, R] of the distinct candidates and references, from embeddings [T, D]."""
    everything = Side(embeddings, tokens.offsets, weights.to(embeddings.device))
    x, y = everything.part(0, grid.stop), everything.part(grid.start, len(tokens))
    scores = torch.stack(matrix.all_pairs(x, y))
    return method.finish(scores, (tokens.empty[: grid.stop], tokens.empty[grid.start :]), layer)


def mbr(method: Method, hypotheses: Any, utility: str, weights: Any) -> Choice:
    """Choose of each group the hypothesis with the highest expected utility.

    See ``BERTScorer.mbr``.
    """
    if utility not in UTILITIES:
        message = f"utilities: expected one of {', '.join(UTILITIES)}, got {utility!r}"
        raise ValueError(message)
    if method.encoder.all_layers:
        message = "mbr: a scorer with all_layers has no one utility; make one without"
        raise ValueError(message)
    groups = _read_groups(hypotheses)
    shares = _read_weights(weights, groups)
    expected = [torch.empty(0)] * len(groups)
    first: dict[str, str] = {}
    for g, group in enumerate(groups):
        for i, text in enumerate(group):
            first.setdefault(text, f"hypotheses[{g}][{i}]")
    places = list(first.values())
    tokens, token_weights = method.tokenize(list(first), places)
    number = {text: i for i, text in enumerate(first)}
    numbers = [torch.tensor([number[text] for text in group]) for group in groups]
    for chosen in _chunks(numbers, tokens.lengths):
        texts = torch.unique(torch.cat([numbers[g] for g in chosen]))
        part = tokens.select(texts)
        embeddings = method.encode(part, [places[text] for text in texts.tolist()])[0]
        part_weights = token_weights[tokens.rows(texts)]
        for g in chosen:
            local = torch.searchsorted(texts, numbers[g])
            expected[g] = _expected(
                method, embeddings, part, part_weights, local, shares[g], utility
            )
    best = [values.nan_to_num(-torch.inf).argmax() for values in expected]
    index = torch.stack(best) if best else torch.empty(0, dtype=torch.int64)
    chosen_utility = [values[i] for values, i in zip(expected, index.tolist(), strict=True)]
    every = torch.cat([tokens.coverage[texts] for texts in numbers] or [NOTHING.candidates])
    return Choice(
        index, torch.tensor(chosen_utility), expected, Coverage(every, NOTHING.references)
    )


def _read_groups(hypotheses: Any) -> list[list[str]]:
    if isinstance(hypotheses, (str, bytes)) or not isinstance(hypotheses, Sequence):
        message = f"hypotheses: expected a list of lists of str, got {type(hypotheses).__name__}"
        raise TypeError(message)
    groups = []
    for g, texts in enumerate(hypotheses):
        group = inputs.read_texts(texts, f"hypotheses[{g}]")
        if not group:
            message = f"hypotheses[{g}]: expected at least one text, got none"
            raise ValueError(message)
        groups.append(group)
    return groups


def _read_weights(weights: Any, groups: list[list[str]]) -> list[Tensor]:
    """Shares of the hypotheses in the expectation, float64 [n] of sum 1 for each group."""
    if weights is None:
        return [torch.full((len(g),), 1 / len(g), dtype=torch.float64) for g in groups]
    if len(weights) != len(groups):
        message = f"weights: expected one list for each of {len(groups)} groups, got {len(weights)}"
        raise ValueError(message)
    shares = []
    for g, (values, group) in enumerate(zip(weights, groups, strict=True)):
        share = torch.as_tensor(values, dtype=torch.float64)
        if share.shape != (len(group),):
            message = f"weights[{g}]: expected {len(group)} numbers, got shape {list(share.shape)}"
            raise ValueError(message)
        if not bool((share.isfinite() & (share >= 0)).all()) or share.sum() <= 0:
            message = f"weights[{g}]: expected finite values >= 0 with a sum > 0, got {values}"
            raise ValueError(message)
        shares.append(share / share.sum())
    return shares


def _chunks(numbers: list[Tensor], lengths: Tensor) -> Iterator[list[int]]:
    """Groups that are encoded together: at most GROUP_TOKENS, or one group."""
    chunk: list[int] = []
    size = 0
    for g, texts in enumerate(numbers):
        added = int(lengths[torch.unique(texts)].sum())
        if chunk and size + added > GROUP_TOKENS:
            yield chunk
            chunk, size = [], 0
        chunk.append(g)
        size += added
    if chunk:
        yield chunk


def _expected(
    method: Method,
    embeddings: Tensor,
    tokens: Tokens,
    weights: Tensor,
    texts: Tensor,
    shares: Tensor,
    utility: str,
) -> Tensor:
    """Expected utility of each hypothesis of a group, float32 [n], tile by tile."""
    distinct, place = torch.unique(texts, return_inverse=True)
    share = torch.zeros(len(distinct), dtype=torch.float64).index_add_(0, place, shares)
    rows = tokens.rows(distinct)
    own = tokens.select(distinct)
    device = embeddings.device
    side = Side(embeddings[rows.to(device)], own.offsets, weights[rows].to(device))
    total = torch.zeros(len(distinct), dtype=torch.float64)
    which = UTILITIES.index(utility)

    def add(raw: Tensor, rows: slice, columns: slice) -> None:
        scores = method.finish(raw, (own.empty[rows], own.empty[columns]), 0)[which].double()
        total[rows] += (scores * share[columns]).sum(dim=1)

    for begin, end, found in matrix.tiles(side, side, symmetric=True):
        raw = torch.stack(found).to("cpu")
        # P(a, b) = R(b, a) before they are rescaled, each with a baseline of its own.
        back = raw[[1, 0, 2], :begin].transpose(1, 2)
        add(back, slice(begin, end), slice(begin))
        add(raw, slice(end), slice(begin, end))
    return total[place].float()
