"""The face of `score` and `BERTScorer`: what code written for the reference relies on."""

from __future__ import annotations

import copy
import gc
import inspect
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashbertscore import encoder, inputs, matching, plotting, scorer, signature
from flashbertscore.corpus import gather
from flashbertscore.scorer import BERTScorer, plot_example, score
from flashbertscore.tokens import Tokens
from helpers import reference
from helpers.texts import CANDIDATES, REFERENCES, SENTENCES

LAYER = 3
TinyModel = Callable[[str], str]


@pytest.mark.parametrize("name", ["score", "plot_example", "BERTScorer", "BERTScorer.score"])
def test_signatures_are_the_reference_s(name: str) -> None:
    ours: Any = scorer
    theirs: Any = reference.bert_score
    for part in name.split("."):
        ours, theirs = getattr(ours, part), getattr(theirs, part)
    expected = inspect.signature(theirs).parameters
    found = {
        key: parameter
        for key, parameter in inspect.signature(ours).parameters.items()
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    }
    assert list(found) == list(expected)
    for key, parameter in expected.items():
        if (name, key) == ("BERTScorer.score", "batch_size"):
            assert found[key].default is None  # the scorer's own
        else:
            assert found[key].default == parameter.default


OPTIONS: list[dict[str, Any]] = [
    {},
    {"idf": True, "use_fast_tokenizer": True},
    {"idf": {1: 2.0}, "lang": "en"},
    {"lang": "en", "rescale_with_baseline": True},
    {"lang": "en", "rescale_with_baseline": True, "baseline_path": "some/file.tsv"},
    {"batch_size": 3, "nthreads": 7, "all_layers": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_hash_and_representation_are_the_reference_s(
    options: dict[str, Any], tiny_model: TinyModel
) -> None:
    path = tiny_model("bert")
    ours = BERTScorer(path, LAYER, **options)
    theirs = reference.make_scorer(
        path, LAYER, **({"nthreads": 4} | options | {"use_fast_tokenizer": False})
    )
    theirs._use_fast_tokenizer = options.get("use_fast_tokenizer", False)
    assert ours.hash == theirs.hash
    assert repr(ours) == str(ours) == repr(theirs)
    assert reference.bert_score.__version__ == signature.REFERENCE_VERSION


@pytest.mark.parametrize("options", OPTIONS)
def test_attributes_are_the_reference_s(options: dict[str, Any], tiny_model: TinyModel) -> None:
    ours = BERTScorer(tiny_model("bert"), LAYER, **options)
    theirs = reference.make_scorer(
        tiny_model("bert"), LAYER, **({"nthreads": 4} | options | {"use_fast_tokenizer": False})
    )
    own = {"_model", "_tokenizer", "baseline_path", "_use_fast_tokenizer", "_idf_dict"}
    for name, value in vars(theirs).items():
        assert hasattr(ours, name), name
        if name not in own:
            assert getattr(ours, name) == value, name
    for name in ("lang", "idf", "model_type", "num_layers", "rescale_with_baseline"):
        assert getattr(ours, name) == getattr(theirs, name)
        with pytest.raises(AttributeError):
            setattr(ours, name, None)
    assert Path(BERTScorer(tiny_model("bert"), LAYER).baseline_path).is_file()


def test_baseline_values_are_the_reference_s(tiny_model: TinyModel, tmp_path: Path) -> None:
    file = tmp_path / "mine.tsv"
    rows = ["LAYER,P,R,F"] + [f"{layer},0.{layer}1,0.{layer}2,0.{layer}3" for layer in range(5)]
    file.write_text("\n".join(rows), encoding="utf-8")
    for every in (False, True):
        options = {
            "lang": "en",
            "rescale_with_baseline": True,
            "baseline_path": str(file),
            "all_layers": every,
        }
        ours = BERTScorer(tiny_model("bert"), LAYER, **options)
        theirs = reference.make_scorer(tiny_model("bert"), LAYER, **options)
        with reference.quiet():
            assert torch.equal(ours.baseline_vals, theirs.baseline_vals)


def test_the_language_of_a_scorer_may_be_in_capitals(tiny_model: TinyModel) -> None:
    """The reference raises ValueError at score time: it never lowers it."""
    path = tiny_model("bert")
    made = BERTScorer(path, LAYER, lang="EN", rescale_with_baseline=True)
    made._model_type, made._num_layers = "roberta-large", 17
    assert made.lang == "EN"
    expected = torch.tensor([0.83150584, 0.8314941, 0.83122575])
    assert torch.equal(made.baseline_vals, expected)


def test_language_or_model_is_needed() -> None:
    for call in (
        lambda **options: score(["a"], ["b"], **options),
        BERTScorer,
        lambda **options: plot_example("a", "b", **options),
    ):
        with pytest.raises(AssertionError, match="Either lang or model_type should be specified"):
            call()
        with pytest.raises(AssertionError, match="Need to specify Language when rescaling"):
            call(model_type="x", num_layers=1, rescale_with_baseline=True)


def test_the_tokenizer_of_a_scorer_is_its_own_and_takes_effect(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    one, two = BERTScorer(path, LAYER), BERTScorer(path, LAYER)
    expected = two.score(CANDIDATES, REFERENCES)
    one._tokenizer.model_max_length = 8
    with pytest.warns(UserWarning, match="longer than the 8 tokens"):
        cut = one.score(CANDIDATES, REFERENCES)
    assert reference.largest_difference(cut, expected) > 1e-3
    for again in (two.score(CANDIDATES, REFERENCES), score(CANDIDATES, REFERENCES, path, LAYER)):
        assert reference.largest_difference(again, expected) == 0.0


def test_a_limit_that_the_model_cannot_take_is_lowered(tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER)
    made._tokenizer.model_max_length = 10**6
    with pytest.warns(UserWarning, match="longer than the 512 tokens"):
        made.score([" ".join(SENTENCES)], ["snow"])


def test_model_and_idf_of_a_scorer_can_be_replaced(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    made = BERTScorer(path, LAYER, idf=True)
    made._model = encoder.load(path, 1).model
    made._idf_dict = BERTScorer(path, 1, idf=True, idf_sents=REFERENCES)._idf_dict
    expected = score(CANDIDATES, REFERENCES, path, 1, idf=True)
    assert reference.largest_difference(made.score(CANDIDATES, REFERENCES), expected) == 0.0


def test_a_tokenizer_of_another_kind_brings_its_own_rules(tiny_model: TinyModel) -> None:
    made, other = (BERTScorer(tiny_model(family), LAYER) for family in ("longformer", "roberta"))
    expected = other._encoder.tokenize(["snow"]).tolist()
    assert made._encoder.tokenize(["snow"]).tolist() != expected
    made._tokenizer = other._tokenizer
    assert made._encoder.tokenize(["snow"]).tolist() == expected


class Bare:
    """A tokenizer without special tokens, as those of many decoders: an empty text has no id."""

    def __init__(self, inner: Any) -> None:  # noqa: D107
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: D105
        return getattr(self._inner, name)

    def __call__(self, texts: Any, *, add_special_tokens: bool = True, **options: Any) -> Any:
        assert add_special_tokens
        return self._inner(texts, add_special_tokens=False, **options)


@pytest.mark.filterwarnings("ignore:.*no tokens in the text")
@pytest.mark.parametrize("all_layers", [False, True])
def test_texts_without_a_single_token_score_zero(all_layers: bool, tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER, all_layers=all_layers)
    made._tokenizer = Bare(made._tokenizer)
    shape = (5,) if all_layers else ()
    for cands, refs in ((["", " "], ["", ""]), (["", "a cat"], ["a dog", "a cat"])):
        for _ in range(2):  # the second time some are kept
            scores = torch.stack(list(made.score(cands, refs)))
            assert scores.shape == (3, *shape, 2)
            assert not scores[..., 0].any()
            assert (scores[..., 1] > 0.99).all() == bool(cands[1].strip())
    assert not torch.stack(made.score_matrix(["", ""], [" "])).any()


@pytest.mark.parametrize("options", [{}, {"idf": True}])
def test_verbose_says_what_the_reference_says(
    options: dict[str, Any], tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_model("bert")
    call = {"model_type": path, "num_layers": LAYER, "verbose": True} | options
    said = []
    for function in (score, reference.score):
        function(CANDIDATES, REFERENCES, **call)
        lines = capsys.readouterr().out.splitlines()
        said.append([line if "done in" not in line else line.split("done in")[0] for line in lines])
    ours, theirs = said
    assert ours == theirs
    assert len(ours) == (6 if options else 4)


def test_verbose_scorer_and_given_idf(
    tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]
) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER)
    made.score(CANDIDATES, [[r, "snow"] for r in REFERENCES], verbose=True)
    first, second, third, last = capsys.readouterr().out.splitlines()
    assert first == "calculating scores..."
    assert second == "computing bert embedding."
    assert third == "computing greedy matching."
    assert last.startswith("done in 0.")
    assert last.endswith(" sentences/sec")
    weights = dict.fromkeys(range(1000), 1.0)
    score(["a"], ["b"], tiny_model("bert"), LAYER, idf=weights, verbose=True)
    assert capsys.readouterr().out.startswith("using predefined IDF dict...\ncalculating scores")
    made.score(CANDIDATES, REFERENCES)
    assert capsys.readouterr() == ("", "")


def test_signature_pins_what_a_score_depends_on(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    base = BERTScorer(path, LAYER)
    texts = {base.signature}
    others: list[dict[str, Any]] = [
        {"idf": True},
        {"idf": {1: 1.0}},
        {"dtype": "bfloat16"},
        {"embeddings_dtype": "bfloat16"},
        {"long_documents": "window"},
        {"long_documents": "window", "window": 256},
        {"long_documents": "window", "stride": 64},
        {"long_documents": "error"},
        {"all_layers": True},
        {"lang": "en", "rescale_with_baseline": True},
        {"lang": "en", "rescale_with_baseline": True, "baseline_path": "x"},
    ]
    texts |= {BERTScorer(path, LAYER, **options).signature for options in others}
    texts.add(BERTScorer(path, LAYER - 1).signature)
    assert len(texts) == 13
    base._tokenizer.model_max_length = 12
    assert base.signature not in texts
    assert f"model:{path}|" in base.signature
    assert "|max_length:12|long:truncate|dtype:float32|embeddings:float32|" in base.signature
    assert base.signature == BERTScorer(path, LAYER, batch_size=1).signature.replace(":512", ":12")


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16, "float64"])
def test_other_dtypes(dtype: Any, tiny_model: TinyModel) -> None:
    path = tiny_model("electra")
    exact = score(CANDIDATES, REFERENCES, path, LAYER)
    other = score(CANDIDATES, REFERENCES, path, LAYER, dtype=dtype)
    difference = reference.largest_difference(other, exact)
    assert difference < (1e-6 if dtype == "float64" else 2e-2)
    assert difference > 0 or dtype == "float64"


def test_a_dtype_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"dtype: expected float32, .* or tf32, got int8"):
        BERTScorer("x", 1, dtype="int8")


@pytest.mark.parametrize("dtype", ["float16", torch.float16, "tf32"])
def test_a_dtype_that_the_cpu_has_no_arithmetic_for(dtype: Any) -> None:
    for call in (BERTScorer, lambda *args, **options: score(["a"], ["b"], *args, **options)):
        with pytest.raises(ValueError, match=r"needs a CUDA device, got device cpu: .*bfloat16"):
            call("x", 1, dtype=dtype, device="cpu")


@pytest.mark.parametrize("all_layers", [False, True])
def test_chunks_bound_what_is_held_and_change_nothing(
    all_layers: bool,
    tiny_model: TinyModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Texts are encoded once however many pairs share them, and dropped after their last pair."""
    candidates = [*CANDIDATES, *CANDIDATES[:5], CANDIDATES[0]]
    groups = [[REFERENCES[i % 7], REFERENCES[(i * 5) % 11]] for i in range(len(candidates))]
    items, several = inputs.read_items(candidates, groups)
    corpus = gather(list(items), several=several)
    loaded = encoder.load(tiny_model("bert"), LAYER, all_layers=all_layers)
    tokens = loaded.tokenize(corpus.texts)
    weights = torch.rand(tokens.tokens_seen)
    expected = matching.score_pairs(loaded, tokens, corpus.pairs, weights)
    matched: list[int] = []
    encoded: list[int] = []
    original = matching._match

    def spy(embeddings: torch.Tensor, *rest: Any) -> torch.Tensor:
        matched.append(embeddings.shape[-2])
        return original(embeddings, *rest)

    monkeypatch.setattr(matching, "_match", spy)
    for chunk in (1, 60, 150):
        matched.clear()
        encoded.clear()
        got = matching.score_pairs(
            loaded,
            tokens,
            corpus.pairs,
            weights,
            chunk_tokens=chunk,
            progress=lambda _, taken: encoded.append(taken),
        )
        assert (got - expected).abs().max() < 1e-6
        assert sum(encoded) == tokens.tokens_seen
        assert len(matched) > 3
        assert max(matched) < tokens.tokens_seen


class Watched:
    """An encoder whose embeddings can be seen to be freed: NumPy owns their memory."""

    all_layers = False
    device = torch.device("cpu")

    def __init__(self) -> None:  # noqa: D107
        self.given: list[weakref.ref[Any]] = []
        self.alive: list[int] = []

    def encode(self, tokens: Tokens, texts: torch.Tensor, **_: Any) -> torch.Tensor:
        gc.collect()
        self.alive.append(sum(reference() is not None for reference in self.given))
        values = np.random.default_rng(0).random((tokens.tokens_seen, 4), dtype=np.float32)
        self.given.append(weakref.ref(values))
        assert len(texts)
        return torch.from_numpy(values)


def test_embeddings_are_freed_before_the_next_chunk_is_encoded() -> None:
    texts = 40
    tokens = Tokens(
        torch.arange(texts * 5),
        torch.arange(0, texts * 5 + 1, 5),
        torch.full((texts,), 5),
        torch.zeros(texts, dtype=torch.bool),
    )
    apart = torch.arange(texts).view(-1, 2)
    shared = torch.stack([torch.arange(1, texts), torch.zeros(texts - 1, dtype=torch.int64)], 1)
    for pairs in (apart, shared):
        watched: Any = Watched()
        weights = torch.ones(tokens.tokens_seen)
        scores = matching.score_pairs(watched, tokens, pairs, weights, chunk_tokens=20)
        assert scores.shape == (len(pairs), 3)
        assert len(watched.alive) >= 9
        assert set(watched.alive) == {0}


def test_nan_of_a_layer_is_reported_once_by_pair(tiny_model: TinyModel) -> None:
    options = {"all_layers": True, "idf": True}
    with pytest.warns(UserWarning, match=r"^pair 0, pair 1: P or R is NaN") as caught:
        score(CANDIDATES[:2], [REFERENCES[0]] * 2, tiny_model("bert"), LAYER, **options)
    assert len(caught) == 1


def test_embeddings_that_are_not_finite_are_reported(tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER)
    made._model = copy.deepcopy(made._model)
    torch.nn.init.constant_(made._model.encoder.layer[-1].output.LayerNorm.bias, torch.nan)
    with pytest.warns(UserWarning, match="the model gives embeddings that are not finite"):
        precision, _, f1 = made.score(["snow"], ["rain"], batch_size=1)
    assert precision.isnan().all()
    assert f1.tolist() == [0.0]


def test_matching_holds_no_matrix_of_similarities() -> None:
    """One pair of 2,000 tokens each: the matrix would have 4,000,000 entries."""
    lengths = torch.tensor([2000, 2000])
    tokens = Tokens(
        torch.arange(4000), torch.tensor([0, 2000, 4000]), lengths, torch.tensor([False, False])
    )
    embeddings, weights = torch.randn(4000, 8), torch.ones(4000)
    tracked: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            leaves = torch.utils._pytree.tree_leaves(out)
            tracked.extend(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
            return out

    with Watch():
        matching._match(embeddings, tokens, torch.tensor([[0, 1]]), weights)
    assert 0 < max(tracked) <= embeddings.numel()


def test_threads_may_share_a_scorer(tiny_model: TinyModel) -> None:
    made = BERTScorer(tiny_model("bert"), LAYER)
    expected = [made.score([c], [r]) for c, r in zip(CANDIDATES, REFERENCES, strict=True)]
    got: dict[int, Any] = {}

    def work(n: int) -> None:
        got[n] = made.score([CANDIDATES[n]], [REFERENCES[n]])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(CANDIDATES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, right in enumerate(expected):
        assert reference.largest_difference(got[n], right) < 1e-6


def test_plot_example_hands_over_what_the_reference_draws(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(
        plotting, "draw_similarity", lambda *args, **options: drawn.append((args, options))
    )
    path = tiny_model("bert")
    plot_example("It is raining.", "A small boat", path, LAYER, fname="x.png")
    (values, rows, columns), options = drawn.pop()
    assert rows == ["it", "is", "rain", "##ing", "."]
    assert values.shape == (len(rows), len(columns))
    assert options == {"rescaled": False, "fname": "x.png"}
    loaded = encoder.load(path, LAYER)
    tokens = loaded.tokenize(["It is raining.", "A small boat"])
    a, b = loaded.encode(tokens).split(tokens.lengths.tolist())
    right = torch.cosine_similarity(a[1:-1, None], b[None, 1:-1], dim=-1)
    assert (values - right).abs().max() < 1e-6
    with pytest.warns(UserWarning, match="Baseline not Found"):
        plot_example("a", "b", path, LAYER, lang="en", rescale_with_baseline=True)
    assert drawn.pop()[1] == {"rescaled": False, "fname": ""}
    file = tmp_path / "mine.tsv"
    file.write_text("LAYER,P,R,F\n3,0.1,0.2,0.5\n", encoding="utf-8")
    options = {"lang": "en", "rescale_with_baseline": True, "baseline_path": str(file)}
    plot_example("It is raining.", "A small boat", path, LAYER, **options)
    (rescaled, *_), options = drawn.pop()
    assert (rescaled - (values - 0.5) / 0.5).abs().max() < 1e-6
    assert options["rescaled"]
    with pytest.raises(TypeError, match="candidate: expected str, got list"):
        plot_example(["a"], "b", path, LAYER)


def test_plot_example_of_t5_leaves_out_only_the_end_of_sentence(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plotting, "draw_similarity", lambda *args, **_: drawn.append(args))
    made = BERTScorer(tiny_model("t5"), LAYER, all_layers=True)
    made.plot_example("the rain", "snow")
    values, rows, columns = drawn.pop()
    ids = made._tokenizer("the rain")["input_ids"]
    assert len(rows) == len(ids) - 1
    assert values.shape == (len(rows), len(columns))
