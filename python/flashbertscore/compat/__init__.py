"""Faces of other libraries: code written for them runs here without an edit."""

from __future__ import annotations

import sys
import warnings

__all__ = ["install_as_bert_score"]


def install_as_bert_score() -> None:
    """Let `import bert_score` in this process give FlashBERTScore.

    Call it before the code that imports bert_score; `evaluate.load("bertscore")` and harnesses
    then run unchanged, whether bert-score is installed or not. Calling it again does nothing.

    Warns:
        RuntimeWarning: bert_score itself was imported before. From now on an import gives
            FlashBERTScore, but modules that already took names from bert_score keep those.
    """
    from flashbertscore.compat import bert_score  # noqa: PLC0415 - only those who install it pay

    before = sys.modules.get("bert_score")
    if before is bert_score:
        return
    if before is not None:
        warnings.warn(
            "bert_score was imported before install_as_bert_score(); modules that already hold "
            "names from it keep using it. Call install_as_bert_score() first.",
            RuntimeWarning,
            stacklevel=2,
        )
    sys.modules["bert_score"] = bert_score
    sys.modules["bert_score.utils"] = bert_score.utils
    # Both have what the reference's modules of these names expose, and more.
    sys.modules["bert_score.scorer"] = bert_score
    sys.modules["bert_score.score"] = bert_score
