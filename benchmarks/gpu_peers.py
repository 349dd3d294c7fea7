"""Other fused kernels for the same pairs: MaxSim of late interaction, once in each direction.

They know one direction only: for every token of a query the best match in a document, summed. So
BERTScore takes two calls, candidate as query and reference as query, where the op takes one.

Each peer runs in a process of its own, ``python benchmarks/gpu_peers.py PEER``, which prints a row
of JSON per case: a kernel that crashes the device, or is compiled for minutes, must neither end
nor hold up the rest. A peer that is not installed, or fails, is a row that says so.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import normalize

from flashbertscore import functional
from gpu_cases import PEER_CASES, Case
from gpu_measure import embeddings, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    MaxSim = Callable[[Tensor, Tensor], Tensor]


def flash_maxsim() -> MaxSim:
    """Of flash-maxsim, which takes unit vectors and computes in float16."""
    import flash_maxsim as peer  # noqa: PLC0415 - at hand or not

    def call(query: Tensor, document: Tensor) -> Tensor:
        query, document = normalize(query, dim=-1), normalize(document, dim=-1)
        if len(query) == 1:  # in parts of 128 query tokens, for many blocks
            return peer.flash_maxsim(query[0], document)
        return peer.flash_maxsim_pairs(query, document)

    return call


def late_interaction_kernels() -> MaxSim:
    """Of late-interaction-kernels, which normalizes in its kernel."""
    import late_interaction_kernels as peer  # noqa: PLC0415 - at hand or not

    def call(query: Tensor, document: Tensor) -> Tensor:
        if len(query) == 1:  # likewise
            return peer.maxsim(query, document, normalize=True)[0]
        return peer.maxsim_pairs(query, document, normalize=True)

    return call


PEERS: dict[str, Callable[[], MaxSim]] = {  # by the name of the distribution
    "flash-maxsim": flash_maxsim,
    "late-interaction-kernels": late_interaction_kernels,
}


def both_directions(maxsim: MaxSim, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """P and R [B] of [B, N, D] and [B, M, D]."""
    return maxsim(x, y) / x.shape[1], maxsim(y, x) / y.shape[1]


def run_case(case: Case, maxsim: MaxSim, device: str = "cuda") -> dict[str, Any]:
    """Time, memory, and the largest difference of P and R from the op's."""
    x, y = embeddings(case, device)
    scores = functional.bertscore(x, y)
    ours, theirs = torch.stack(scores[:2]), torch.stack(both_directions(maxsim, x, y))
    row: dict[str, Any] = {"difference": (ours - theirs).abs().max().item()}
    row["ms"], row["peak_mib"] = measure(lambda: both_directions(maxsim, x, y))
    return row


def rows(peer: str) -> None:
    """Print a row for each case."""
    for case in PEER_CASES:
        try:
            row = run_case(case, PEERS[peer]())
        except Exception as problem:  # noqa: BLE001 - the next case may be one that it can do
            row = {"failed": " ".join(f"{type(problem).__name__}: {problem}".split())[:200]}
        print(json.dumps({"case": case.name, **row}), flush=True)
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _raising_sigterm() -> Iterator[None]:
    """Raise SystemExit at SIGTERM instead of ending at once."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ended(command: list[str], seconds: float) -> tuple[str, str]:
    """What a command printed within the time, and how it ended; nothing of it is left running."""
    with (
        _raising_sigterm(),
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # its compilers end with it
        ) as process,
    ):
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException as problem:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(problem, subprocess.TimeoutExpired):
                raise
            return process.communicate()[0], f"no result within {seconds:.0f} s"
    why = (errors.strip().splitlines() or ["no output"])[-1][:200]
    return output, f"ended with status {process.returncode}: {why}"


def run(peer: str, seconds: float) -> list[dict[str, Any]]:
    """The rows of a peer, whatever it does; at most ``seconds`` for all of them together."""
    try:
        version = importlib.metadata.version(peer)
    except importlib.metadata.PackageNotFoundError:
        return [{"case": "all cases", "peer": peer, "failed": "not installed"}]
    output, ended = _ended([sys.executable, __file__, peer], seconds)
    done = {}
    for line in output.splitlines():
        with contextlib.suppress(json.JSONDecodeError, KeyError, TypeError):
            row = json.loads(line)
            done[row["case"]] = row
    return [
        {"peer": f"{peer} {version}", **done.get(case.name, {"case": case.name, "failed": ended})}
        for case in PEER_CASES
    ]


if __name__ == "__main__":
    rows(sys.argv[1])
