"""The names of the package bert_score 0.3.13, served by FlashBERTScore.

Use it by name (`from flashbertscore.compat import bert_score`) or let
`flashbertscore.install_as_bert_score()` put it where `import bert_score` finds it.
"""

from __future__ import annotations

from flashbertscore import scorer
from flashbertscore.compat.bert_score import _lazy, utils
from flashbertscore.compat.bert_score.utils import (
    __version__,
    bert_cos_score_idf,
    cache_scibert,
    get_bert_embedding,
    get_hash,
    get_idf_dict,
    get_model,
    get_tokenizer,
    lang2model,
    model2layers,
    sent_encode,
)
from flashbertscore.scorer import plot_example, score

__all__ = [
    "BERTScorer",
    "__version__",
    "bert_cos_score_idf",
    "cache_scibert",
    "get_bert_embedding",
    "get_hash",
    "get_idf_dict",
    "get_model",
    "get_tokenizer",
    "lang2model",
    "model2layers",
    "plot_example",
    "score",
    "scorer",
    "sent_encode",
    "utils",
]

_LEAKED = {
    "AutoTokenizer": "transformers:AutoTokenizer",
    "defaultdict": "collections:defaultdict",
    "make_axes_locatable": "mpl_toolkits.axes_grid1:make_axes_locatable",
    "np": "numpy",
    "os": "os",
    "pathlib": "pathlib",
    "pd": "pandas",
    "plt": "matplotlib.pyplot",
    "sys": "sys",
    "time": "time",
    "torch": "torch",
    "warnings": "warnings",
}

__getattr__ = _lazy.names(__name__, _LEAKED)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LEAKED})


class BERTScorer(scorer.BERTScorer):
    """`flashbertscore.BERTScorer`, with a hash that is never taken for that of another scorer.

    Hugging Face evaluate keeps a scorer and compares its hash with `utils.get_hash(...)` of the
    next call. The hash says nothing of IDF sentences, baseline file, language or device, so the
    scorer of the first call would serve the second with the wrong ones. Here a scorer's `hash` and
    the result of `get_hash` are each the same string as in the reference, but do not compare equal
    to each other. The new scorer that evaluate then makes costs little: its model is cached.
    """

    @property
    def hash(self) -> str:
        """The configuration as one string, as in the reference."""
        return utils.ScorerHash(super().hash)
