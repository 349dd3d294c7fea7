"""What a number was computed with, in one line."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

import torch

from flashbertscore._version import __version__

#: The version that bert-score 0.3.13 states of itself, and so stands in its hashes.
REFERENCE_VERSION = "0.3.12"

#: Counted up when a rule changes that can change a score (see README, compatibility).
RULES = 1


@cache
def transformers_version() -> str:
    """Return the version of transformers, without the second that importing it takes."""
    return version("transformers")


def get_hash(
    model: str,
    num_layers: int,
    idf: object,
    rescale_with_baseline: bool,
    use_custom_baseline: bool,
    use_fast_tokenizer: bool,
) -> str:
    """Return the reference's hash, byte for byte.

    It says what bert-score 0.3.13 would say of the same settings, its version included, so that
    results can be told to be comparable. What computed them is in `BERTScorer.signature`.
    """
    rescaled = ("-custom-rescaled" if use_custom_baseline else "-rescaled") * bool(
        rescale_with_baseline
    )
    return (
        f"{model}_L{num_layers}{'_idf' if idf else '_no-idf'}"
        f"_version={REFERENCE_VERSION}(hug_trans={transformers_version()})"
        f"{rescaled}{'_fast-tokenizer' if use_fast_tokenizer else ''}"
    )


def get_signature(
    *,
    model: str,
    revision: str | None,
    tokenizer: str,
    max_length: int | None,
    long: str,
    layer: int | None,
    dtype: str,
    embeddings: str,
    form: str,
    idf: str,
    baseline: str,
) -> str:
    """Return all that pins a score: model and its revision, tokenizer, layer, dtype and rules.

    Args:
        model: name or path.
        revision: commit of the Hub, None for a folder.
        tokenizer: class of the tokenizer.
        max_length: ids that a text may have.
        long: what happens to longer texts: "truncate", "error", or "window-SIZE-STRIDE".
        layer: None for all of them.
        dtype: of the model, "tf32" where products are rounded to it.
        embeddings: the dtype that embeddings are held in.
        form: how the encoder runs, "plain" or what of it runs otherwise; the same numbers up to
            rounding.
        idf: "no", "yes" or "given".
        baseline: "no", "shipped" or the path of a file.
    """
    fields = {
        "model": model,
        "revision": revision or "local",
        "layer": "all" if layer is None else layer,
        "tokenizer": tokenizer,
        "max_length": max_length or "none",
        "long": long,
        "dtype": dtype,
        "embeddings": embeddings,
        "encoder": form,
        "idf": idf,
        "baseline": baseline,
        "rules": RULES,
        "flashbertscore": __version__,
        "transformers": transformers_version(),
        "torch": torch.__version__,
    }
    return "|".join(f"{name}:{value}" for name, value in fields.items())
