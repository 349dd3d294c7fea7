"""Time and peak memory of one call, as one record."""

from __future__ import annotations

import re
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Record:
    """What a call cost. Times in seconds, memory in MiB beyond what was resident before."""

    median: float
    minimum: float
    maximum: float
    peak: float
    runs: int

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def resident(field: str) -> float:
    """A field of the kernel's account of this process, in MiB."""
    match = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    assert match is not None, f"{STATUS} has no {field}"
    return int(match[1]) / 1024


class HighWater:
    """The most memory that is resident from now on, beyond what is resident now."""

    def __init__(self) -> None:
        """Start: the kernel's high-water mark begins again from what is resident now."""
        self._before = resident("VmRSS")
        CLEAR.write_text("5")

    def read(self) -> float:
        """MiB beyond the start."""
        return max(resident("VmHWM") - self._before, 0.0)


def measure(call: Callable[[], object], runs: int, *, warm_up: bool = True) -> Record:
    """Run ``call`` once for its peak memory and ``runs`` times for its time.

    The first run is the one whose memory counts: later ones find pages that the allocator kept. Run
    each contender in a process of its own.
    """
    mark = HighWater()
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    peak = mark.read()
    times = [] if warm_up else [first]
    while len(times) < runs:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return Record(statistics.median(times), min(times), max(times), peak, runs)
