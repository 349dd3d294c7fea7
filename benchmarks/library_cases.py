"""What the op costs as a library: all pairs, alignments, gradients, layers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import peers

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclass(frozen=True)
class LibraryCase:
    """Contenders on the same data; the ratio is the time of the second over that of the first.

    ``target``: what the ratio is to be: "10x" at least, "<= 1.15" at most. ``peak_target``: of the
    first contender's memory.
    """

    name: str
    description: str
    contenders: tuple[str, ...]
    target: str = ""
    peak_target: str = ""
    runs: int = 5
    data: str = ""

    @property
    def key(self) -> str:
        """Which of CALLS makes its calls."""
        return self.data or self.name


LIBRARY = [
    LibraryCase(
        "lib-mbr",
        "256 x 256 hypotheses of 20 to 40 tokens, D = 384, two sets",
        ("two sets", "bert-score"),
        "10x",
        runs=3,
    ),
    LibraryCase(
        "lib-mbr-one-set",
        "the same, one set on both sides",
        ("one set", "bert-score"),
        "18x",
        runs=3,
        data="lib-mbr",
    ),
    LibraryCase(
        "lib-mbr-1024",
        "1,024 x 1,024 of them, two sets",
        ("two sets",),
        peak_target="256 MiB",
        runs=1,
    ),
    LibraryCase(
        "lib-aligned",
        "forward with alignment over forward, 250 x 128 x 128, D = 768",
        ("forward", "with alignment"),
        "<= 1.15",
        runs=15,
    ),
    LibraryCase(
        "lib-aligned-bfloat16",
        "the same in bfloat16",
        ("forward", "with alignment"),
        runs=15,
    ),
    LibraryCase(
        "lib-train",
        "forward and backward, 64 x 256 x 256, D = 768 (96 MiB of the memory are the gradients)",
        ("flashbertscore", "torch chain"),
        "2x",
        peak_target="beyond the gradients a tenth of the other's",
    ),
    LibraryCase(
        "lib-layers",
        "13 layers over one, 250 x 128 x 128, D = 768",
        ("one layer", "13 layers"),
        "<= 13",
    ),
]


def hypotheses(count: int) -> tuple[Tensor, Tensor]:
    """Packed embeddings of texts of 20 to 40 tokens, and their offsets."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, 41, (count,), generator=generator)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return torch.randn(int(offsets[-1]), 384, generator=generator), offsets


def all_pairs(case: LibraryCase, contender: str) -> Callable[[], object]:
    """Every hypothesis with every other."""
    x, offsets = hypotheses(1024 if case.name.endswith("1024") else 256)
    if contender == "bert-score":
        return greedy_batches(x, offsets)
    from flashbertscore import functional  # noqa: PLC0415 - a contender loads only itself

    y = x if contender == "one set" else x.clone()
    functional.bertscore_matrix(x[: offsets[3]], offsets[:4], y[: offsets[3]], offsets[:4])
    return lambda: functional.bertscore_matrix(x, offsets, y, offsets)


def greedy_batches(x: Tensor, offsets: Tensor) -> Callable[[], object]:
    """bert_score.utils.greedy_cos_idf on batches of 64 pairs of padded, cached embeddings.

    It divides its arguments in place, so each batch gets copies, as in naist-nlp/mbrs.
    """
    from bert_score.utils import greedy_cos_idf  # noqa: PLC0415 - a contender loads only itself

    lengths = offsets.diff()
    texts = [x[a:b] for a, b in itertools.pairwise(offsets.tolist())]
    padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    masks = torch.arange(padded.shape[1]) < lengths[:, None]
    weights = masks.float()

    def run() -> Tensor:
        rows = []
        for h in range(len(texts)):
            row = []
            for start in range(0, len(texts), 64):
                part = slice(start, start + 64)
                count = len(padded[part])
                hyp = padded[h].expand(count, -1, -1).clone()
                scores = greedy_cos_idf(
                    padded[part].clone(),
                    masks[part],
                    weights[part].clone(),
                    hyp,
                    masks[h].expand(count, -1),
                    weights[h].expand(count, -1).clone(),
                )
                row.append(scores[2])
            rows.append(torch.cat(row))
        return torch.stack(rows)

    return run


def batch(
    pairs: int, length: int, dim: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Both sides of a padded batch."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(pairs, length, dim, generator=generator).to(dtype) for _ in range(2))
    return x, y


def alignment(case: LibraryCase, contender: str) -> Callable[[], object]:
    """The forward pass, with and without its alignment."""
    from flashbertscore import functional  # noqa: PLC0415

    x, y = batch(250, 128, 768, torch.bfloat16 if "bfloat16" in case.name else torch.float32)
    wanted = contender == "with alignment"
    functional.bertscore(x[:1, :8], y[:1, :8], return_alignment=wanted)  # everything is loaded
    return lambda: functional.bertscore(x, y, return_alignment=wanted)


def training(case: LibraryCase, contender: str) -> Callable[[], object]:
    """Gradients of 1 - F1 in both sides."""
    del case
    x, y = batch(64, 256, 768)
    w, v = torch.ones(64, 256), torch.ones(64, 256)
    function = peers.ours if contender == "flashbertscore" else peers.torch_chain

    def step(x: Tensor, y: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        loss = (1 - function(x, y, w, v)[2]).sum()
        return torch.autograd.grad(loss, (x, y))

    small = [value[:1, :8].clone() for value in (x, y, w, v)]
    step(*(value.requires_grad_() for value in small[:2]), *small[2:])  # everything is loaded
    x.requires_grad_()
    y.requires_grad_()
    return lambda: step(x, y, w, v)


def layers(case: LibraryCase, contender: str) -> Callable[[], object]:
    """The op on every layer that an encoder returned, [13, T, D], where they lie."""
    del case
    from flashbertscore import functional  # noqa: PLC0415

    count = 13 if contender == "13 layers" else 1
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(count, 2 * 250 * 128, 768, generator=generator)
    offsets = torch.arange(501) * 128
    pairs = torch.arange(500).view(250, 2)
    functional.bertscore_packed(states[0, :128], offsets[:2], states[0, :128], offsets[:2])
    return lambda: [
        functional.bertscore_packed(layer, offsets, layer, offsets, pairs) for layer in states
    ]


CALLS = {
    "lib-mbr": all_pairs,
    "lib-mbr-1024": all_pairs,
    "lib-aligned": alignment,
    "lib-aligned-bfloat16": alignment,
    "lib-train": training,
    "lib-layers": layers,
}
