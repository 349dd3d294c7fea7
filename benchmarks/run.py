"""Measure every case and contender, each in a process of its own, and write results.

python benchmarks/run.py                       the op: results/<machine>.json (some minutes)
python benchmarks/run.py --text                texts, end to end: results/<machine>-e2e.json
python benchmarks/run.py --only op-128         the cases whose name begins so
python benchmarks/run.py --text --trial 20     20 pairs of each case, printed and not written
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cases
from peak import peak

RESULTS = Path(__file__).parent / "results"
SCORES = cases.REPOSITORY / "build" / "scores"
PACKAGES = ("torch", "transformers", "bert-score", "numpy", *cases.ONE_DIRECTION)


def machine() -> dict[str, Any]:
    """The processor's name, cores and memory."""
    name = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE)
        name = found[1] if found else name
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": name, "cores": os.cpu_count(), "memory_gib": round(pages / 2**30)}


def slug(host: dict[str, Any]) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{host['cpu']} {host['cores']} cores".lower()).strip("-")


def git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(cases.REPOSITORY), *arguments],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def measure_one(name: str, contender: str, threads: int) -> None:
    """In the child process: print one record."""
    import torch  # noqa: PLC0415

    import peers  # noqa: PLC0415 - torch loads in the child
    from measure import measure  # noqa: PLC0415

    torch.set_num_threads(threads)
    for case in cases.OP:
        if case.name == name:
            call = peers.op_call(case, contender)
            record = measure(call, case.runs, warm_up=case.runs > 1)
            print(json.dumps(record.as_dict()))
    for text in cases.TEXT:
        if text.name == name:
            print(json.dumps(measure_text(text, contender)))
    if name.startswith("lib-"):
        import library_cases  # noqa: PLC0415

        for library in library_cases.LIBRARY:
            if library.name == name:
                call = library_cases.CALLS[library.key](library, contender)
                record = measure(call, library.runs, warm_up=library.runs > 1)
                print(json.dumps(record.as_dict()))


def measure_text(case: cases.TextCase, contender: str) -> dict[str, Any]:
    """Measure, and leave the scores for the parent to compare."""
    import torch  # noqa: PLC0415

    import peers  # noqa: PLC0415
    from measure import measure  # noqa: PLC0415

    call = peers.text_call(case, contender)
    scores: list[Any] = []
    record = measure(lambda: scores.append(call()), case.runs, warm_up=False)
    SCORES.mkdir(parents=True, exist_ok=True)
    torch.save(scores[0], SCORES / f"{case.name}-{contender}.pt")
    flop = peers.text_flop(case) if contender == "flashbertscore" else 0.0
    return record.as_dict() | {"flop": flop, "pairs": len(scores[0][0])}


def errors(name: str) -> dict[str, float]:
    """How far the scores of a case are from those of bert-score."""
    import torch  # noqa: PLC0415

    ours, theirs = (
        torch.stack(torch.load(SCORES / f"{name}-{contender}.pt")).double()
        for contender in cases.TEXT_CONTENDERS
    )
    difference = (ours - theirs).abs()
    pearson = torch.corrcoef(torch.stack([ours[2], theirs[2]]))[0, 1]
    return {
        "largest": float(difference.max()),
        "mean_f1": float(difference[2].mean()),
        "largest_f1": float(difference[2].max()),
        "pearson_f1": float(pearson),
    }


def child(name: str, contender: str, threads: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, contender, str(threads)]
    count = {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **count}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=Path.cwd()
    )
    if done.returncode and contender in cases.ONE_DIRECTION:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        print(f"{name:22} {contender:16} failed: {how}", file=sys.stderr, flush=True)
        return {"case": name, "contender": contender, "threads": threads, "failed": how}
    if done.returncode:
        sys.exit(f"{name} with {contender} failed:\n{done.stderr}")
    record: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(
        f"{name:22} {contender:16} {threads} thread(s)  "
        f"{record['median']:9.4f} s  {record['peak']:8.1f} MiB",
        file=sys.stderr,
        flush=True,
    )
    return {"case": name, "contender": contender, "threads": threads, **record}


def beside_peak(name: str, contender: str, threads: int) -> dict[str, Any]:
    """A record with the machine's peak, the mean of that right before and that right after it.

    The machine's clock drifts by some percent in the minutes that all cases take.
    """
    before = peak()
    record = child(name, contender, threads)
    after = peak()
    return record | {"peak_of_one_core": {key: (before[key] + after[key]) / 2 for key in before}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="measure the cases whose name begins so")
    parser.add_argument("--text", action="store_true", help="end to end instead of the op")
    parser.add_argument("--library", action="store_true", help="all pairs, gradients, alignments")
    parser.add_argument("--trial", type=int, default=0, metavar="PAIRS", help="of each text case")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "CONTENDER", "THREADS"))
    options = parser.parse_args()
    if options.one:
        name, contender, threads = options.one
        measure_one(name, contender, int(threads))
        return

    import flashbertscore  # noqa: PLC0415

    if options.trial:
        os.environ["FLASHBERTSCORE_PAIRS"] = str(options.trial)

    host = machine()
    cores = os.cpu_count() or 1
    if options.text:
        records = []
        for text in cases.TEXT:
            if text.name.startswith(options.only):
                both = [child(text.name, who, cores) for who in cases.TEXT_CONTENDERS]
                both[0] |= {"errors": errors(text.name)}
                records += both
                print(json.dumps(both[0]["errors"]), file=sys.stderr)
    elif options.library:
        import library_cases  # noqa: PLC0415

        records = [
            child(library.name, contender, cores)
            for library in library_cases.LIBRARY
            if library.name.startswith(options.only)
            for contender in library.contenders
        ]
    else:
        records = [
            (beside_peak if contender == "flashbertscore" else child)(
                case.name, contender, threads or cores
            )
            for case in cases.OP
            if case.name.startswith(options.only)
            for threads in case.threads
            for contender in case.contenders
        ]
    if options.trial:
        return
    result = {
        "machine": host,
        "peak_of_one_core": peak(),
        "isa": flashbertscore.isa(),
        "versions": {name: version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
        "commit": git("rev-parse", "--short", "HEAD"),
        "dirty": bool(git("status", "--porcelain")),
        "records": records,
    }
    kind = "-e2e" * options.text + "-library" * options.library
    path = RESULTS / f"{slug(host)}{kind}.json"
    if options.only and path.exists():
        old = json.loads(path.read_text())
        measured = {(r["case"], r["contender"], r["threads"]) for r in records}
        kept = [
            r for r in old["records"] if (r["case"], r["contender"], r["threads"]) not in measured
        ]
        result["records"] = kept + records
        result["dirty"] = True  # not of one run
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
