"""Fear: the README promises what no test shows."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_every_row_of_the_compatibility_table_has_its_test_and_every_test_its_row() -> None:
    rows = re.findall(r"^\| .* \| `(test_row_\w+)` \|$", README, re.MULTILINE)
    sources = [
        path.read_text(encoding="utf-8") for path in REPOSITORY.glob("tests/test_compat*.py")
    ]
    tests = [
        name for text in sources for name in re.findall(r"^def (test_row_\w+)", text, re.MULTILINE)
    ]
    assert len(rows) > 20
    assert sorted(rows) == sorted(tests)  # each of them once


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (REPOSITORY / target).exists(), target


def test_commands_exist() -> None:
    parts = [REPOSITORY / "Makefile", *(REPOSITORY / "make").glob("*.mk")]
    makefile = "\n".join(part.read_text(encoding="utf-8") for part in parts)
    for target in re.findall(r"\bmake ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
