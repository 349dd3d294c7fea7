"""The memory curve: peak memory over the number of short pairs, ours beside bert-score.

python benchmarks/memory.py                    300,000 pairs of ours, fewer of bert-score
python benchmarks/memory.py --pairs 20000      fewer
python benchmarks/memory.py --json FILE        write the curve too

A BERT of two layers and 32 dimensions with random weights scores pairs of 5 to 12 words. Each point
is a process of its own; memory is the peak beyond inputs and loaded model. `score_stream` gets a
generator, so its points are the high-water marks of one run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cases
from measure import HighWater

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = cases.REPOSITORY / "build" / "models" / "tiny"
PARTS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
THEIR_SHARE = 10  # bert-score is given a tenth: its time and memory grow with the pairs


def model() -> str:
    import random_models  # noqa: PLC0415 - torch loads in the child

    return random_models.save_bert(
        MODEL,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )


def texts(count: int) -> tuple[list[str], list[str]]:
    """Candidates and references, all different."""
    import random_models  # noqa: PLC0415

    each = random_models.sentences(2 * count, (5, 12), seed=1)
    return each[:count], each[count:]


def endless() -> Iterator[tuple[str, str]]:
    import random_models  # noqa: PLC0415

    for seed in range(10**9):
        made = random_models.sentences(2000, (5, 12), seed=seed)
        yield from zip(made[::2], made[1::2], strict=True)


def stream(points: list[int]) -> list[dict[str, Any]]:
    """The high-water mark of one run of ``score_stream`` after each number of pairs."""
    from flashbertscore import BERTScorer  # noqa: PLC0415

    scorer = BERTScorer(model(), 2, device="cpu")
    list(scorer.score_stream(zip(*texts(50), strict=True)))
    mark = HighWater()
    start = time.perf_counter()
    rows = []
    for done, _ in enumerate(scorer.score_stream(endless()), start=1):
        if done in points:
            seconds = time.perf_counter() - start
            rows.append({"pairs": done, "seconds": seconds, "peak": mark.read()})
        if done == points[-1]:
            break
    return rows


def score(contender: str, pairs: int) -> dict[str, Any]:
    """One call of ``score`` of a scorer."""
    if contender == "bert-score":
        from bert_score import BERTScorer  # noqa: PLC0415 - a contender loads only itself
    else:
        from flashbertscore import BERTScorer  # type: ignore[assignment]  # noqa: PLC0415
    made: Any = BERTScorer
    with contextlib.redirect_stderr(io.StringIO()):
        scorer = made(model_type=model(), num_layers=2, device="cpu")
    scorer.score(*texts(50))
    given = texts(pairs)
    mark = HighWater()
    start = time.perf_counter()
    scorer.score(*given)
    return {"pairs": pairs, "seconds": time.perf_counter() - start, "peak": mark.read()}


def child(*arguments: str) -> Any:  # noqa: ANN401 - JSON
    command = [sys.executable, __file__, "--one", *arguments]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{arguments} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=300_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs="+")
    options = parser.parse_args()
    if options.one:
        contender, *pairs = options.one
        points = [int(count) for count in pairs]
        found = stream(points) if contender == "stream" else score(contender, points[0])
        print(json.dumps(found))
        return
    points = [round(options.pairs * part) for part in PARTS]
    print(f"{'':30} {'pairs':>9} {'seconds':>9} {'peak MiB':>9}", flush=True)
    curve: dict[str, list[dict[str, Any]]] = {}
    contenders = {
        "flashbertscore score_stream": lambda: child("stream", *map(str, points)),
        "flashbertscore score": lambda: (child("ours", str(count)) for count in points),
        "bert-score score": lambda: (
            child("bert-score", str(count // THEIR_SHARE)) for count in points
        ),
    }
    for name, rows in contenders.items():
        for row in rows():
            curve.setdefault(name, []).append(row)
            shown = f"{row['pairs']:9,} {row['seconds']:9.1f} {row['peak']:9.1f}"
            print(f"{name:30} {shown}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(curve, indent=1) + "\n")


if __name__ == "__main__":
    main()
