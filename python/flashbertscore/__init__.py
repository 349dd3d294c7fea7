"""FlashBERTScore: the numbers of ``bert-score``, faster, without a similarity matrix."""

from flashbertscore import functional
from flashbertscore._version import __version__
from flashbertscore.ops import isa, isas

__all__ = ["__version__", "functional", "isa", "isas"]
