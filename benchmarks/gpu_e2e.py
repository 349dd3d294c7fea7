"""Texts to scores on a GPU beside bert-score, in every dtype: no network, no files from outside.

Writes one JSON file and prints a table: ``python benchmarks/gpu_e2e.py --out FILE``. The model has
roberta-large's sizes and random weights, its tokenizer is trained on made-up sentences; it is a
BERT, for under transformers 5 bert-score takes other ids than the published ones for RoBERTa. A row
that fails says so; the rest is measured all the same. Errors are against our float32: the row of
bert-score shows how far that is from it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import flashbertscore
from random_models import save_bert, sentences

if TYPE_CHECKING:
    from collections.abc import Callable

    Scores = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
DTYPES = ("float32", "tf32", "bfloat16", "float16")
LENGTHS = {"sentences": (10, 40), "documents": (180, 260)}


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(device: str, call: Callable[[], Scores]) -> tuple[Scores, float, float]:
    """Scores, seconds and peak MiB of a call beyond what was allocated before."""
    synchronize(device)
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    scores = call()
    synchronize(device)
    seconds = time.perf_counter() - start
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20 if device == "cuda" else 0.0
    return scores, seconds, peak


def errors(scores: Scores, truth: Scores) -> dict[str, float]:
    """Of F: mean and largest absolute difference, and Pearson's correlation."""
    ours, right = scores[2].double(), truth[2].double()
    difference = (ours - right).abs()
    return {
        "mean_error": float(difference.mean()),
        "largest_error": float(difference.max()),
        "pearson": float(torch.corrcoef(torch.stack([ours, right]))[0, 1]),
    }


def measure(
    name: str, path: str, layer: int, texts: tuple[list[str], list[str]], device: str, dtype: str
) -> tuple[dict[str, Any], Scores]:
    """Score texts with one contender: the first call is small, and not timed."""
    options: dict[str, Any] = {"model_type": path, "num_layers": layer, "device": device}
    if dtype == "bert-score":
        import bert_score  # noqa: PLC0415 - may not be there

        with contextlib.redirect_stderr(io.StringIO()):
            scorer: Any = bert_score.BERTScorer(**options)
    else:
        scorer = flashbertscore.BERTScorer(**options, dtype=dtype)
    scorer.score(texts[0][:4], texts[1][:4])
    scores, seconds, peak = timed(device, lambda: scorer.score(*texts))
    flashbertscore.clear_cache()
    row = {"case": name, "dtype": dtype, "pairs": len(texts[0]), "seconds": seconds}
    return row | {"pairs_per_s": len(texts[0]) / seconds, "peak_mib": peak}, scores


def text(row: dict[str, Any]) -> str:
    head = f"{row['case']:<10} {row['dtype']:<11}"
    if "failed" in row:
        return f"{head} FAILED {row['failed']}"
    cells = [f"{head} {row['seconds']:8.2f} s {row['pairs_per_s']:10,.0f} pairs/s"]
    for key, form in (
        ("times_bert_score", "x{:.1f}"),
        ("peak_mib", "{:,.0f} MiB"),
        ("mean_error", "mean {:.1e}"),
        ("largest_error", "max {:.1e}"),
        ("pearson", "r {:.6f}"),
    ):
        if key in row:
            cells.append(form.format(row[key]))
    return " ".join(cells)


def contenders() -> list[str]:
    """Ours first in float32: what the others are compared with."""
    if importlib.util.find_spec("bert_score"):
        return [DTYPES[0], "bert-score", *DTYPES[1:]]
    return list(DTYPES)


def write(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=4000, help="sentences; documents: an eighth")
    parser.add_argument("--seconds", type=float, default=100, help="start no row after this")
    parser.add_argument("--device", default="cuda", help="cpu tries the script out")
    parser.add_argument("--tiny", action="store_true", help="a tiny model")
    arguments = parser.parse_args()
    device = arguments.device
    if device == "cuda" and not torch.cuda.is_available():
        print("gpu_e2e.py: no CUDA device", file=sys.stderr)
        return 2
    start = time.perf_counter()
    sizes = TINY if arguments.tiny else LARGE
    folder = Path("build") / "models" / ("gpu-tiny" if arguments.tiny else "gpu-large")
    vocabulary = None if arguments.tiny else 50265
    path = save_bert(folder, vocabulary=vocabulary, **sizes)
    layer = 2 if arguments.tiny else 17
    name = torch.cuda.get_device_name() if device == "cuda" else device
    rows: list[dict[str, Any]] = []
    report: dict[str, Any] = {
        "device": name,
        "torch": torch.__version__,
        "model": sizes,
        "layer": layer,
        "rows": rows,
    }
    print(f"{name}, torch {torch.__version__}, {sizes}, layer {layer}")
    if "bert-score" not in contenders():
        print("bert-score is not installed: nothing to compare our times with")
    failed = 0
    for case, length in LENGTHS.items():
        count = arguments.pairs if case == "sentences" else max(1, arguments.pairs // 8)
        texts = sentences(count, length, seed=1), sentences(count, length, seed=2)
        truth = theirs = None
        for dtype in contenders():
            row: dict[str, Any] = {"case": case, "dtype": dtype}
            if time.perf_counter() - start > arguments.seconds:
                row["failed"] = "not started: time is up"
            else:
                try:
                    row, scores = measure(case, path, layer, texts, device, dtype)
                    truth = scores if dtype == "float32" else truth
                    theirs = row["seconds"] if dtype == "bert-score" else theirs
                    row |= errors(scores, truth) if truth is not None else {}
                except Exception as problem:  # noqa: BLE001 - one row must not hide the others
                    row["failed"] = f"{type(problem).__name__}: {str(problem)[:200]}"
            failed += "failed" in row
            rows.append(row)
            write(arguments.out, report)
            torch.cuda.empty_cache()
        for row in rows:
            if theirs is not None and row["case"] == case and "seconds" in row:
                row["times_bert_score"] = theirs / row["seconds"]
            if row["case"] == case:
                print(text(row), flush=True)
        write(arguments.out, report)
    print(f"{time.perf_counter() - start:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
