"""`flashbertscore score`: the score of a system, for people, for JSON and for tables."""

from __future__ import annotations

import errno
import json
import os
import sys
import textwrap
from array import array
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from flashbertscore import coverage
from flashbertscore.cli import files, options
from flashbertscore.cli.documents import Documents

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from flashbertscore.bert_scorer import BERTScorer, PairScores

_NAMES = ("precision", "recall", "f1")


def add_to(commands: Any) -> None:  # noqa: ANN401 - what argparse's add_subparsers returns
    """Add the subcommand `score` to the command `flashbertscore`."""
    parser = commands.add_parser(
        "score",
        help="score candidates against references",
        description="Score the lines of a file against the same lines of one or more reference "
        "files (the best reference counts), whole files or the files of folders that have the "
        "same name, or two texts against each other.",
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument_group("texts").add_argument
    add("-c", "--cand", required=True, metavar="FILE", help="candidates, one a line; - is stdin")
    add("-r", "--ref", required=True, nargs="+", metavar="FILE", help="references, one a line")
    add("--text", action="store_true", help="-c and -r are the texts themselves, not files")
    add(
        "--whole-files",
        action="store_true",
        help="one document a file; without saying so where -c and -r are folders",
    )
    options.add_scorer(parser)
    output = parser.add_argument_group("output")
    add = output.add_argument
    add("-s", "--seg-level", action="store_true", help="the scores of each pair too")
    add = output.add_mutually_exclusive_group().add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--tsv", action="store_true", help="print a table of all pairs; the summary goes to stderr")


def _run(args: argparse.Namespace) -> None:
    with _read(args) as texts:
        references_of = (text for _, group in texts for text in group)
        scorer = options.make_scorer(args, references_of)
        references = len(args.ref)
        rows: Iterator[PairScores] = scorer.score_stream(
            texts, verbose=sys.stderr.isatty(), total=len(texts) * (1 + references)
        )
        names = texts.names if isinstance(texts, Documents) else None
        if args.tsv:
            rows = _printed(rows, names)
        kept = _Segments(references) if args.seg_level and not args.tsv else None
        report = _report(scorer, rows, references, keep=kept)
    if args.json:
        if kept is not None:
            report["segments"] = [_segment(*found) for found in kept.named(names)]
        print(json.dumps(report, indent=2))
    elif args.tsv:
        print(_summary(report), file=sys.stderr)
    else:
        print(_summary(report))
        if kept is not None:
            _print_segments(kept, names)


class _Segments:
    """What is printed after the summary and waits for it: some 50 bytes a pair."""

    def __init__(self, references: int) -> None:
        self._scores = array("f")
        self._tokens = array("q")
        self._step = 2 * (1 + references)

    def add(self, row: PairScores, tokens: list[int]) -> None:
        self._scores.extend(row)
        self._tokens.extend(tokens)

    def named(
        self, names: list[str] | None
    ) -> Iterator[tuple[str | None, tuple[float, ...], list[int]]]:
        """Give name, scores and tokens of each pair."""
        for i in range(len(self._scores) // 3):
            yield (
                None if names is None else names[i],
                tuple(self._scores[3 * i : 3 * i + 3]),
                self._tokens[self._step * i : self._step * (i + 1)].tolist(),
            )


def _tokens(row: PairScores) -> list[int]:
    """Tokens seen and total of the candidate, then of each reference."""
    sides = row.coverage.candidates, row.coverage.references
    return [count for side in sides for text in side.tolist() for count in text]


def _segment(name: str | None, row: tuple[float, ...], tokens: list[int]) -> dict[str, Any]:
    return {
        **({} if name is None else {"document": name}),
        **dict(zip(_NAMES, map(options.number, row), strict=True)),
        "candidate_tokens_seen": tokens[0],
        "candidate_tokens": tokens[1],
        "reference_tokens_seen": tokens[2::2],
        "reference_tokens": tokens[3::2],
    }


def _print_segments(kept: _Segments, names: list[str] | None) -> None:
    document = "" if names is None else " document"
    print(f"\n{'pair':>8}  {'P':>9}  {'R':>9}  {'F1':>9}  {'seen':>6}{document}")
    for i, (name, row, tokens) in enumerate(kept.named(names), start=1):
        seen = f"{coverage.percent(sum(tokens[::2]), sum(tokens[1::2])):5.1f}%"
        shown = [] if name is None else [f" {name}"]
        print(f"{i:8d}", *(f"{x:9.6f}" for x in row), seen, *shown, sep="  ")


def _printed(rows: Iterable[PairScores], names: list[str] | None) -> Iterator[PairScores]:
    """Print a table of the scores as they come."""
    sides = [
        f"{side}_tokens{part}" for side in ("candidate", "reference") for part in ("_seen", "")
    ]
    print("pair" if names is None else "document", *_NAMES, *sides, sep="\t")
    for i, row in enumerate(rows):
        tokens = _tokens(row)
        # Of several references one number each, with commas between.
        seen, total = (",".join(map(str, tokens[first::2])) for first in (2, 3))
        name = i + 1 if names is None else " ".join(names[i].split())
        print(name, *(f"{x:.6f}" for x in row), *tokens[:2], seen, total, sep="\t")
        yield row


def _read(
    args: argparse.Namespace,
) -> AbstractContextManager[files.Parallel | Documents | list[tuple[str, list[str]]]]:
    if args.text:
        if args.whole_files:
            msg = "--text and --whole-files: a text is no file"
            raise ValueError(msg)
        return nullcontext([(args.cand, args.ref)])
    try:
        if args.whole_files or any(_is_folder(path) for path in (args.cand, *args.ref)):
            return nullcontext(Documents(args.cand, args.ref))
        return files.Parallel(args.cand, args.ref)
    except OSError as error:
        # A text in place of a file name can also be too long for one.
        if error.errno not in {errno.ENOENT, errno.ENAMETOOLONG}:
            raise
        name = textwrap.shorten(str(error.filename), 80, placeholder=" ...")
        msg = f"{name}: no such file (to score the argument itself, add --text)"
        raise ValueError(msg) from None


def _is_folder(path: str) -> bool:
    return path != files.STDIN and os.path.isdir(path)  # noqa: PTH112 - False for too long a name


def _report(
    scorer: BERTScorer,
    rows: Iterable[PairScores],
    references: int,
    *,
    keep: _Segments | None,
) -> dict[str, Any]:
    """Everything that one states beside a score, as JSON has it; `keep` takes the rows."""
    pairs, sums = 0, [0.0, 0.0, 0.0]
    seen = total = cut = 0
    for row in rows:
        pairs += 1
        sums = [so_far + x for so_far, x in zip(sums, row, strict=True)]
        tokens = _tokens(row)
        seen += sum(tokens[::2])
        total += sum(tokens[1::2])
        cut += sum(a < b for a, b in zip(tokens[::2], tokens[1::2], strict=True))
        if keep is not None:
            keep.add(row, tokens)
    return {
        **{name: options.number(of_all / pairs) for name, of_all in zip(_NAMES, sums, strict=True)},
        "pairs": pairs,
        "references": references,
        "coverage": {
            "tokens_seen": seen,
            "tokens_total": total,
            "texts": pairs * (1 + references),
            "texts_cut": cut,
        },
        "model": scorer.model_type,
        "num_layers": scorer.num_layers,
        "idf": bool(scorer.idf),
        "rescaled": scorer.rescale_with_baseline,
        "hash": scorer.hash,
        "signature": scorer.signature,
    }


def _summary(report: dict[str, Any]) -> str:
    def shown(x: float | None) -> str:
        return "nan" if x is None else f"{x:.6f}"

    several = f", best of {report['references']} references" if report["references"] > 1 else ""
    scale = "rescaled with baseline" if report["rescaled"] else "raw"
    weights = "IDF weights" if report["idf"] else "no IDF"
    lines = {
        "F1": shown(report["f1"]),
        "Precision": shown(report["precision"]),
        "Recall": shown(report["recall"]),
        "Pairs": f"{report['pairs']}{several}",
        "Coverage": coverage.in_words(**report["coverage"]),
        "Model": f"{report['model']}, layer {report['num_layers']}",
        "Scores": f"{scale}, {weights}",
        "Signature": report["signature"],
    }
    return "\n".join(f"{name:<11}{value}" for name, value in lines.items())
