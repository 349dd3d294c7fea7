"""Fear: memory grows with the number of pairs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

TinyModel = Callable[[str], str]

# In a process of its own: the high-water mark of this one is that of the whole suite.
PROGRAM = """
import random, re, sys
from flashbertscore import BERTScorer, corpus

def peak():  # KiB; not ru_maxrss, which begins with that of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

path, pairs, cache, way = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
corpus.PORTION_CHARACTERS = 100_000
words = ["".join(random.Random(n).choices("abcdefgh", k=4)) for n in range(2000)]

def texts(count):
    rng = random.Random(1)
    for _ in range(count):
        yield " ".join(rng.choices(words, k=8)), " ".join(rng.choices(words, k=8))

scorer = BERTScorer(path, 1, device="cpu", cache_bytes=cache)

def run(count):
    if way == "stream":
        assert sum(1 for _ in scorer.score_stream(texts(count))) == count
    elif way == "idf":
        scorer._idf_dict = None
        scorer.compute_idf(text for pair in texts(count) for text in pair)
    else:
        scorer.score(*(list(column)[:count] for column in zip(*given)))

given = list(texts(pairs)) if way == "score" else []  # the caller's own
run(3000)
before = peak()
run(pairs)
print(peak() - before)
"""


def grown(path: str, pairs: int, cache: int, way: str) -> float:
    """MiB that the peak rose by between 3,000 pairs and `pairs`."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, str(pairs), str(cache), way],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return int(done.stdout.splitlines()[-1]) / 1024


# 12,000 pairs that were held would be some 12,000 x 2 texts x 20 tokens x 32 floats: 60 MiB of
# embeddings, and more of ids and strings.
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", ["stream", "score", "idf"])
def test_memory_is_flat(way: str, tiny_model: TinyModel) -> None:
    assert grown(tiny_model("bert"), 12_000, 1 << 20, way) < 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_measurement_sees_what_is_held(tiny_model: TinyModel) -> None:
    """The same with a cache that holds everything: the test above can fail."""
    assert grown(tiny_model("bert"), 12_000, 1 << 30, "stream") > 30
