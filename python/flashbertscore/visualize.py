"""`plot_example`: the token similarities of one pair of texts as a picture."""

from __future__ import annotations

import os
import sys

from flashbertscore import baselines, models
from flashbertscore.scorer import BERTScorer


def plot_example(  # noqa: PLR0913 - the reference's signature
    candidate: str,
    reference: str,
    model_type: str | os.PathLike[str] | None = None,
    num_layers: int | None = None,
    lang: str | None = None,
    rescale_with_baseline: bool = False,  # noqa: FBT001, FBT002
    baseline_path: str | os.PathLike[str] | None = None,
    use_fast_tokenizer: bool = False,  # noqa: FBT001, FBT002
    fname: str | os.PathLike[str] = "",
) -> None:
    """Draw the cosine similarity of every candidate token with every reference token.

    Args:
        candidate: one text.
        reference: one text.
        model_type: name or folder of the model; None takes the default of `lang`.
        num_layers: layer of the embeddings; None takes the default of the model.
        lang: language code; needed without `model_type` and for rescaling.
        rescale_with_baseline: rescale the similarities with the baseline of F.
        baseline_path: baseline file to use instead of the shipped tables.
        use_fast_tokenizer: accepted as in the reference; the ids are the same either way.
        fname: file to save the picture in; empty saves none.

    Raises:
        AssertionError: neither `lang` nor `model_type`, or rescaling without `lang`.
        ImportError: matplotlib is not installed.
        TypeError: `candidate` or `reference` is not a str.
        ValueError: no default layer is known, or a text has no token.

    Where there is no baseline, a line on stderr says so and the similarities are not rescaled.
    """
    name, layer = models.resolve(model_type, lang, num_layers)
    if model_type is None and lang is not None:
        lang = lang.lower()
    if (
        rescale_with_baseline
        and lang is not None
        and baselines.lookup(lang, name, layer, path=baseline_path) is None
    ):
        print(f"Warning: {baselines.missing(lang, name, baseline_path)}", file=sys.stderr)  # noqa: T201
        rescale_with_baseline = False
    BERTScorer(
        name,
        num_layers=layer,
        lang=lang,
        rescale_with_baseline=rescale_with_baseline,
        baseline_path=baseline_path,
        use_fast_tokenizer=use_fast_tokenizer,
    ).plot_example(candidate, reference, fname)
