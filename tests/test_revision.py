"""Fear: a pinned revision is not the one that is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.tiny_models import save_model

NAME = "someone/tiny-bert"
COMMITS = ("1" * 40, "2" * 40)

PROGRAM = f"""
import json
from flashbertscore import BERTScorer
found = []
for revision in (None, *{COMMITS!r}, "old"):
    scorer = BERTScorer({NAME!r}, num_layers=3, revision=revision, device="cpu")
    f1 = scorer.score(["It is snow on the line"], ["fruit and bread"])[2]
    found.append([f1.item(), scorer.signature])
print(json.dumps(found))
"""


def test_each_revision_of_a_name_on_the_hub_has_its_own_weights(tmp_path: Path) -> None:
    """A cache as the Hub's client leaves it, with two commits, read without a network."""
    folder = tmp_path / "models--someone--tiny-bert"
    for seed, commit in enumerate(COMMITS):
        save_model("bert", folder / "snapshots" / commit, seed=seed)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMITS[1])
    (folder / "refs" / "old").write_text(COMMITS[0])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    newest, first, second, old = json.loads(done.stdout)
    assert newest == second
    assert old == first
    assert first[0] != second[0]
    for (_, signature), commit in ((first, COMMITS[0]), (second, COMMITS[1])):
        assert commit in signature
