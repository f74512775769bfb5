"""*Blocking.* Runs a program to its end, and measures what it cost."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.processes import Child, ProcessEnded, busy_seconds, resident_of, running

_LOOK_S = 0.5


class TookTooLong(ProcessEnded):
    """A program was stopped at its time limit."""


class Measured(NamedTuple):
    """What a process cost, which other load there was, and its last line of JSON."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    other_load: float
    figures: dict[str, Any]


def measure(
    command: list[str],
    folder: Path,
    limit_s: float | None = None,
    on_look: Callable[[int], None] = lambda _: None,
) -> Measured:
    """Run a program to its end.

    Args:
        command: the program, which prints its figures as a line of JSON at the end.
        folder: folder for its output.
        limit_s: seconds after which it is stopped.
        on_look: called with the id of the process, twice a second.

    Raises:
        TookTooLong: the limit is over.
        ProcessEnded: the program failed.
    """
    peak_bytes, cpu_s = 0, 0.0
    reaped_s, own_s, busy_s = _children_seconds(), time.process_time(), busy_seconds()
    with running(Child(command, folder / "log")) as child:
        while (code := child.code(_LOOK_S)) is None:
            resident, cost = resident_of(child.pid), child.cost()
            peak_bytes = max(peak_bytes, resident.main_peak + resident.children_peak)
            cpu_s = max(cpu_s, cost.main + cost.children)
            on_look(child.pid)
            if limit_s is not None and time.perf_counter() - child.started_at > limit_s:
                raise TookTooLong(f"{' '.join(command)} took longer than {limit_s:g} s")
        wall_s = time.perf_counter() - child.started_at
        if code:
            raise ProcessEnded(f"{' '.join(command)} ended with {code}:\n{child.tail()}")
        lines = [line for line in child.log().splitlines() if line.startswith("{")]
    # The last look was before the end. What was reaped has no descendants that were not.
    cpu_s = max(cpu_s, _children_seconds() - reaped_s)
    other_s = busy_seconds() - busy_s - cpu_s - (time.process_time() - own_s)
    other_load = max(0.0, other_s) / wall_s
    return Measured(wall_s, cpu_s, peak_bytes, other_load, json.loads(lines[-1]))


def _children_seconds() -> float:
    """Return the processor time of all processes that this one, or one of them, waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
