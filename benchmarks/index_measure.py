"""What the benchmarks of the index measure with: work that is timed, memory, disk, a bar."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.index_use import count_wrong, find
from benchmarks.planted_stream import BATCH, Batch
from streamdedup.index.store import Index

SPAN = 100_000
"""Documents that a figure of the growth is about."""
LONG_SPAN = 1_000_000
"""Documents over which the background's work is spread: flushes and merges come seldom."""
LAST_BATCHES = 1000
_REPORTED_EVERY = 10
"""Batches between two moves of the progress bar."""

Floats = NDArray[np.float64]


class Memory(NamedTuple):
    """What the process holds, in bytes; mapped files are the difference."""

    resident: int
    anonymous: int

    @classmethod
    def now(cls) -> Self:
        """Ask the kernel."""
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines[1:])
        sizes = [int(fields[name].split()[0]) * 1024 for name in ("Rss", "Anonymous")]
        return cls(*sizes)


class Work:
    """Probes and applies batches; remembers what each cost, and whether the answers were right.

    Args:
        index: which is used from this thread alone.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.copies = self.missed = self.wrong = 0
        self._wall: list[float] = []
        self._cpu: list[float] = []
        self._background: list[float] = [other_threads()]

    def take(self, batch: Batch) -> None:
        """Judge one batch, keep what was not found."""
        wall, cpu = time.perf_counter(), time.thread_time()
        candidates = self.index.probe(batch.documents)
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        found = find(batch, candidates)
        self.copies += int(batch.copies.sum())
        self.missed += int((batch.copies & ~found).sum())
        self.wrong += count_wrong(batch, candidates)
        update, applied = batch.update(~found, self.index.next_number), self.index.applied + 1
        # The clocks go on where they stood.
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        self.index.apply(update, applied)
        self._wall.append(time.perf_counter() - wall)
        self._cpu.append(time.thread_time() - cpu)
        self._background.append(other_threads())

    @property
    def documents(self) -> int:
        """How many were taken."""
        return len(self._wall) * BATCH

    @property
    def batch_ms(self) -> Floats:
        """Wall time of each batch."""
        return np.array(self._wall) * 1e3

    @property
    def checks(self) -> dict[str, Any]:
        """How many of the planted copies were found, and what else was."""
        recall = 1 - self.missed / self.copies if self.copies else 1.0
        return {"copies": self.copies, "recall": recall, "wrong": self.wrong}

    def costs(self) -> dict[str, float]:
        """Return microseconds a document: of the last ones, the background's over more of them."""
        last = min(SPAN, self.documents)
        long = min(LONG_SPAN, self.documents)
        background = self._background[-1] - self._background[-1 - long // BATCH]
        wall_us, caller_us = (
            sum(seconds[-last // BATCH :]) / last * 1e6 for seconds in (self._wall, self._cpu)
        )
        background_us = background / long * 1e6
        return {
            "wall_us": wall_us,
            "caller_us": caller_us,
            "background_us": background_us,
            "all_threads_us": caller_us + background_us,
        }

    def batches(self) -> dict[str, float]:
        """Return the wall time of the last batches in milliseconds."""
        last = self.batch_ms[-LAST_BATCHES:]
        return {
            "median_ms": float(np.median(last)),
            "p99_ms": float(np.quantile(last, 0.99)),
            "max_ms": float(last.max()),
        }


class Bar:
    """How far a part is, on standard error when that is a terminal.

    It draws only when it is told to: a thread of its own would count as the index's background.
    """

    def __init__(self, name: str, total: int) -> None:
        console = Console(stderr=True)
        columns = (BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(
            TextColumn("{task.description}"),
            *columns,
            console=console,
            disable=not console.is_terminal,
            auto_refresh=False,
            redirect_stdout=False,
            expand=True,
            transient=True,
        )
        self._task = self._progress.add_task(name, total=total)

    def each(self, batches: range) -> Iterator[int]:
        """Yield the starts of batches, and show them as done one by one."""
        for number, start in enumerate(batches):
            yield start
            self._progress.update(self._task, advance=batches.step)
            if number % _REPORTED_EVERY == 0:
                self._progress.refresh()

    def say(self, line: str) -> None:
        """Print a line of a table, on standard output."""
        self._stop()
        print(line, flush=True)
        self._progress.start()

    def _stop(self) -> None:
        if not self._progress.disable:
            self._progress.stop()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()


def other_threads() -> float:
    """Return the processor time of all threads but this one, in seconds."""
    return time.process_time() - time.thread_time()


def disk_bytes(directory: Path) -> int:
    """Return what the files of a directory take, those that go away meanwhile left out."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def drop_from_cache(path: Path) -> None:
    """Make the kernel forget a file's pages."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
