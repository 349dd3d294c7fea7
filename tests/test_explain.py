"""Fear: an explanation does not add up to the score, or a page does not show what it says."""

from __future__ import annotations

import html.parser
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flashbertscore import BERTScorer, page
from flashbertscore.cli import main as command
from helpers.tiny_models import FAMILIES

CANDIDATE = "the cat sat on the mat, and the dog barked"
REFERENCE = "a cat is on the mat while a dog barks loudly"


@pytest.fixture
def scorer(tiny_model: Callable[[str], str]) -> BERTScorer:
    return BERTScorer(tiny_model("bert"), num_layers=3, device="cpu")


def test_contributions_sum_to_the_scores(tiny_model: Callable[[str], str]) -> None:
    for idf in (False, True):
        scorer = BERTScorer(
            tiny_model("bert"), num_layers=3, idf=idf, idf_sents=[REFERENCE, "a dog"], device="cpu"
        )
        found = scorer.explain(CANDIDATE, REFERENCE)
        precision, recall, f1 = (float(x) for x in scorer.score([CANDIDATE], [REFERENCE]))
        assert (found.precision, found.recall, found.f1) == pytest.approx((precision, recall, f1))
        for tokens, score in ((found.candidate, precision), (found.reference, recall)):
            assert math.fsum(t.contribution for t in tokens) == pytest.approx(score, abs=1e-6)
            assert math.fsum(t.weight for t in tokens) == pytest.approx(1)
            assert math.fsum(t.cost for t in tokens) == pytest.approx(1 - score, abs=1e-6)
            assert tokens[0].special
            assert tokens[-1].special


def test_matches_are_the_best_ones(scorer: BERTScorer) -> None:
    found = scorer.explain(CANDIDATE, REFERENCE)
    encoder = scorer._encoder
    x, y = (
        torch.nn.functional.normalize(encoder.encode(encoder.tokenize([t])), dim=1)
        for t in (CANDIDATE, REFERENCE)
    )
    table = x @ y.T
    assert [t.match for t in found.candidate] == table.argmax(1).tolist()
    assert [t.match for t in found.reference] == table.argmax(0).tolist()
    same = scorer.explain(CANDIDATE, CANDIDATE)
    assert [t.match for t in same.candidate] == list(range(len(same.candidate)))
    assert same.f1 == pytest.approx(1)


def test_rescaled_scores_stand_beside_raw_ones(
    tiny_model: Callable[[str], str], tmp_path: Path
) -> None:
    table = tmp_path / "b.tsv"
    table.write_text("LAYER,P,R,F\n" + "".join(f"{i},.1,.2,.3\n" for i in range(4)))
    options = {"lang": "en", "rescale_with_baseline": True, "baseline_path": str(table)}
    scorer = BERTScorer(tiny_model("bert"), num_layers=3, device="cpu", **options)  # type: ignore[arg-type]
    found = scorer.explain(CANDIDATE, REFERENCE)
    expected = [float(x) for x in scorer.score([CANDIDATE], [REFERENCE])]
    assert found.rescaled == pytest.approx(expected)
    assert found.f1 == pytest.approx(expected[2] * 0.7 + 0.3)


def test_an_empty_text_has_no_matches_that_count(scorer: BERTScorer) -> None:
    with pytest.warns(UserWarning, match="candidate: no tokens in the text"):
        found = scorer.explain("", REFERENCE)
    assert (found.precision, found.recall, found.f1) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"xlm", "gpt2"}))
def test_pieces_are_the_text(tiny_model: Callable[[str], str], family: str) -> None:
    scorer = BERTScorer(tiny_model(family), num_layers=2, device="cpu")
    text = "The unforgettable cat sat on mats, 日本語 and עברית."
    pieces = scorer.pieces(text)
    encoder = scorer._encoder
    ids = encoder.tokenize([text]).tolist()[0]
    assert len(pieces) == len(ids) == len(scorer.explain(text, "a cat").candidate)
    # White space aside, which special and unknown tokens have on both sides, it is what the ids
    # decode to; characters of several tokens show as replacement characters until the last.
    decoded = encoder.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    joined = "".join(pieces)
    assert "".join(joined.split()) == "".join(decoded.split()) or "\ufffd" in joined
    assert "cat sat on" in joined or "\u0120" in joined  # a tokenizer that has no decoder


class Outline(html.parser.HTMLParser):
    """What a page holds."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.tokens = 0
        self.outside: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tokens += "t" in (values.get("class") or "").split() and tag == "span"
        self.outside += [v for n, v in attrs if n in {"src", "href"} and v]
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag:
            assert self.open.pop() in {"p", "tr", "td", "th", "div", "title"}
        self.open.pop()


def test_page_is_whole_and_needs_no_network(scorer: BERTScorer) -> None:
    texts = "</script><b>&amp; a cat", "<!-- a dog -->"
    found = scorer.explain(*texts)
    text = page.render(found, *(scorer.pieces(t) for t in texts), title="a < b", signature="x|y")
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.outside == []
    assert "http" not in text
    assert outline.tokens == len(found.candidate) + len(found.reference)
    assert text.count("</script>") == 2
    assert "<title>a &lt; b</title>" in text
    data = text.split('id="matches">')[1].split("</script>")[0]
    rows = json.loads(data)
    assert [row[0] for row in rows[0]] == [t.match for t in found.candidate]
    assert f"{found.f1:.6f}" in text


@pytest.fixture
def run(
    tiny_model: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        options = ["-m", tiny_model("bert"), "-l", "3", "--device", "cpu"]
        code = command.main(["explain", *arguments, *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_command_prints_json_of_the_explanation(
    run: Callable[..., tuple[int, str, str]], scorer: BERTScorer
) -> None:
    code, out, err = run("-c", CANDIDATE, "-r", REFERENCE, "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    found = scorer.explain(CANDIDATE, REFERENCE)
    assert record == json.loads(json.dumps(found.as_dict())) | {"signature": scorer.signature}


def test_command_prints_a_line_a_token(
    run: Callable[..., tuple[int, str, str]], scorer: BERTScorer
) -> None:
    code, out, err = run("-c", CANDIDATE, "-r", REFERENCE)
    assert (code, err) == (0, "")
    found = scorer.explain(CANDIDATE, REFERENCE)
    lines = out.splitlines()
    assert lines[0] == f"Candidate: {len(found.candidate)} tokens, precision {found.precision:.6f}"
    assert len(lines) == 2 * 3 + len(found.candidate) + len(found.reference) + 3
    assert lines[-3] == f"F1 {found.f1:.6f}"
    tokens = len(found.candidate) + len(found.reference)
    assert lines[-2] == f"Coverage: all {tokens} tokens of 2 texts"
    _, out, _ = run("-c", CANDIDATE, "-r", REFERENCE, "--top", "2")
    assert len(out.splitlines()) == 2 * 3 + 4 + 3


def test_command_takes_a_line_of_two_files_and_writes_a_page(
    run: Callable[..., tuple[int, str, str]], scorer: BERTScorer, tmp_path: Path
) -> None:
    for name, text in (("c", CANDIDATE), ("r", REFERENCE)):
        (tmp_path / name).write_text(f"another line\n{text}\n", encoding="utf-8")
    target = tmp_path / "page.html"
    files = "-c", str(tmp_path / "c"), "-r", str(tmp_path / "r")
    assert run(*files, "--line", "2", "--html", str(target)) == (0, "", "")
    found = scorer.explain(CANDIDATE, REFERENCE)
    assert f"<b>{found.f1:.6f}</b>" in target.read_text(encoding="utf-8")
    code, _, err = run(*files, "--line", "3")
    assert code == 2
    assert err == "flashbertscore explain: error: --line: expected 1 to 2, got 3\n"
    code, _, err = run(*files, "--line", "1", "--top", "0")
    assert code == 2
    assert err.endswith("--top: expected at least 1, got 0\n")


PROGRAM = """
import sys, resource, torch, types
from flashbertscore import explanation, page
from flashbertscore.allpairs import Method
class Tokenizer:
    all_special_ids = [0]
    sep_token_id = cls_token_id = 0
    def decode(self, ids, **options): return " ".join(f"word{i}" for i in ids)
from flashbertscore.tokens import Tokens
n = 10_000
class Encoder:
    tokenizer = Tokenizer()
    max_length = None
    all_layers = False
    def tokenize(self, texts):
        ids = torch.arange(1, n * len(texts) + 1)
        offsets = torch.arange(len(texts) + 1) * n
        return Tokens(ids, offsets, offsets.diff(), torch.zeros(len(texts), dtype=torch.bool))
    device = torch.device("cpu")
    def encode(self, tokens, texts, **options): return torch.randn(len(tokens.ids), 16)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = explanation.explain(Method(Encoder(), None, None, 64), "a", "b")
pieces = [[t.text for t in side] for side in (found.candidate, found.reference)]
text = page.render(found, *pieces, title="long", signature="")
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(len(found.candidate), len(text), grown / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_ten_thousand_tokens_need_no_matrix() -> None:
    """10,000 x 10,000 float32 similarities would be 381 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    tokens, size, memory = (float(x) for x in done.stdout.split())
    assert tokens == 10_000
    assert size < 4e6
    assert memory < 120


def test_json_has_null_where_a_number_is_none(
    run: Callable[..., tuple[int, str, str]], scorer: BERTScorer
) -> None:
    weightless = dict.fromkeys(range(len(scorer._tokenizer)), 0.0)
    made = BERTScorer(scorer.model_type, scorer.num_layers, idf=weightless)
    found = made.explain(CANDIDATE, REFERENCE)
    assert math.isnan(found.precision)
    record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert (record["precision"], record["recall"], record["f1"]) == (None, None, 0.0)
    code, out, err = run("-c", CANDIDATE, "-r", REFERENCE, "--idf", "--json")
    assert (code, out) == (2, "")
    assert "--idf: the IDF of one text is 0; give files" in err
