"""Render results/*.json into README.md between its markers.

A marker names the table and the file: <!-- table: op amd-epyc-2-cores --> ... <!-- end -->.

    python benchmarks/render_readme.py            write
    python benchmarks/render_readme.py --check    fail if README differs from the results
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import cases

README = cases.REPOSITORY / "README.md"
RESULTS = Path(__file__).parent / "results"
MARKER = re.compile(r"(<!-- table: (\w+) ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def find(result: dict[str, Any], case: str, contender: str, threads: int) -> dict[str, Any]:
    for record in result["records"]:
        if (record["case"], record["contender"], record["threads"]) == (case, contender, threads):
            return dict(record)
    sys.exit(f"no record of {case}, {contender}, {threads} thread(s): run `make bench`")


def where(result: dict[str, Any]) -> str:
    host, versions = result["machine"], result["versions"]
    dirty = " with local changes" if result["dirty"] else ""
    return (
        f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB; instruction set "
        f"{result['isa']}; torch {versions['torch']}, transformers {versions['transformers']}, "
        f"bert-score {versions['bert-score']}; commit {result['commit']}{dirty}. "
        "Medians; memory is the peak beyond inputs and loaded model."
    )


def op_row(result: dict[str, Any], case: cases.OpCase, threads: int) -> str:
    ours = find(result, case.name, "flashbertscore", threads)
    cells = [case.dtype, f"{case.pairs:,} x {case.length:,} x {case.length:,}", f"{case.dim}"]
    cells += [f"{threads}", f"{1e3 * ours['median']:,.1f} ms"]
    for contender in cases.EVERYONE[1:]:
        if contender in case.contenders:
            other = find(result, case.name, contender, threads)
            cells.append(f"{other['median'] / ours['median']:.1f}x")
        else:
            cells.append("")
    rate = case.flop / ours["median"] / 1e9
    peak = result["peak_of_one_core"][f"{case.dtype}_gflops"] * threads
    cells += [f"{rate:,.0f}", f"{rate / peak:.2f}" if peak else ""]
    if "torch chain" in case.contenders:
        cells.append(f"{find(result, case.name, 'torch chain', threads)['peak']:,.0f} MiB")
    else:
        cells.append("")
    cells.append(f"{ours['peak']:,.1f} MiB")
    return "| " + " | ".join(cells) + " |"


def op_table(result: dict[str, Any]) -> list[str]:
    peak = result["peak_of_one_core"]
    cores = result["machine"]["cores"]
    lines = [
        f"Peak of one core, in the same run: {peak['float32_gflops']:.0f} GFLOP/s in float32, "
        f"{peak['bfloat16_gflops']:.0f} in bfloat16; copies at {peak['copy_gbytes']:.0f} GB/s read "
        "and written.",
        "",
        "| dtype | pairs x tokens x tokens | D | threads | time | over torch chain "
        "| over torch.compile of it | GFLOP/s | of peak | peak memory, torch | ours |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [
        op_row(result, case, threads or cores) for case in cases.OP for threads in case.threads
    ]


def text_table(result: dict[str, Any]) -> list[str]:
    cores = result["machine"]["cores"]
    lines = [
        "| all-MiniLM-L6-v2, float32 | bert-score | FlashBERTScore | ratio "
        "| peak memory, bert-score | ours |",
        "|---|---|---|---|---|---|",
    ]
    for case in cases.TEXT:
        ours = find(result, case.name, "flashbertscore", cores)
        theirs = find(result, case.name, "bert-score", cores)
        lines.append(
            f"| {case.description} | {theirs['median']:.1f} s | {ours['median']:.1f} s "
            f"| {theirs['median'] / ours['median']:.1f}x "
            f"| {theirs['peak']:,.0f} MiB | {ours['peak']:,.0f} MiB |"
        )
    return lines


TABLES = {"op": op_table, "text": text_table}


def render(match: re.Match[str]) -> str:
    start, table, machine, end = match.groups()
    path = RESULTS / f"{machine}.json"
    if not path.exists():
        sys.exit(f"README.md: {path} of its table '{table}' is missing: run `make bench`")
    result = json.loads(path.read_text())
    return "\n".join([start + where(result), "", *TABLES[table](result), end])


def main() -> None:
    text = README.read_text(encoding="utf-8")
    rendered = MARKER.sub(render, text)
    if "--check" in sys.argv[1:]:
        if rendered != text:
            sys.exit("README.md differs from benchmarks/results: run benchmarks/render_readme.py")
    else:
        README.write_text(rendered, encoding="utf-8")


if __name__ == "__main__":
    main()
