"""`flashbertscore explain`: which token matched which, and what each costs."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashbertscore import page
from flashbertscore.cli import files, options

if TYPE_CHECKING:
    import argparse

    from flashbertscore.explanation import Explanation, Token

_WIDEST = 24  # columns of a token in the table


def add_to(commands: Any) -> None:  # noqa: ANN401 - what argparse's add_subparsers returns
    """Add the subcommand `explain` to the command `flashbertscore`."""
    parser = commands.add_parser(
        "explain",
        help="show which tokens of two texts match, and what each costs",
        description="Align two texts token by token: the best match of each, its similarity, its "
        "share of the score and what it takes from a perfect one.",
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument_group("texts").add_argument
    add("-c", "--cand", required=True, metavar="TEXT", help="candidate, or a file with --line")
    add("-r", "--ref", required=True, metavar="TEXT", help="reference, or a file with --line")
    add("--line", type=int, metavar="K", help="line K, from 1, of the files -c and -r")
    options.add_scorer(parser)
    add = parser.add_argument_group("output").add_argument
    add("--html", metavar="FILE", help="write a page for a browser there, which needs no network")
    add("--json", action="store_true", help="print one JSON object")
    add("--top", type=int, metavar="N", help="print only the N tokens of a side that cost most")


def _run(args: argparse.Namespace) -> None:
    candidate, reference, references = _read(args)
    if args.top is not None and args.top < 1:
        message = f"--top: expected at least 1, got {args.top}"
        raise ValueError(message)
    scorer = options.make_scorer(args, references)
    found = scorer.explain(candidate, reference)
    if args.html is not None:
        pieces = [scorer.pieces(text) for text in (candidate, reference)]
        title = "BERTScore, token by token" + (f", line {args.line}" if args.line else "")
        text = page.render(found, *pieces, title=title, signature=scorer.signature)
        Path(args.html).write_text(text, encoding="utf-8")
    if args.json:
        record = found.as_dict() | {"signature": scorer.signature}
        print(json.dumps(record, ensure_ascii=False, allow_nan=False))
    elif args.html is None:
        _print(found, scorer.signature, args.top)


def _read(args: argparse.Namespace) -> tuple[str, str, list[str]]:
    """Both texts, and those that IDF is counted over."""
    if args.line is None:
        if args.idf:
            message = "--idf: the IDF of one text is 0; give files, and --line K of them"
            raise ValueError(message)
        return args.cand, args.ref, [args.ref]
    candidates, groups = files.read_parallel(args.cand, [args.ref])
    if not 1 <= args.line <= len(candidates):
        message = f"--line: expected 1 to {len(candidates)}, got {args.line}"
        raise ValueError(message)
    references = [group[0] for group in groups]
    return candidates[args.line - 1], references[args.line - 1], references


def _print(found: Explanation, signature: str, top: int | None) -> None:
    for name, score, tokens, others in (
        ("Candidate", f"precision {found.precision:.6f}", found.candidate, found.reference),
        ("Reference", f"recall {found.recall:.6f}", found.reference, found.candidate),
    ):
        print(f"{name}: {len(tokens)} tokens, {score}")
        order = list(range(len(tokens)))
        if top is not None:
            order = sorted(sorted(order, key=lambda i: -tokens[i].cost)[:top])
        columns = "similarity", "weight", "contribution", "cost"
        print(f"{'':>6}  {_cell('token')}  {_cell('best match')}", *columns, sep="  ")
        for i in order:
            print(_row(i, tokens[i], others))
        print()
    print(f"F1 {found.f1:.6f}" + ("" if found.rescaled is None else " raw"))
    if found.rescaled is not None:
        print("rescaled: precision {:.6f}, recall {:.6f}, F1 {:.6f}".format(*found.rescaled))
    print(f"Coverage: {found.coverage}")
    print(signature)


def _row(i: int, token: Token, others: list[Token]) -> str:
    match = "-" if token.match is None else f"{others[token.match].text} ({token.match})"
    numbers = f"{token.similarity:10.4f}  {token.weight:6.4f}"
    return (
        f"{i:6d}  {_cell(token.text)}  {_cell(match)}  {numbers}  {token.contribution:12.5f}  "
        f"{token.cost:4.5f}"
    )


def _cell(text: str) -> str:
    """Fit a text into the column; wide characters of East Asian scripts take two places."""
    shown, width = "", 0
    for character in text.replace("\n", " ").replace("\t", " "):
        step = _width(character)
        if width + step > _WIDEST:
            return shown[:-1] + "…" + " " * (_WIDEST - width + _width(shown[-1]) - 1)
        shown += character
        width += step
    return shown + " " * (_WIDEST - width)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
