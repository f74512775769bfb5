"""*Blocking.* Runs a program to its end, and measures what processes cost, from /proc."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from deploy.processes import Child, ProcessEnded

_LOOK_S = 0.5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class TookTooLong(ProcessEnded):
    """A program was stopped at its time limit."""


class Cost(NamedTuple):
    """Processor seconds of a process since its start.

    Attributes:
        main: of the process itself.
        loop: of its first thread, which runs the event loop; a part of ``main``.
        children: of its descendants that are running.
    """

    main: float
    loop: float
    children: float

    def since(self, earlier: Cost) -> Cost:
        """Return the difference."""
        return Cost(*(late - early for late, early in zip(self, earlier, strict=True)))


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
    with Child(command, folder / "log") as child:
        while (code := child.code(_LOOK_S)) is None:
            resident, cost = resident_of(child.pid), cost_of(child.pid)
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


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end the program as Ctrl-C does, so that its processes are stopped."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def cost_of(pid: int) -> Cost:
    """Return the processor time of a process and of its descendants; zero if it has ended."""
    children = sum(_seconds(Path("/proc", str(child))) for child in descendants_of(pid))
    process = Path("/proc", str(pid))
    return Cost(_seconds(process), _seconds(process / "task" / str(pid)), children)


def busy_seconds() -> float:
    """Return the processor time of the whole machine since its start."""
    with Path("/proc/stat").open() as file:
        user, nice, system, _idle, _wait, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def java_below(pid: int) -> int | None:
    """Return the id of the Java process among the descendants of a process."""
    return next((child for child in descendants_of(pid) if name_of(child) == "java"), None)


class Resident(NamedTuple):
    """Resident memory of a process and of its running descendants together, in bytes.

    Attributes:
        main: of the process now.
        children: of the descendants now.
        main_peak: the largest of the process since its start.
        children_peak: the largest of each descendant since its start, added.
        main_anonymous: the part of ``main`` that is not mapped files, such as those of the index.
    """

    main: int
    children: int
    main_peak: int
    children_peak: int
    main_anonymous: int


def resident_of(pid: int) -> Resident:
    """Return the resident memory of a process and of its descendants."""
    main, main_peak, anonymous = _resident(pid)
    children = [_resident(child) for child in descendants_of(pid)]
    now, peak = (sum(sizes[index] for sizes in children) for index in (0, 1))
    return Resident(main, now, main_peak, peak, anonymous)


def proportional_of(pid: int) -> int:
    """Return the resident memory of a process, with its part of each shared page, in bytes."""
    try:
        lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def name_of(pid: int) -> str:
    """Return the name of a process; empty if it has ended."""
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""


def descendants_of(pid: int) -> list[int]:
    """Return the running descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(entry)):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def _seconds(folder: Path) -> float:
    fields = _stat(folder)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0


def _stat(folder: Path) -> list[str]:
    """Return the fields of ``stat`` after the name of the program; none if the process ended."""
    try:
        text = (folder / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _resident(pid: int) -> tuple[int, int, int]:
    """Return the resident memory of a process, its peak, and its anonymous part, in bytes."""
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return 0, 0, 0
    fields = dict(line.split(":", 1) for line in lines)
    now, peak, anonymous = (
        int(fields.get(name, "0").split()[0]) * 1024 for name in ("VmRSS", "VmHWM", "RssAnon")
    )
    return now, peak, anonymous
