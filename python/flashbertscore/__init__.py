"""FlashBERTScore: the numbers of ``bert-score``, faster, without a similarity matrix."""

from flashbertscore import functional
from flashbertscore._version import __version__
from flashbertscore.bert_scorer import PairScores
from flashbertscore.compat import install_as_bert_score
from flashbertscore.encoder import clear_cache
from flashbertscore.ops import build_info, isa, isas
from flashbertscore.scorer import BERTScorer, plot_example, score
from flashbertscore.tokens import TextError

__all__ = [
    "BERTScorer",
    "PairScores",
    "TextError",
    "__version__",
    "build_info",
    "clear_cache",
    "functional",
    "install_as_bert_score",
    "isa",
    "isas",
    "plot_example",
    "score",
]
