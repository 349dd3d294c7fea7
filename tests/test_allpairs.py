"""Fear: a grid or an MBR choice differs from what scoring its pairs one by one gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flashbertscore import BERTScorer, TextError, allpairs, encoder, matrix, memory

CANDS = ["a cat sat on the mat", "the dog barked", "a cat sat on the mat", "it rains in Spain"]
REFS = ["the cat is on the mat", "it rains in Spain", "a dog barked loudly at the moon"]


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids of several tiles, as those of hundreds of texts are."""
    monkeypatch.setattr(matrix, "TILE_PAIRS", 1)
    monkeypatch.setattr(matrix, "LEAST_REFERENCES", 2)


@pytest.fixture
def scorer(tiny_model: Callable[[str], str]) -> BERTScorer:
    return BERTScorer(tiny_model("bert"), num_layers=3, device="cpu")


def one_by_one(scorer: BERTScorer, cands: list[str], refs: list[str]) -> torch.Tensor:
    pairs = [(c, r) for c in cands for r in refs]
    found = scorer.score([c for c, _ in pairs], [r for _, r in pairs])
    scores = torch.stack([torch.as_tensor(x) for x in found])
    return scores.unflatten(-1, (len(cands), len(refs)))


def test_every_candidate_with_every_reference(scorer: BERTScorer) -> None:
    grid = torch.stack(scorer.score_matrix(CANDS, REFS))
    torch.testing.assert_close(grid, one_by_one(scorer, CANDS, REFS), rtol=0, atol=1e-6)
    same = torch.stack(scorer.score_matrix(REFS, REFS))
    torch.testing.assert_close(same, one_by_one(scorer, REFS, REFS), rtol=0, atol=1e-6)
    assert torch.equal(same[0], same[1].T)
    assert torch.equal(same[2], same[2].T)


def test_with_idf_and_baseline(tiny_model: Callable[[str], str]) -> None:
    scorer = BERTScorer(
        tiny_model("bert"),
        num_layers=2,
        idf=True,
        idf_sents=REFS,
        device="cpu",
    )
    grid = torch.stack(scorer.score_matrix(CANDS, REFS))
    torch.testing.assert_close(grid, one_by_one(scorer, CANDS, REFS), rtol=0, atol=1e-6)


def test_rescaled(tiny_model: Callable[[str], str], tmp_path: object) -> None:
    path = f"{tmp_path}/baseline.tsv"
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write("LAYER,P,R,F\n" + "".join(f"{i},.{i + 1},.{i + 2},.{i + 3}\n" for i in range(5)))
    options = {"lang": "en", "rescale_with_baseline": True, "baseline_path": path, "device": "cpu"}
    for all_layers in (False, True):
        scorer = BERTScorer(tiny_model("bert"), num_layers=3, all_layers=all_layers, **options)  # type: ignore[arg-type]
        grid = torch.stack(scorer.score_matrix(CANDS, REFS))
        expected = one_by_one(scorer, CANDS, REFS)
        assert grid.shape == expected.shape
        torch.testing.assert_close(grid, expected, rtol=0, atol=1e-5)


def test_empty_texts_score_zero_and_are_named_once(scorer: BERTScorer) -> None:
    with pytest.warns(UserWarning, match=r"^cands\[1\]: no tokens in the text; the raw") as caught:
        grid = torch.stack(scorer.score_matrix(["a cat", " ", "a dog"], ["a cat"]))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert grid[:, 1].tolist() == [[0.0]] * 3
    with pytest.warns(UserWarning, match="longer than the .* tokens that the model takes"):
        scorer.score_matrix(["a cat " * 1000], ["a cat"])


@pytest.mark.parametrize(("c", "r"), [(0, 3), (2, 0), (0, 0)])
def test_nothing_to_score(scorer: BERTScorer, c: int, r: int) -> None:
    assert [x.shape for x in scorer.score_matrix(CANDS[:c], REFS[:r])] == [(c, r)] * 3


GROUPS = [
    ["a cat sat", "the cat sat down", "a cat sat", "dogs bark"],
    ["one alone"],
    ["it rains", "it pours", "it rains a lot", "it rains in Spain", "no rain"],
]


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("utility", allpairs.UTILITIES)
@pytest.mark.parametrize("budget", [1, 100_000])
def test_mbr(
    scorer: BERTScorer, utility: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allpairs, "GROUP_TOKENS", budget)
    weights = [[0.1, 0.2, 0.3, 0.4], [2.0], [1, 0, 5, 2, 2]]
    for given in (None, weights):
        found = scorer.mbr(GROUPS, utilities=utility, weights=given)
        for g, group in enumerate(GROUPS):
            table = one_by_one(scorer, group, group)[allpairs.UTILITIES.index(utility)]
            w = torch.tensor([1.0] * len(group) if given is None else given[g])
            expected = (table * w).sum(1) / w.sum()
            torch.testing.assert_close(found.expected[g], expected, rtol=0, atol=1e-6)
            assert found.utility[g] == found.expected[g][found.index[g]]
            assert found.utility[g] == found.expected[g].max()
            assert found.index[g] == (found.expected[g] == found.expected[g].max()).nonzero()[0]


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("utility", allpairs.UTILITIES)
def test_mbr_rescales_every_pair_with_the_baseline_of_its_utility(
    utility: str, tiny_model: Callable[[str], str], tmp_path: Path
) -> None:
    path = tmp_path / "baseline.csv"
    path.write_text("LAYER,P,R,F\n" + "".join(f"{i},.1,.3,.2\n" for i in range(5)))
    options = {"lang": "en", "rescale_with_baseline": True, "baseline_path": path}
    scorer = BERTScorer(tiny_model("bert"), num_layers=3, device="cpu", **options)  # type: ignore[arg-type]
    for group, expected in zip(GROUPS, scorer.mbr(GROUPS, utilities=utility).expected, strict=True):
        table = one_by_one(scorer, group, group)[allpairs.UTILITIES.index(utility)]
        torch.testing.assert_close(expected, table.mean(1), rtol=0, atol=1e-5)


def test_a_text_that_fails_is_named(
    tiny_model: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.clear_cache()
    scorer = BERTScorer(tiny_model("bert"), num_layers=3, device="cpu")
    forward = scorer._model.forward

    def fail(ids: torch.Tensor, **options: object) -> object:
        if ids.shape[1] > 20:
            raise IndexError("out of range")
        return forward(ids, **options)

    monkeypatch.setattr(scorer._model, "forward", fail)
    long = "a cat " * 20
    for call, place in (
        (lambda: scorer.score_matrix(["a cat", long], ["a dog"]), r"cands\[1\]"),
        (lambda: scorer.score_matrix(["a cat"], ["a dog", long]), r"refs\[1\]"),
        (lambda: scorer.mbr([["a cat"], ["a dog", long]]), r"hypotheses\[1\]\[1\]"),
        (lambda: scorer.explain("a cat", long), "reference"),
    ):
        with pytest.raises(TextError, match=f"^{place}: the model failed: IndexError: out of rang"):
            call()
    encoder.clear_cache()


def test_texts_go_through_the_encoder_as_those_of_score(
    scorer: BERTScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`memory.encode` is what keeps TF32 and the memory of a GPU as they are asked for."""
    calls: list[int] = []
    original = memory.encode

    def spy(*arguments: Any, **options: Any) -> torch.Tensor:
        calls.append(options["batch_size"])
        return original(*arguments, **options)

    monkeypatch.setattr(memory, "encode", spy)
    scorer.score_matrix(CANDS, REFS)
    scorer.mbr(GROUPS)
    scorer.explain("a cat", "a dog")
    assert calls == [64, 64, 64]


def test_equal_hypotheses_count_as_often_as_they_stand_there(scorer: BERTScorer) -> None:
    """Three of four say the same: the first of them is chosen."""
    found = scorer.mbr([["dogs bark", "a cat sat", "a cat sat", "a cat sat"]])
    assert found.index.tolist() == [1]


def test_mbr_mistakes_are_named(scorer: BERTScorer, tiny_model: Callable[[str], str]) -> None:
    with pytest.raises(ValueError, match=r"^hypotheses\[1\]: expected at least one text, got none"):
        scorer.mbr([["a"], []])
    with pytest.raises(TypeError, match=r"^hypotheses\[0\]\[1\]: expected str, got None"):
        scorer.mbr([["a", None]])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^hypotheses\[0\]: expected a sequence of str, got str"):
        scorer.mbr(["ab"])
    with pytest.raises(TypeError, match=r"^hypotheses: expected a list of lists of str, got str"):
        scorer.mbr("ab")
    with pytest.raises(ValueError, match=r"^utilities: expected one of precision, recall, f1, got"):
        scorer.mbr([["a"]], utilities="bleu")
    with pytest.raises(ValueError, match=r"^weights\[0\]: expected 2 numbers, got shape \[1\]"):
        scorer.mbr([["a", "b"]], weights=[[1.0]])
    with pytest.raises(ValueError, match=r"^weights\[0\]: expected finite values >= 0 with a sum"):
        scorer.mbr([["a", "b"]], weights=[[0.0, 0.0]])
    with pytest.raises(ValueError, match=r"^weights: expected one list for each of 1 groups"):
        scorer.mbr([["a", "b"]], weights=[])
    layers = BERTScorer(tiny_model("bert"), num_layers=3, all_layers=True, device="cpu")
    with pytest.raises(ValueError, match="all_layers has no one utility"):
        layers.mbr([["a"]])
    weighed = BERTScorer(tiny_model("bert"), num_layers=3, idf=True, device="cpu")
    with pytest.raises(AssertionError, match="IDF weights are not computed"):
        weighed.score_matrix(["a"], ["b"])


def test_no_groups(scorer: BERTScorer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scorer.mbr([])
    assert found.index.tolist() == found.utility.tolist() == found.expected == []
