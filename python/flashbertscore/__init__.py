"""FlashBERTScore: the numbers of ``bert-score``, faster, without a similarity matrix."""

import importlib.util

from flashbertscore._version import __version__

__all__ = ["__version__"]

# Without torch there is still flashbertscore.numpy.
if importlib.util.find_spec("torch") is not None:
    from flashbertscore import functional
    from flashbertscore.bert_scorer import PairScores
    from flashbertscore.compat import install_as_bert_score
    from flashbertscore.encoder import clear_cache
    from flashbertscore.ops import build_info, isa, isas
    from flashbertscore.scorer import BERTScorer, plot_example, score
    from flashbertscore.storage import StorageError
    from flashbertscore.tokens import LongTextError, TextError

    __all__ += [
        "BERTScorer",
        "LongTextError",
        "PairScores",
        "StorageError",
        "TextError",
        "build_info",
        "clear_cache",
        "functional",
        "install_as_bert_score",
        "isa",
        "isas",
        "plot_example",
        "score",
    ]
