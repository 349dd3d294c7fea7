"""What a scorer was made with, as the reference lets one read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flashbertscore import baselines, signature

if TYPE_CHECKING:
    import torch

Idf = Mapping[int, float]
Path = str | os.PathLike[str]


class Settings:
    """The read-only settings of a scorer."""

    _lang: str | None
    _idf: bool | Idf
    _model_type: str
    _num_layers: int
    _rescale_with_baseline: bool
    _use_fast_tokenizer: bool
    _baseline_vals: torch.Tensor | None
    all_layers: bool
    baseline_path: Path
    use_custom_baseline: bool
    batch_size: int
    nthreads: int

    @property
    def lang(self) -> str | None:
        """Language as it was given."""
        return self._lang

    @property
    def idf(self) -> bool | Idf:
        """What was given for `idf`."""
        return self._idf

    @property
    def model_type(self) -> str:
        """Name or path of the model."""
        return self._model_type

    @property
    def num_layers(self) -> int:
        """Layer that embeddings are taken from."""
        return self._num_layers

    @property
    def rescale_with_baseline(self) -> bool:
        """Whether scores are rescaled."""
        return self._rescale_with_baseline

    @property
    def baseline_vals(self) -> torch.Tensor:
        """Baselines of P, R and F1, float32 [3], or [L, 1, 3] with all layers.

        Raises:
            ValueError: there are none.
        """
        if self._baseline_vals is None:
            self._baseline_vals = self._find_baseline(all_layers=self.all_layers)
        if self._baseline_vals is None:
            raise ValueError(self._missing_baseline())
        return self._baseline_vals

    @property
    def use_fast_tokenizer(self) -> bool:
        """What was given; the ids are those of the fast tokenizer either way."""
        return self._use_fast_tokenizer

    @property
    def hash(self) -> str:
        """The reference's hash of the settings."""
        return signature.get_hash(
            self.model_type,
            self.num_layers,
            self.idf,
            self.rescale_with_baseline,
            self.use_custom_baseline,
            self.use_fast_tokenizer,
        )

    def __repr__(self) -> str:
        """Return the reference's representation."""
        return (
            f"{type(self).__name__}(hash={self.hash}, batch_size={self.batch_size}, "
            f"nthreads={self.nthreads})"
        )

    def _find_baseline(self, *, all_layers: bool = False) -> torch.Tensor | None:
        return baselines.lookup(
            self.lang.lower() if self.lang is not None else None,
            self.model_type,
            self.num_layers,
            all_layers=all_layers,
            path=self.baseline_path if self.use_custom_baseline else None,
        )

    def _missing_baseline(self) -> str:
        path = self.baseline_path if self.use_custom_baseline else None
        return baselines.missing(self.lang, self.model_type, path)
