"""Record the ids of transformers 4 for the stress texts: tests/data/token_ids/.

Run with transformers 4.57:  PYTHONPATH=python:tests python tests/helpers/record_token_ids.py

For each tokenizer it writes the vocabulary files, and ids.json: the ids of the fast tokenizer
(with a space before the first word for RoBERTa and GPT-2), and for texts where the slow tokenizer
gives other ids, those.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import transformers

from flashbertscore import architectures
from helpers.stress_texts import STRESS_TEXTS
from helpers.texts import SENTENCES
from helpers.tiny_models import FAMILIES, quiet, save_config, save_tokenizer

FOLDER = Path(__file__).parents[1] / "data" / "token_ids"
# One for every tokenizer class of transformers 4 that the supported families have.
RECORDED = (
    "albert",
    "bart",
    "bert",
    "bert-cased",
    "deberta",
    "deberta-v3",
    "distilbert",
    "electra",
    "gpt2",
    "longformer",
    "modernbert",
    "mpnet",
    "roberta",
    "t5",
    "xlm-roberta",
    "xlnet",
)
# Published checkpoints of some families come with tokenizer.json, of others without.
WITH_JSON = {"bert", "roberta", "xlnet"}


def slow_ids(tokenizer: Any, text: str, *, prefix_space: bool) -> list[int]:
    """Ids as the reference takes them (`sent_encode`)."""
    text = text.strip()
    if not text:
        return list(tokenizer.build_inputs_with_special_tokens([]))
    options = {"add_prefix_space": True} if prefix_space else {}
    return list(tokenizer.encode(text, add_special_tokens=True, **options))


def fast_ids(tokenizer: Any, text: str, *, prefix_space: bool) -> list[int]:
    text = text.strip()
    return list(tokenizer.encode(" " + text if prefix_space and text else text))


def record(family: str) -> tuple[int, int]:
    folder = FOLDER / family
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_config(family, folder, save_tokenizer(family, folder, None, STRESS_TEXTS + SENTENCES))
    slow = transformers.AutoTokenizer.from_pretrained(folder, use_fast=False)
    fast = transformers.AutoTokenizer.from_pretrained(folder, use_fast=True)
    if family in WITH_JSON:
        fast.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    prefix_space = architectures.wants_prefix_space(None, FAMILIES[family].model_type)
    ids: list[list[int]] = []
    differ: dict[str, list[int]] = {}
    for number, text in enumerate(STRESS_TEXTS):
        ids.append(fast_ids(fast, text, prefix_space=prefix_space))
        old = slow_ids(slow, text, prefix_space=prefix_space)
        if old != ids[-1] and not slow.is_fast:
            differ[str(number)] = old
    lines = ",\n".join(json.dumps(i, separators=(",", ":")) for i in ids)
    (folder / "ids.json").write_text(
        f'{{"ids": [\n{lines}\n],\n"slow": {json.dumps(differ)}\n}}\n', encoding="utf-8"
    )
    return len(differ), len(ids)


if __name__ == "__main__":
    assert transformers.__version__.startswith("4.")
    with quiet():
        for name in RECORDED:
            print(name, *record(name))  # noqa: T201
