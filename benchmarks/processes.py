"""*Blocking.* Processes that a benchmark starts and stops, and what they cost, from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STOP_S = 40.0
"""How long a process may take to end after SIGTERM: the worker drains for up to 30 s."""
_LOG_LINES = 15


class ProcessEnded(Exception):  # noqa: N818 - it says what happened
    """A process ended, or did not do what it was started for; the message has its last output."""


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


class Child:
    """A running process whose output is in a file. It is not in the terminal's process group.

    Args:
        command: the command.
        log: file for standard output and standard error.
        env: changes to the environment.
    """

    def __init__(
        self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        self.started_at = time.perf_counter()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self.pid = self._process.pid

    def log(self) -> str:
        """Return the output so far."""
        return self._log.read_text(errors="replace")

    def code(self, within_s: float = 0.0) -> int | None:
        """Return the exit code, None if the process runs for longer than ``within_s``."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def check(self) -> None:
        """Raise ProcessEnded if the process has ended."""
        code = self.code()
        if code is not None:
            raise ProcessEnded(f"a process ended with {code}:\n{self.tail()}")

    def tail(self) -> str:
        """Return the last lines of the output."""
        return "\n".join(self.log().splitlines()[-_LOG_LINES:])

    def wait_for(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until ``done`` returns True; raise ProcessEnded if that takes too long."""
        end = time.monotonic() + timeout_s
        while not done():
            self.check()
            if time.monotonic() > end:
                raise ProcessEnded(f"{what} took longer than {timeout_s:g} s:\n{self.tail()}")
            time.sleep(0.1)

    def cost(self) -> Cost:
        """Return the processor time of the process and of its descendants."""
        return cost_of(self.pid)

    def wait(self, timeout_s: float) -> int:
        """Wait for the end, and return the exit code."""
        return self._process.wait(timeout_s)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def stop(self) -> None:
        """Send SIGTERM, later SIGKILL, to this process; then SIGKILL to descendants that stay."""
        descendants = descendants_of(self.pid)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        for pid, started in descendants.items():
            if _start_of(pid) == started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def running(child: Child) -> Iterator[Child]:
    """Stop the process at the end."""
    try:
        yield child
    finally:
        child.stop()


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


def descendants_of(pid: int) -> dict[int, str]:
    """Return the running descendants of a process, with their start times."""
    children: dict[int, list[int]] = {}
    starts: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(entry)):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            starts[int(entry.name)] = fields[19]
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        waiting += below
        found |= {child: starts[child] for child in below}
    return found


def _start_of(pid: int) -> str | None:
    fields = _stat(Path("/proc", str(pid)))
    return fields[19] if fields else None


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
