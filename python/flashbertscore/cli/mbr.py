"""`flashbertscore mbr`: the most representative of several hypotheses, group by group."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flashbertscore.allpairs import UTILITIES
from flashbertscore.cli import files, options

if TYPE_CHECKING:
    import argparse


def add_to(commands: Any) -> None:  # noqa: ANN401 - what argparse's add_subparsers returns
    """Add the subcommand `mbr` to the command `flashbertscore`."""
    parser = commands.add_parser(
        "mbr",
        help="choose the best of several hypotheses (minimum Bayes risk decoding)",
        description="Of each group of hypotheses print the one with the highest expected score "
        "against all others of its group.",
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument_group("texts").add_argument
    add("file", metavar="FILE", help="hypotheses; - is stdin")
    add(
        "-n",
        "--group-size",
        type=int,
        metavar="N",
        help="lines of a group; without it each line is JSON: a list of texts, or an object with "
        '"hypotheses" and, if wanted, "weights"',
    )
    add("--utility", choices=UTILITIES, default="f1", help="score to maximize (default: f1)")
    options.add_scorer(parser)
    add = parser.add_argument_group("output").add_mutually_exclusive_group().add_argument
    add("--json", action="store_true", help="one JSON object a group: index, utility, text")
    add("--tsv", action="store_true", help="a table: group, index, utility, text")


def _run(args: argparse.Namespace) -> None:
    groups, weights = _read(args)
    scorer = options.make_scorer(args, [text for group in groups for text in group])
    found = scorer.mbr(groups, utilities=args.utility, weights=weights)
    tokens = iter(found.coverage.candidates.tolist())
    if args.tsv:
        print("group", "index", args.utility, "tokens_seen", "tokens", "text", sep="\t")
    chosen = zip(found.index.tolist(), found.utility.tolist(), groups, strict=True)
    for number, (index, utility, group) in enumerate(chosen, start=1):
        text = group[index]
        seen, total = [next(tokens) for _ in group][index]
        if args.json:
            record = {"index": index, args.utility: options.number(utility)}
            record |= {"tokens_seen": seen, "tokens": total}
            print(json.dumps(record | {"text": text}, ensure_ascii=False))
        elif args.tsv:
            shown = text.replace("\t", " ")
            print(number, index, f"{utility:.6f}", seen, total, shown, sep="\t")
        else:
            print(text)


def _read(args: argparse.Namespace) -> tuple[list[list[str]], list[list[float]] | None]:
    lines = files.read_lines(args.file)
    name = files.name_of(args.file)
    if not lines:
        message = f"{name}: empty, there is nothing to choose from"
        raise ValueError(message)
    if args.group_size is not None:
        size = args.group_size
        if size < 1:
            message = f"--group-size: expected at least 1, got {size}"
            raise ValueError(message)
        if len(lines) % size:
            message = f"{name}: expected groups of {size} lines, got {len(lines)} lines"
            raise ValueError(message)
        return [lines[i : i + size] for i in range(0, len(lines), size)], None
    groups, weights = [], []
    for number, line in enumerate(lines, start=1):
        group, shares = _parse(line, f"{name}:{number}")
        groups.append(group)
        weights.append(shares)
    if any(shares is not None for shares in weights):
        ones = [[1.0] * len(group) for group in groups]
        return groups, [w if w is not None else o for w, o in zip(weights, ones, strict=True)]
    return groups, None


def _parse(line: str, where: str) -> tuple[list[str], list[float] | None]:
    """One group from a line of JSON."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        message = f"{where}: not JSON ({error.msg}); for groups of N lines pass --group-size N"
        raise ValueError(message) from None
    texts, shares = value, None
    if isinstance(value, dict):
        texts, shares = value.get("hypotheses"), value.get("weights")
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        message = (
            f'{where}: expected a list of texts, or an object whose "hypotheses" is one, '
            f"got {line[:60]}"
        )
        raise ValueError(message)
    if shares is None:
        return texts, None
    numbers = isinstance(shares, list) and all(
        isinstance(s, (int, float)) and not isinstance(s, bool) for s in shares
    )
    if not numbers or len(shares) != len(texts):
        message = f'{where}: expected "weights" to be {len(texts)} numbers'
        raise ValueError(message)
    return texts, shares
