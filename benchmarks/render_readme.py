"""Render results/*.json into README.md and docs/ between their markers.

A marker names the table and the file: <!-- table: op amd-epyc-2-cores --> ... <!-- end -->.

    python benchmarks/render_readme.py            write
    python benchmarks/render_readme.py --check    fail if a page differs from the results
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import cases
import library_cases

PAGES = [cases.REPOSITORY / name for name in ("README.md", "docs/long-documents.md")]
RESULTS = Path(__file__).parent / "results"
MARKER = re.compile(r"(<!-- table: (\w+) ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def find(result: dict[str, Any], case: str, contender: str, threads: int) -> dict[str, Any]:
    for record in result["records"]:
        if (record["case"], record["contender"], record["threads"]) == (case, contender, threads):
            return dict(record)
    sys.exit(f"no record of {case}, {contender}, {threads} thread(s): run the benchmark")


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
    if case is cases.CALL:
        cells[-1] = f"{1e6 * ours['median']:.1f} us"
    for contender in cases.EVERYONE[1:]:
        if contender in case.contenders:
            other = find(result, case.name, contender, threads)
            cells.append(f"{other['median'] / ours['median']:.1f}x")
        else:
            cells.append("")
    rate = case.flop / ours["median"] / 1e9
    peak = ours["peak_of_one_core"][f"{case.dtype}_gflops"] * threads
    cells += [f"{rate:,.0f}", f"{rate / peak:.2f}" if peak else ""]
    if "torch chain" in case.contenders:
        cells.append(f"{find(result, case.name, 'torch chain', threads)['peak']:,.0f} MiB")
    else:
        cells.append("")
    cells.append(f"{ours['peak']:,.1f} MiB")
    return "| " + " | ".join(cells) + " |"


def op_table(result: dict[str, Any]) -> list[str]:
    cores = result["machine"]["cores"]
    peaks = [r["peak_of_one_core"] for r in result["records"] if "peak_of_one_core" in r]

    def span(key: str) -> str:
        return f"{min(p[key] for p in peaks):.0f} to {max(p[key] for p in peaks):.0f}"

    lines = [
        "Peak of one core, the mean of what is measured right before and right after each case of "
        f"ours: {span('float32_gflops')} GFLOP/s in float32, {span('bfloat16_gflops')} in "
        f"bfloat16; copies at {span('copy_gbytes')} GB/s read and written.",
        "",
        "| dtype | pairs x tokens x tokens | D | threads | time | over torch chain "
        "| over torch.compile of it | GFLOP/s | of peak | peak memory, torch | ours |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [
        op_row(result, case, threads or cores) for case in cases.OP for threads in case.threads
    ]


def one_direction_table(result: dict[str, Any]) -> list[str]:
    names = " | ".join(f"{peer} {result['versions'][peer]}" for peer in cases.ONE_DIRECTION)
    lines = [
        "| pairs x tokens x tokens, float32, D = 768, one thread | ours, both directions "
        f"| {names} |",
        "|---|---|---|---|",
    ]
    for case in cases.OP:
        if set(cases.ONE_DIRECTION) <= set(case.contenders):
            ours = find(result, case.name, "flashbertscore", 1)["median"]
            cells = [f"{case.pairs:,} x {case.length} x {case.length}", f"{1e3 * ours:.1f} ms"]
            for peer in cases.ONE_DIRECTION:
                theirs = find(result, case.name, peer, 1)
                if "failed" in theirs:
                    cells.append(f"failed ({theirs['failed']})")
                else:
                    cells.append(f"{1e3 * theirs['median']:.1f} ms, {theirs['median'] / ours:.1f}x")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def text_row(result: dict[str, Any], case: cases.TextCase) -> str:
    cores = result["machine"]["cores"]
    ours = find(result, case.name, "flashbertscore", cores)
    theirs = find(result, case.name, "bert-score", cores)
    ratio = f"{theirs['median'] / ours['median']:.1f}x"
    cells = [case.description, f"{theirs['median']:.1f} s", f"{ours['median']:.1f} s", ratio]
    cells.append(f"{case.target}x")
    if "errors" in ours:
        error = ours["errors"]
        cells += [f"{error['largest']:.1e}", f"{error['mean_f1']:.1e}"]
        cells.append(f"{error['pearson_f1']:.6f}")
        peak = result["peak_of_one_core"][f"{case.dtype}_gflops"] * cores
        cells.append(f"{ours['flop'] / ours['median'] / 1e9 / peak:.2f}" if peak else "")
    else:
        cells += [""] * 4
    cells += [f"{theirs['peak']:,.0f} MiB", f"{ours['peak']:,.0f} MiB"]
    return "| " + " | ".join(cells) + " |"


def text_table(result: dict[str, Any]) -> list[str]:
    measured = {record["case"] for record in result["records"]}
    return [
        "| all-MiniLM-L6-v2 | bert-score | ours | ratio | aimed at | largest error of P, R, F "
        "| mean error of F | Pearson of F | of FMA peak | peak memory, bert-score | ours |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(text_row(result, case) for case in cases.TEXT if case.name in measured),
    ]


def library_row(result: dict[str, Any], case: library_cases.LibraryCase) -> str:
    cores = result["machine"]["cores"]
    records = [find(result, case.name, contender, cores) for contender in case.contenders]
    times = " / ".join(
        f"{name} {1e3 * record['median']:,.1f} ms"
        for name, record in zip(case.contenders, records, strict=True)
    )
    ratio = f"{records[1]['median'] / records[0]['median']:.2f}" if len(records) > 1 else ""
    peaks = " / ".join(f"{record['peak']:,.0f} MiB" for record in records)
    cells = [case.description, times, ratio, case.target, peaks, case.peak_target]
    return "| " + " | ".join(cells) + " |"


def library_table(result: dict[str, Any]) -> list[str]:
    return [
        "| what | times | second over first | aimed at | peak memory | aimed at |",
        "|---|---|---|---|---|---|",
        *(library_row(result, case) for case in library_cases.LIBRARY),
    ]


def effect_table(result: dict[str, Any]) -> list[str]:
    rows = result["records"]["effect"]["effect"]
    shortest, longest = rows[0]["tokens"]
    lines = [
        f"{rows[0]['documents']} pairs of documents of {shortest} to {longest} tokens, F1 beside "
        "that with all positions of the model:",
        "",
        "| what | stride | mean difference | largest | Pearson |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        what = "embeddings in bfloat16, nothing cut"
        if row["window"]:
            what = f"windows of {row['window']}" if row["stride"] else f"cut to {row['window']}"
        cells = [what, str(row["stride"] or ""), f"{row['mean']:.2g}", f"{row['largest']:.2g}"]
        lines.append("| " + " | ".join([*cells, f"{row['pearson']:.4f}"]) + " |")
    return lines


def long_table(result: dict[str, Any]) -> list[str]:
    records = result["records"]
    book, parts = records["words"]["score"], records["words"]["parts"]
    cores = result["machine"]["cores"]
    peak = result["peak_of_one_core"]["float32_gflops"] * cores
    rate = parts["flop"] / parts["match"] / 1e9
    apart = parts["tokenize"] + parts["apart"] + parts["match"]
    windows = parts["tokenize"] + parts["windows"] + parts["match"]
    ours, theirs = (records["context"][who] for who in ("flashbertscore", "bert-score"))
    million = records["million"]["op"]
    speed = million["flop"] / million["seconds"] / 1e9
    failed = theirs.get("failed")
    reference = f"failed: {failed}" if failed else f"{theirs['seconds']:.0f} s"
    return [
        "| what | time | memory |",
        "|---|---|---|",
        f"| two documents of {book['tokens'][1]:,} and {book['reference_tokens'][1]:,} tokens "
        f"(100,000 words each), in windows, from text to F1 | {book['seconds']:.1f} s "
        f"| {book['peak']:,.0f} MiB beyond the model |",
        f"| of that: tokenizer | {parts['tokenize']:.2f} s | |",
        f"| of that: encoder | {parts['windows']:.1f} s | |",
        f"| of that: matching, {rate:,.0f} GFLOP/s, {rate / peak:.2f} of the peak "
        f"| {parts['match']:.1f} s | |",
        f"| the same tokens as separate texts that do not overlap, and matching | {apart:.1f} s, "
        f"windows {windows / apart:.2f}x | |",
        f"| 64 pairs of 4,096 tokens, ModernBERT of 4 x 256, ours | {ours['seconds']:.0f} s "
        f"| {ours['resident']:,.0f} MiB in all |",
        f"| the same with bert-score, which may map 21 GiB | {reference} "
        f"| {theirs['resident']:,.0f} MiB in all |",
        f"| the op, {million['tokens']:,} x {million['tokens']:,} tokens, D = 64, {speed:,.0f} "
        f"GFLOP/s | {million['seconds']:.0f} s | {million['peak']:.1f} MiB beyond the inputs |",
    ]


TABLES = {
    "effect": effect_table,
    "long": long_table,
    "op": op_table,
    "text": text_table,
    "library": library_table,
    "maxsim": one_direction_table,
}


def render(match: re.Match[str]) -> str:
    start, table, machine, end = match.groups()
    path = RESULTS / f"{machine}.json"
    if not path.exists():
        sys.exit(f"{path} of the table '{table}' is missing: run `make bench`")
    result = json.loads(path.read_text())
    return "\n".join([start + where(result), "", *TABLES[table](result), end])


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        rendered = MARKER.sub(render, text)
        if "--check" not in sys.argv[1:]:
            page.write_text(rendered, encoding="utf-8")
        elif rendered != text:
            sys.exit(f"{page.name} differs from benchmarks/results: run render_readme.py there")


if __name__ == "__main__":
    main()
