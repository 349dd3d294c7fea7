"""`flashbertscore score`: the score of a system, for people, for JSON and for tables."""

from __future__ import annotations

import errno
import json
import math
import sys
import textwrap
from array import array
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from flashbertscore.cli import arguments, files, options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from flashbertscore.scorer import BERTScorer

_NAMES = ("precision", "recall", "f1")


def add_to(commands: Any) -> None:  # noqa: ANN401 - what argparse's add_subparsers returns
    """Add the subcommand `score` to the command `flashbertscore`."""
    parser = commands.add_parser(
        "score",
        help="score candidates against references",
        description="Score the lines of a file against the same lines of one or more reference "
        "files (the best reference counts), or two texts against each other.",
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument_group("texts").add_argument
    add("-c", "--cand", required=True, metavar="FILE", help="candidates, one a line; - is stdin")
    add("-r", "--ref", required=True, nargs="+", metavar="FILE", help="references, one a line")
    add("--text", action="store_true", help="-c and -r are the texts themselves, not files")
    add = arguments.add_model(parser)
    add("-b", "--batch-size", type=int, default=64, metavar="N", help="texts a batch (default: 64)")
    add("--compile", action="store_true", help="put the model through torch.compile")
    add = parser.add_argument_group("score").add_argument
    add("--idf", action="store_true", help="weigh tokens by their IDF in the references")
    add("--rescale-with-baseline", action="store_true", help="rescale the scores")
    add("--baseline-path", metavar="FILE", help="baselines to rescale with (LAYER,P,R,F)")
    output = parser.add_argument_group("output")
    add = output.add_argument
    add("-s", "--seg-level", action="store_true", help="the scores of each pair too")
    add = output.add_mutually_exclusive_group().add_argument
    add("--json", action="store_true", help="print one JSON object")
    add("--tsv", action="store_true", help="print a table of all pairs; the summary goes to stderr")


def _run(args: argparse.Namespace) -> None:
    with _read(args) as texts:
        references_of = (text for _, group in texts for text in group)
        scorer = options.make_scorer(args, references_of, compile=args.compile)
        references = len(args.ref)
        rows: Iterator[tuple[float, ...]] = scorer.score_stream(
            texts, verbose=sys.stderr.isatty(), total=len(texts) * (1 + references)
        )
        if args.tsv:
            rows = _printed(rows)
        # What is printed after the summary waits for it: three floats a pair.
        kept = array("f")
        report = _report(
            scorer, rows, references, keep=kept if args.seg_level and not args.tsv else None
        )
    segments = zip(kept[::3], kept[1::3], kept[2::3], strict=True)
    if args.json:
        if args.seg_level:
            report["segments"] = [
                dict(zip(_NAMES, map(_number, row), strict=True)) for row in segments
            ]
        print(json.dumps(report, indent=2))
    elif args.tsv:
        print(_summary(report), file=sys.stderr)
    else:
        print(_summary(report))
        if args.seg_level:
            print(f"\n{'pair':>8}  {'P':>9}  {'R':>9}  {'F1':>9}")
            for i, row in enumerate(segments, start=1):
                print(f"{i:8d}", *(f"{x:9.6f}" for x in row), sep="  ")


def _printed(rows: Iterable[tuple[float, ...]]) -> Iterator[tuple[float, ...]]:
    """Print a table of the scores as they come."""
    print("pair", *_NAMES, sep="\t")
    for i, row in enumerate(rows, start=1):
        print(i, *(f"{x:.6f}" for x in row), sep="\t")
        yield row


def _read(
    args: argparse.Namespace,
) -> AbstractContextManager[files.Parallel | list[tuple[str, list[str]]]]:
    if args.text:
        return nullcontext([(args.cand, args.ref)])
    try:
        return files.Parallel(args.cand, args.ref)
    except OSError as error:
        # A text in place of a file name can also be too long for one.
        if error.errno not in {errno.ENOENT, errno.ENAMETOOLONG}:
            raise
        name = textwrap.shorten(str(error.filename), 80, placeholder=" ...")
        msg = f"{name}: no such file (to score the argument itself, add --text)"
        raise ValueError(msg) from None


def _report(
    scorer: BERTScorer,
    rows: Iterable[tuple[float, ...]],
    references: int,
    *,
    keep: array[float] | None,
) -> dict[str, Any]:
    """Everything that one states beside a score, as JSON has it; `keep` takes the rows."""
    pairs, sums = 0, [0.0, 0.0, 0.0]
    for row in rows:
        pairs += 1
        sums = [total + x for total, x in zip(sums, row, strict=True)]
        if keep is not None:
            keep.extend(row)
    return {
        **{name: _number(total / pairs) for name, total in zip(_NAMES, sums, strict=True)},
        "pairs": pairs,
        "references": references,
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
        "Model": f"{report['model']}, layer {report['num_layers']}",
        "Scores": f"{scale}, {weights}",
        "Signature": report["signature"],
    }
    return "\n".join(f"{name:<11}{value}" for name, value in lines.items())


def _number(x: float) -> float | None:
    """Return a float32 as the shortest float that says it; None, which JSON has, for NaN."""
    return None if math.isnan(x) else float(f"{x:.9g}")
