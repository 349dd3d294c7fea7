"""Draw the token similarities of one pair, as bert-score's `plot_example` does."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

_log = logging.getLogger(__name__)

# The reference gives every token one inch. Within these limits ours is the same picture; beyond
# them its axes do not fit (a text of one token) or its memory does not (10 GB for 500 x 500).
_MIN_INCHES = 3.0
_MAX_INCHES = 50.0
_LABEL_POINTS = 10.0
_LEGIBLE_POINTS = 5.0  # text that would be smaller than this is left out

# Back ends that only write files; plt.show() would warn that it cannot show anything.
_FILE_BACKENDS = {"agg", "cairo", "pdf", "pgf", "ps", "svg", "template"}


def draw_similarity(
    similarity: ArrayLike,
    candidate_tokens: Sequence[str],
    reference_tokens: Sequence[str],
    *,
    rescaled: bool = False,
    fname: str | os.PathLike[str] = "",
) -> None:
    """Draw a similarity matrix with its tokens, save it if `fname` is given, and show it.

    One cell a token pair: shade from 0 (white) to 1 (dark blue), the value with three decimals.
    Long texts get smaller cells; when the text in them would be too small to read, numbers and then
    token labels are left out. Where matplotlib has no window to draw in, nothing is shown.

    Args:
        similarity: [N, M], cosine similarities, or rescaled ones; a tensor on the CPU or an array.
        candidate_tokens: the N labels of the rows.
        reference_tokens: the M labels of the columns.
        rescaled: say in the title that the values are rescaled.
        fname: file to write; its suffix sets the format. Empty writes none.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: a side has no tokens, or the matrix is not [N, M].
    """
    values = np.asarray(similarity, dtype=np.float64)
    shape = (len(candidate_tokens), len(reference_tokens))
    if values.shape != shape:
        msg = f"similarity: expected [N, M] = {list(shape)}, got {list(values.shape)}"
        raise ValueError(msg)
    if 0 in shape:
        side = "candidate" if shape[0] == 0 else "reference"
        msg = f"{side}: no tokens to draw (the text is empty)"
        raise ValueError(msg)
    plt = _pyplot()
    inches = min(1.0, _MAX_INCHES / max(shape))
    height, width = (max(_MIN_INCHES, inches * tokens) for tokens in shape)
    fig, ax = plt.subplots(figsize=(width, height))
    image = ax.imshow(values, cmap="Blues", vmin=0, vmax=1)
    _label(ax, candidate_tokens, reference_tokens, cell_points=72 * inches)
    ax.set_xlabel("Reference (tokenized)", fontsize=14)
    ax.set_ylabel("Candidate (tokenized)", fontsize=14)
    ax.set_title("Similarity Matrix" + (" (after Rescaling)" if rescaled else ""), fontsize=14)
    _add_colorbar(fig, ax, image)
    if _LABEL_POINTS * inches >= _LEGIBLE_POINTS:
        _write_values(ax, values, _LABEL_POINTS * inches)
    fig.tight_layout()
    if fname != "":
        fig.savefig(fname, dpi=100)
        _log.info("saved the similarity plot to %s", fname)
    if plt.get_backend().lower() not in _FILE_BACKENDS:
        plt.show()
    if fname != "" and not plt.isinteractive():
        plt.close(fig)  # a loop over many pairs would else keep every figure in memory


def _pyplot() -> Any:  # noqa: ANN401 - a module; matplotlib is optional
    try:
        import matplotlib.pyplot as plt  # noqa: PLC0415 - only plotting pays for it
    except ImportError as error:
        msg = "plot_example needs matplotlib, which does not import here (pip install matplotlib)"
        raise ImportError(msg) from error
    return plt


def _label(
    ax: Any,  # noqa: ANN401
    candidate_tokens: Sequence[str],
    reference_tokens: Sequence[str],
    *,
    cell_points: float,
) -> None:
    ax.grid(visible=False)
    size = min(_LABEL_POINTS, 0.8 * cell_points)
    if size < _LEGIBLE_POINTS:
        return
    # parse_math=False: a token may hold dollar signs.
    ax.set_xticks(
        np.arange(len(reference_tokens)),
        labels=reference_tokens,
        fontsize=size,
        parse_math=False,
        rotation=45,
        ha="right",
        rotation_mode="anchor",
    )
    ax.set_yticks(
        np.arange(len(candidate_tokens)),
        labels=candidate_tokens,
        fontsize=size,
        parse_math=False,
    )


def _add_colorbar(fig: Any, ax: Any, image: Any) -> None:  # noqa: ANN401
    from mpl_toolkits.axes_grid1 import (  # type: ignore[import-untyped]  # noqa: PLC0415
        make_axes_locatable,
    )

    beside = make_axes_locatable(ax).append_axes("right", size="2%", pad=0.2)
    fig.colorbar(image, cax=beside)


def _write_values(ax: Any, values: np.ndarray[Any, Any], size: float) -> None:  # noqa: ANN401
    for (row, column), value in np.ndenumerate(values):
        ax.text(
            column,
            row,
            f"{value:.3f}",
            ha="center",
            va="center",
            fontsize=size,
            color="w" if value >= 0.5 else "k",  # readable on the dark half
        )
