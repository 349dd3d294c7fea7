"""Long documents: what windows change, what they cost, and how much memory it all takes.

python benchmarks/long_documents.py                     everything: results/<machine>-long.json
python benchmarks/long_documents.py --only effect       one of effect, words, context, million
python benchmarks/long_documents.py --trial             small sizes, printed and not written

effect: documents of 300 to 450 tokens (joined news lines) scored with all 512 positions of
all-MiniLM-L6-v2, in windows of 256 and 128, and cut to as many. words: two documents of 100,000
words each. context: 64 pairs of 4,096 tokens through a small random model that takes them, beside
bert-score. million: one pair of 1,000,000 tokens on each side, D = 64, through the op. Each
measurement is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import cases
from measure import HighWater, resident
from peak import peak
from run import PACKAGES, RESULTS, git, machine, slug

if TYPE_CHECKING:
    from collections.abc import Callable

TRIAL = os.environ.get("FLASHBERTSCORE_TRIAL") == "1"

WINDOWS = (256, 128)
ADVANCES = (1.0, 7 / 8, 3 / 4, 1 / 2)
"""Strides, as parts of a window's room."""

WORDS = 5_000 if TRIAL else 100_000
PAIRS, LENGTH = (4, 1024) if TRIAL else (64, 4096)
TOKENS = 50_000 if TRIAL else 1_000_000
LIMIT = 21 << 30
"""Bytes that bert-score may map: beyond, it ends with an error before the machine does."""


def scorer(**options: Any) -> Any:  # noqa: ANN401
    import texts  # noqa: PLC0415 - torch loads in the child
    from flashbertscore import BERTScorer  # noqa: PLC0415

    model, layer = texts.minilm()
    return BERTScorer(model, layer, device="cpu", **options)


def effect() -> list[dict[str, Any]]:
    """Differences of F1 from the scores with all positions."""
    import texts  # noqa: PLC0415

    pairs = texts.documents(8 if TRIAL else 0)
    whole = scorer(cache_bytes=0).score(*pairs)
    assert whole.coverage.complete
    rows = []
    for window in WINDOWS:
        room = window - 2
        for advance in ADVANCES:
            stride = int(room * advance)
            made = scorer(
                cache_bytes=0, long_documents="window", window=window, stride=stride
            ).score(*pairs)
            rows.append({"window": window, "stride": stride, **apart(made.f1, whole.f1)})
        import warnings  # noqa: PLC0415

        cut = scorer(cache_bytes=0)
        cut._tokenizer.model_max_length = window  # noqa: SLF001 - what the reference would cut at
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append({"window": window, "stride": None, **apart(cut.score(*pairs).f1, whole.f1)})
    half = scorer(cache_bytes=0, embeddings_dtype="bfloat16").score(*pairs)
    rows.append({"window": None, "stride": None, **apart(half.f1, whole.f1)})
    count = len(pairs[0])
    shortest, longest = (int(f(whole.coverage.references[:, 1])) for f in (min, max))
    return [row | {"documents": count, "tokens": [shortest, longest]} for row in rows]


def apart(found: Any, expected: Any) -> dict[str, float]:  # noqa: ANN401 - tensors
    import torch  # noqa: PLC0415

    difference = (found - expected).abs().double()
    pearson = torch.corrcoef(torch.stack([found, expected]))[0, 1]
    return {
        "mean": float(difference.mean()),
        "largest": float(difference.max()),
        "pearson": float(pearson),
    }


def book() -> tuple[str, str]:
    """Two documents of WORDS words, of shuffled news lines."""
    import texts  # noqa: PLC0415

    made = []
    for seed, lines in enumerate(texts.news()):
        rng = random.Random(seed)  # noqa: S311 - texts to measure with
        words: list[str] = []
        while len(words) < WORDS:
            for line in rng.sample(lines, len(lines)):
                words += line.split()
        made.append(" ".join(words[:WORDS]))
    return made[0], made[1]


def score_book() -> dict[str, Any]:
    """Score the two documents in windows, from text to F1."""
    made = scorer(long_documents="window")
    made.score(["a text"], ["another text"])
    pair = book()
    mark = HighWater()
    start = time.perf_counter()
    found = made.score([pair[0]], [pair[1]])
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "peak": mark.read(),
        "resident": resident("VmHWM"),
        "f1": float(found.f1),
        "tokens": [int(n) for n in found.coverage.candidates[0]],
        "reference_tokens": [int(n) for n in found.coverage.references[0]],
        "signature": made.signature,
    }


def encode_and_match() -> dict[str, Any]:
    """Its parts: the tokenizer; the same tokens as separate texts; the op on what they gave."""
    import torch  # noqa: PLC0415

    from flashbertscore import functional  # noqa: PLC0415

    made = scorer(long_documents="window")
    encoder = made._encoder  # noqa: SLF001
    texts = list(book())
    start = time.perf_counter()
    tokens = encoder.tokenize(texts)
    tokenized = time.perf_counter() - start
    room = encoder.windows.room
    times = {}
    for name, stride in (("windows", encoder.windows.stride), ("apart", room)):
        parts = encoder.for_documents("window", None, stride)
        parts.encode(parts.tokenize(["warm", "up"]))
        start = time.perf_counter()
        packed = parts.encode(tokens)
        times[name] = time.perf_counter() - start
    weights = torch.ones(len(tokens.ids))
    pair = torch.tensor([[0, 1]])
    start = time.perf_counter()
    functional.bertscore_packed(
        packed, tokens.offsets, packed, tokens.offsets, pair, weights, weights
    )
    matched = time.perf_counter() - start
    n, m = tokens.lengths.tolist()
    flop = 2.0 * n * m * packed.shape[1]
    return {"tokenize": tokenized, **times, "match": matched, "flop": flop}


def context_model() -> str:
    """A random ModernBERT of four layers that takes 8,192 tokens, with a tokenizer of its own."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    import random_models  # noqa: PLC0415

    folder = cases.REPOSITORY / "build" / "models" / "context"
    if not (folder / "model.safetensors").exists():
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
        random_models.save_bert(folder / "tokenizer", **sizes)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
        tokenizer.model_max_length = LENGTH
        tokenizer.save_pretrained(folder)
        config = transformers.ModernBertConfig(
            vocab_size=len(tokenizer),
            hidden_size=256,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            pad_token_id=0,
            cls_token_id=2,
            sep_token_id=3,
            bos_token_id=2,
            eos_token_id=3,
        )
        torch.manual_seed(0)
        transformers.ModernBertModel(config).save_pretrained(folder)
    return str(folder)


def context(contender: str) -> dict[str, Any]:
    """Score 64 pairs of 4,096 tokens; memory is that of the whole process."""
    import warnings  # noqa: PLC0415

    warnings.simplefilter("ignore")  # the texts are cut to 4,096 tokens, of all that scores them
    import random_models  # noqa: PLC0415

    path = context_model()
    each = random_models.sentences(2 * PAIRS, (LENGTH, LENGTH), seed=3)
    given = each[::2], each[1::2]
    if contender == "bert-score":
        from bert_score import BERTScorer  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    else:
        from flashbertscore import BERTScorer  # type: ignore[assignment]  # noqa: PLC0415
    made = BERTScorer(model_type=path, num_layers=4, device="cpu")
    loaded = resident("VmRSS")
    start = time.perf_counter()
    try:
        f1 = made.score(*given)[2]
    except (RuntimeError, MemoryError) as error:
        return {"failed": str(error).splitlines()[0][:120], "resident": resident("VmHWM")}
    return {
        "seconds": time.perf_counter() - start,
        "loaded": loaded,
        "resident": resident("VmHWM"),
        "f1": [float(x) for x in f1[:4]],
    }


def million() -> dict[str, Any]:
    """One pair of a million tokens on each side through the op."""
    import torch  # noqa: PLC0415

    from flashbertscore import functional  # noqa: PLC0415

    torch.manual_seed(0)
    x, y = (torch.randn(1, TOKENS, 64) for _ in range(2))
    functional.bertscore(x[:, :100], y[:, :100])
    mark = HighWater()
    start = time.perf_counter()
    found = functional.bertscore(x, y)
    seconds = time.perf_counter() - start
    return {
        "tokens": TOKENS,
        "seconds": seconds,
        "peak": mark.read(),
        "flop": 2.0 * TOKENS**2 * 64,
        "f1": float(found.f1),
    }


STAGES: dict[str, dict[str, Callable[[], Any]]] = {
    "effect": {"effect": effect},
    "words": {"score": score_book, "parts": encode_and_match},
    "context": {
        "flashbertscore": lambda: context("flashbertscore"),
        "bert-score": lambda: context("bert-score"),
    },
    "million": {"op": million},
}


def child(stage: str, part: str) -> Any:  # noqa: ANN401 - JSON
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "FLASHBERTSCORE_TRIAL": str(int(TRIAL))}
    command = [sys.executable, __file__, "--one", stage, part]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{stage}, {part} failed:\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(stage, part, json.dumps(found, indent=1), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=STAGES)
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--one", nargs=2)
    options = parser.parse_args()
    if options.one:
        stage, part = options.one
        print(json.dumps(STAGES[stage][part]()))
        return
    if options.trial and not TRIAL:
        os.environ["FLASHBERTSCORE_TRIAL"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - this script
    stages = [options.only] if options.only else list(STAGES)
    records = {stage: {part: child(stage, part) for part in STAGES[stage]} for stage in stages}
    if TRIAL:
        return
    import flashbertscore  # noqa: PLC0415

    host = machine()
    path = RESULTS / f"{slug(host)}-long.json"
    result = {
        "machine": host,
        "peak_of_one_core": peak(),
        "isa": flashbertscore.isa(),
        "versions": {name: version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
        "commit": git("rev-parse", "--short", "HEAD"),
        "dirty": bool(git("status", "--porcelain")),
    }
    if options.only and path.exists():
        records = json.loads(path.read_text())["records"] | records
        result["dirty"] = True  # not of one run
    path.write_text(json.dumps(result | {"records": records}, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
