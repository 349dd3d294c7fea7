"""One test for each row of the README's table of deliberate differences from bert-score.

(The rows about the command line are in test_compatibility_cli.py.)
"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from flashbertscore import encoder, idf
from flashbertscore.scorer import BERTScorer, score
from helpers import reference
from helpers.texts import CANDIDATES, REFERENCES, SENTENCES
from helpers.tiny_models import FAMILIES, save_model

LAYER = 3
TOLERANCE = 1e-6
TinyModel = Callable[[str], str]


def largest(ours: Any, theirs: Any) -> float:
    return reference.largest_difference(ours, theirs)


class Opposed(torch.nn.Module):
    """Embeddings that point one way for texts with a certain id, and the other for all else."""

    def __init__(self, model: torch.nn.Module, token: int) -> None:  # noqa: D107
        super().__init__()
        self.model, self.token = model, token

    def forward(self, ids: torch.Tensor, **_: Any) -> tuple[torch.Tensor]:
        sign = 1.0 - 2.0 * (ids == self.token).any(dim=1)  # [B]
        slope = 0.5 + 0.01 * torch.arange(ids.shape[1]).expand(ids.shape)  # [B, N]
        return (torch.stack([torch.ones_like(slope), slope], dim=-1) * sign[:, None, None],)


def test_row_padding(tiny_model: TinyModel) -> None:
    """A negative maximum stays negative; the reference floors it at 0 where a text is padded."""
    path = tiny_model("bert")
    ours, theirs = BERTScorer(path, LAYER), reference.make_scorer(path, LAYER)
    for scorer in (ours, theirs):
        snow = scorer._tokenizer("snow")["input_ids"][1]
        scorer._model = Opposed(scorer._model, snow)
    candidates, references = ["snow", "snow on the line was there"], ["fruit", "fruit and bread"]
    together = ours.score(candidates, references)
    assert (together[0] < -0.9).all()
    for n, pair in enumerate(zip(candidates, references, strict=True)):
        for a, b in zip(together, ours.score(*([text] for text in pair)), strict=True):
            assert torch.equal(a[n], b[0])
    assert largest(together, theirs.score(candidates, references, batch_size=1)) < TOLERANCE
    padded = theirs.score(candidates, references, batch_size=2)
    assert padded[0][0] == 0
    assert padded[1][0] == 0


def test_row_token_ids(tiny_model: TinyModel) -> None:
    """RoBERTa's first word has its space on every version, slow or fast."""
    path = tiny_model("roberta")
    ids = encoder.load(path, LAYER).tokenize(["snow", "It is snow"]).tolist()
    assert ids[0][1:-1] == ids[1][-len(ids[0]) + 1 : -1]
    slow, fast = (
        score(CANDIDATES, REFERENCES, path, LAYER, use_fast_tokenizer=fast, return_hash=True)
        for fast in (False, True)
    )
    assert largest(slow[0], fast[0]) == 0.0
    assert fast[1] == slow[1] + "_fast-tokenizer"


def test_row_empty_text(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    candidates = ["", *CANDIDATES[:3], "\u200b", "  "]
    references = [[REFERENCES[0], "x"], [REFERENCES[1]], ["", "a boat"], [""], ["a"], ["", " "]]
    with pytest.warns(UserWarning, match="no tokens in the text") as caught:
        precision, recall, f1 = score(candidates, references, path, LAYER)
    (warning,) = [w for w in caught if "no tokens" in str(w.message)]
    for place in ("cands[0]", "cands[4]", "refs[2][0]", "refs[3][0]", "refs[5][0]", "refs[5][1]"):
        assert place in str(warning.message)
    assert "cands[1]" not in str(warning.message)
    assert "refs[2][1]" not in str(warning.message)
    assert warning.filename == __file__
    for value in (precision, recall, f1):
        assert value[[0, 3, 4, 5]].tolist() == [0.0] * 4
        assert (value[[1, 2]] > 0).all()


@pytest.mark.parametrize("family", ["bert", "roberta", "bart", "longformer", "deberta-v3", "t5"])
def test_row_no_declared_length(family: str, tmp_path: Path) -> None:
    """A tokenizer without a limit: as much as the table of positions takes; no table, no limit."""
    sizes = {"bert": 64, "roberta": 66, "bart": 64, "longformer": 66}
    settings = {"max_position_embeddings": sizes[family]} if family in sizes else {}
    path = str(save_model(family, tmp_path / family, max_length=None, **settings))
    loaded = encoder.load(path, 2)
    assert loaded.tokenizer.model_max_length > 10**9
    assert loaded.max_length == (64 if family in sizes else None)
    long = " ".join(SENTENCES[:6])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = score([long, "snow"], [long + " and more", "snow"], path, 2)
    assert all(value.isfinite().all() for value in values)
    assert any("were cut" in str(w.message) for w in caught) == (family in sizes)


def test_row_long_texts_are_reported(tiny_model: TinyModel) -> None:
    scorer = BERTScorer(tiny_model("bert"), LAYER)
    scorer.score(CANDIDATES, REFERENCES)
    assert scorer.tokens_seen == scorer.tokens_total > 0
    total = scorer.tokens_total
    scorer._tokenizer.model_max_length = 10
    message = rf"24 distinct texts are longer than the 10 .* \d+ of {total} tokens are scored"
    with pytest.warns(UserWarning, match=message) as caught:
        scorer.score(CANDIDATES, REFERENCES)
    assert len(caught) == 1
    assert scorer.tokens_total == total
    assert scorer.tokens_seen < total


def test_row_long_texts_have_the_reference_s_scores(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    ours, theirs = BERTScorer(path, LAYER), reference.make_scorer(path, LAYER)
    for scorer in (ours, theirs):
        scorer._tokenizer.model_max_length = 10
    with pytest.warns(UserWarning, match="were cut"):
        got = ours.score(CANDIDATES, REFERENCES)
    assert largest(got, theirs.score(CANDIDATES, REFERENCES, batch_size=1)) < TOLERANCE


def test_row_batch_size(tiny_model: TinyModel) -> None:
    scorer = BERTScorer(tiny_model("bert"), LAYER, batch_size=3, cache_bytes=0)
    seen: list[int] = []
    scorer._model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    scorer.score(CANDIDATES, REFERENCES)
    assert max(seen) == 3
    seen.clear()
    scorer.score(CANDIDATES, REFERENCES, batch_size=5)
    assert max(seen) == 5
    encoder.clear_cache()


def test_row_length_mismatch(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    message = "Different number of candidates and references: 3 candidates, 2 references"
    with pytest.raises(AssertionError, match=message):
        score(CANDIDATES[:3], REFERENCES[:2], path, LAYER)
    scorer = BERTScorer(path, LAYER)
    with pytest.raises(AssertionError, match=message):
        scorer.score(CANDIDATES[:3], REFERENCES[:2])
    with pytest.raises(AssertionError, match="Different number"):
        scorer.score(CANDIDATES[:3], [[r] for r in REFERENCES[:4]])


@pytest.mark.parametrize(
    ("cands", "refs", "message"),
    [
        ("a text", ["a"], r"cands: expected a sequence of str, got str \(did you mean"),
        (["a"], "a text", r"refs: expected a sequence of str, got str"),
        (None, ["a"], r"cands: expected a sequence of str, got None"),
        (["a"], 3, r"refs: expected a sequence of str, got int"),
        ({"a"}, ["a"], r"cands: expected a sequence of str, got set"),
        ({"a": 1}, ["a"], r"cands: expected a sequence of str, got dict"),
        (b"a", ["a"], r"cands: expected a sequence of str, got bytes"),
        (["a", None], ["a", "b"], r"cands\[1\]: expected str, got None"),
        (["a", float("nan")], ["a", "b"], r"cands\[1\]: expected str, got NaN"),
        (["a", 1.5], ["a", "b"], r"cands\[1\]: expected str, got float"),
        (["a", "b"], ["a", None], r"refs\[1\]: expected str, got None"),
        (["a", "b"], ["a", ["b"]], r"refs\[1\]: expected str, got list"),
        (["a", "b"], [["a"], "b"], r"refs\[1\]: expected a sequence of str, got str"),
        (["a", "b"], [["a"], ["b", None]], r"refs\[1\]\[1\]: expected str, got None"),
        (["a", "b"], [None, "b"], r"refs\[0\]: expected a sequence of str, got None"),
        (["a", "b"], [["a"], None], r"refs\[1\]: expected a sequence of str, got None"),
        ([["a"]], ["a"], r"cands\[0\]: expected str, got list"),
    ],
)
def test_row_not_a_text(cands: Any, refs: Any, message: str, tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    with pytest.raises(TypeError, match=message):
        score(cands, refs, path, LAYER)
    with pytest.raises(TypeError, match=message):
        BERTScorer(path, LAYER).score(cands, refs)


def test_row_other_collections(tiny_model: TinyModel) -> None:
    """Tuples, arrays, Series (also filtered ones) and generators are collections like lists."""
    import numpy as np  # noqa: PLC0415
    import pandas as pd  # noqa: PLC0415

    path = tiny_model("bert")
    expected = score(CANDIDATES, REFERENCES, path, LAYER)
    series = pd.Series([*SENTENCES[:1], *CANDIDATES])[1:]
    for cands, refs in (
        (tuple(CANDIDATES), REFERENCES),
        (series, pd.Series(REFERENCES)),
        (np.array(CANDIDATES), np.array(REFERENCES, dtype=object)),
        (iter(CANDIDATES), (text for text in REFERENCES)),
        (CANDIDATES, tuple((text,) for text in REFERENCES)),
        (CANDIDATES, np.array(REFERENCES)[:, None]),
        (series, pd.Series([[text] for text in REFERENCES])),
    ):
        assert largest(score(cands, refs, path, LAYER), expected) == 0.0


def test_row_all_layers_with_several_references(tiny_model: TinyModel) -> None:
    """Shape (L, N), the maximum per layer (test_parity_models.py compares with the oracle)."""
    groups = [[r, CANDIDATES[0]] for r in REFERENCES]
    path = tiny_model("bert")
    several = score(CANDIDATES, groups, path, LAYER, all_layers=True)
    each = [
        score(CANDIDATES, [group[k] for group in groups], path, LAYER, all_layers=True)
        for k in range(2)
    ]
    for got, *singles in zip(several, *each, strict=True):
        assert got.shape == (5, len(CANDIDATES))
        assert (got - torch.stack(singles).amax(dim=0)).abs().max() < TOLERANCE
    assert several[0].argmax(dim=1).tolist() == [0] * 5  # its own text is among the references


def test_row_nothing_to_score(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    for got in (score([], [], path, LAYER), BERTScorer(path, LAYER).score([], [])):
        assert [value.shape for value in got] == [(0,)] * 3
        assert {value.dtype for value in got} == {torch.float32}
    got = score([], [], path, LAYER, all_layers=True)
    assert [value.shape for value in got] == [(5, 0)] * 3
    values, text = score([], [], path, LAYER, return_hash=True, idf=True)
    assert len(values) == 3
    assert "_idf_" in text


def test_row_empty_group(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    with pytest.raises(ValueError, match=r"refs\[1\]: expected at least one reference, got none"):
        score(["a", "b"], [["a"], []], path, LAYER)
    with pytest.raises(ValueError, match=r"refs\[0\]"):
        BERTScorer(path, LAYER).score(["a"], [()])


def test_row_idf_dictionary_of_a_scorer(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    weights = reference.bert_score.utils.get_idf_dict(
        REFERENCES, reference.make_scorer(path, LAYER)._tokenizer, nthreads=0
    )
    ours = BERTScorer(path, LAYER, idf=weights)
    expected = reference.score(CANDIDATES, REFERENCES, path, LAYER, idf=weights)
    assert largest(ours.score(CANDIDATES, REFERENCES), expected) < TOLERANCE
    assert ours._idf_dict is weights
    assert ours.hash.split("_version")[0].endswith("_idf")


def test_row_t5_in_a_path(tiny_model: TinyModel, tmp_path: Path) -> None:
    """The config decides what is loaded, not a "t5" in the name of a folder."""
    bert, t5 = tmp_path / "checkpoint5", tmp_path / "encoder"
    shutil.copytree(tiny_model("bert"), bert)
    shutil.copytree(tiny_model("t5"), t5)
    for family, moved in (("bert", bert), ("t5", t5)):
        assert type(encoder.load(str(moved), LAYER).model).__name__.lower().startswith(family)
        original = score(CANDIDATES, REFERENCES, tiny_model(family), LAYER)
        assert largest(score(CANDIDATES, REFERENCES, str(moved), LAYER), original) == 0.0


def test_row_layer_of_a_local_path(tmp_path: Path) -> None:
    path = save_model("bert", tmp_path / "somewhere", num_hidden_layers=10)
    with pytest.raises(ValueError, match=r"num_layers.*Pass num_layers between 0 and 10"):
        BERTScorer(str(path))
    config = path / "config.json"
    text = config.read_text(encoding="utf-8")
    config.write_text(
        text.replace("{", '{\n  "_name_or_path": "bert-base-uncased",', 1), encoding="utf-8"
    )
    assert BERTScorer(str(path)).num_layers == 9


def test_row_models_stay_loaded(tiny_model: TinyModel) -> None:
    path = tiny_model("electra")
    encoder.clear_cache()
    first = encoder.load(path, LAYER)
    score(CANDIDATES, REFERENCES, path, LAYER)
    assert encoder.load(path, LAYER).model is first.model
    assert BERTScorer(path, LAYER)._model is first.model
    assert encoder.load(path, LAYER - 1).model is not first.model
    encoder.clear_cache()
    second = encoder.load(path, LAYER)
    assert second.model is not first.model
    with BERTScorer(path, LAYER) as scorer:
        assert scorer._model is second.model
    assert encoder.load(path, LAYER).model is not second.model
    with pytest.raises(ValueError, match="closed"):
        scorer.score(CANDIDATES, REFERENCES)
    scorer.close()


def test_row_missing_baseline(tiny_model: TinyModel, tmp_path: Path) -> None:
    """`score` warns and returns raw numbers, and its hash says that they are raw."""
    path = tiny_model("bert")
    raw, plain = score(CANDIDATES, REFERENCES, path, LAYER, return_hash=True)
    for options in ({}, {"baseline_path": str(tmp_path / "none.tsv")}):
        with pytest.warns(UserWarning, match=f"Baseline not Found for {path} on en at "):
            got, text = score(
                CANDIDATES,
                REFERENCES,
                path,
                LAYER,
                lang="en",
                rescale_with_baseline=True,
                return_hash=True,
                **options,
            )
        assert largest(got, raw) == 0.0
        assert text == plain
        scorer = BERTScorer(path, LAYER, lang="en", rescale_with_baseline=True, **options)
        with pytest.raises(ValueError, match="Baseline not Found"):
            scorer.score(CANDIDATES, REFERENCES)


def test_row_idf_is_counted_in_this_process(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(multiprocessing.Process, "start", refuse)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    path = tiny_model("bert")
    values = score(CANDIDATES, REFERENCES, path, LAYER, idf=True, nthreads=4)
    expected = reference.score(CANDIDATES, REFERENCES, path, LAYER, idf=True, nthreads=0)
    assert largest(values, expected) < TOLERANCE


def test_row_t5_text_of_one_piece(tiny_model: TinyModel) -> None:
    """The reference takes its two ids for an empty text: P = R = 0, and yet F = 1."""
    path = tiny_model("t5")
    loaded = encoder.load(path, LAYER)
    pieces = [
        text
        for text in ("a", "the", "was", "to", "and")
        if len(loaded.tokenize([text]).tolist()[0]) == 2
    ]
    ours = score(pieces, pieces, path, LAYER)
    theirs = reference.score(pieces, pieces, path, LAYER)
    assert pieces
    assert (theirs[0] == 0).all()
    assert (theirs[1] == 0).all()
    assert ((theirs[2] - 1).abs() < TOLERANCE).all()
    assert all(((value - 1).abs() < TOLERANCE).all() for value in ours)


def test_row_t5_empty_text(tiny_model: TinyModel) -> None:
    """The one id of T5's empty text is a special token: scores 0. The reference scores it."""
    path = tiny_model("t5")
    with pytest.warns(UserWarning, match=r"cands\[0\]"):
        ours = score([""], REFERENCES[:1], path, LAYER)
    assert [value.tolist() for value in ours] == [[0.0]] * 3
    with reference.given_ids(lambda text: encoder.load(path, LAYER).tokenize([text]).tolist()[0]):
        theirs = reference.score([""], REFERENCES[:1], path, LAYER)
    assert theirs[2].item() != 0


def test_row_empty_text_with_a_weight_for_its_special_tokens(tiny_model: TinyModel) -> None:
    """P = R = F = 0. The reference has P = R = 0 and an F that belongs to neither."""
    path = tiny_model("bert")
    loaded = encoder.load(path, LAYER)
    weights = idf.Idf(lambda: 1.0, {loaded.tokenizer.cls_token_id: 0.5})
    with pytest.warns(UserWarning, match=r"cands\[0\]"):
        ours = score([""], REFERENCES[:1], path, LAYER, idf=weights)
    assert [value.tolist() for value in ours] == [[0.0]] * 3
    with reference.given_ids(lambda text: loaded.tokenize([text]).tolist()[0]):
        theirs = reference.score([""], REFERENCES[:1], path, LAYER, idf=weights)
    assert theirs[0].item() == 0
    assert theirs[2].item() != 0


def test_row_lone_surrogate(tiny_model: TinyModel) -> None:
    with pytest.raises(ValueError, match=r"refs\[0\]\[1\]: .* lone surrogate U\+D800 at char.* 2"):
        score(["a"], [["a", "ab\ud800"]], tiny_model("bert"), LAYER)


def test_row_pickling_a_scorer_with_idf(tiny_model: TinyModel) -> None:
    scorer = BERTScorer(tiny_model("bert"), LAYER, idf=True, idf_sents=REFERENCES)
    expected = scorer.score(CANDIDATES, REFERENCES)
    written = pickle.dumps(scorer)
    assert len(written) < 200_000  # without the model
    for again in (pickle.loads(written), copy.copy(scorer)):  # noqa: S301 - our own
        assert largest(again.score(CANDIDATES, REFERENCES), expected) == 0.0
        assert again.hash == scorer.hash


def test_row_half_precision_checkpoint(tiny_model: TinyModel, tmp_path: Path) -> None:
    """Scored in float32 on every version (test_parity_models.py compares the numbers)."""
    half = tmp_path / "half"
    shutil.copytree(tiny_model("bert"), half)
    with reference.quiet():
        model = getattr(transformers, FAMILIES["bert"].model).from_pretrained(half)
        model.half().save_pretrained(half)
    assert next(BERTScorer(str(half), LAYER)._model.parameters()).dtype == torch.float32


def test_row_negative_weight(tiny_model: TinyModel) -> None:
    """The reference divides by whatever the weights sum to."""
    path = tiny_model("bert")
    token = encoder.load(path, LAYER).tokenize([CANDIDATES[0]]).tolist()[0][1]
    for bad in (-1.0, float("nan"), float("inf")):
        weights = idf.Idf(lambda: 1.0, {token: bad})
        with pytest.raises(ValueError, match=rf"idf: expected finite weights >= 0, .* id {token}$"):
            score(CANDIDATES, REFERENCES, path, LAYER, idf=weights)


class Vanishing(torch.nn.Module):
    """Embeddings that are zero for one id."""

    def __init__(self, model: torch.nn.Module, token: int) -> None:  # noqa: D107
        super().__init__()
        self.model, self.token = model, token

    def forward(self, ids: torch.Tensor, **arguments: Any) -> tuple[torch.Tensor]:
        hidden: torch.Tensor = self.model(ids, **arguments)[0]
        return (hidden * (ids != self.token)[..., None],)


def test_row_zero_vector(tiny_model: TinyModel) -> None:
    """Similarity 0 with everything; in the reference P = R = NaN for its pair."""
    path = tiny_model("bert")
    ours, theirs = BERTScorer(path, LAYER), reference.make_scorer(path, LAYER)
    token = encoder.load(path, LAYER).tokenize([CANDIDATES[0]]).tolist()[0][1]
    for scorer in (ours, theirs):
        scorer._model = Vanishing(scorer._model, token)
    got = ours.score(CANDIDATES[:1], REFERENCES[:1])
    assert all(value.isfinite().all() for value in got)
    with reference.quiet():
        precision, recall, _ = theirs.score(CANDIDATES[:1], REFERENCES[:1])
    assert precision.isnan().all()
    assert recall.isnan().all()
