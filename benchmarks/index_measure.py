"""Tools to measure the index: timed work, memory, disk, a progress bar."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.index_use import count_wrong, find
from benchmarks.planted_stream import BATCH, Batch
from benchmarks.progress import Shown
from streamdedup.index.store import Index

SPAN = 100_000
"""Documents over which a figure of the growth is averaged."""
LONG_SPAN = 1_000_000
"""Documents over which the background's work is averaged: flushes and merges are rare."""
LAST_BATCHES = 1000
REACH = 0.9
"""How far back copies reach, in windows."""
_REPORTED_EVERY = 10
"""Batches between two updates of the progress bar."""

Floats = NDArray[np.float64]


class Memory(NamedTuple):
    """Memory of the process in bytes; the difference is mapped files."""

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
    """Probes and applies batches, and records their costs and whether the answers were right.

    Args:
        index: used from this thread alone.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.copies = self.missed = self.wrong = 0
        self._wall: list[float] = []
        self._cpu: list[float] = []
        self._background: list[float] = [other_threads()]

    def take(self, batch: Batch) -> None:
        """Judge one batch, and keep what was not found."""
        wall, cpu = time.perf_counter(), time.thread_time()
        candidates = self.index.probe(batch.documents)
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        found = find(batch, candidates)
        self.copies += int(batch.copies.sum())
        self.missed += int((batch.copies & ~found).sum())
        self.wrong += count_wrong(batch, candidates)
        update, applied = batch.update(~found, self.index.next_number), self.index.applied + 1
        # The clocks continue from their readings.
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        self.index.apply(update, applied)
        self._wall.append(time.perf_counter() - wall)
        self._cpu.append(time.thread_time() - cpu)
        self._background.append(other_threads())

    @property
    def documents(self) -> int:
        """Number of documents so far."""
        return len(self._wall) * BATCH

    @property
    def batch_ms(self) -> Floats:
        """Wall time of each batch."""
        return np.array(self._wall) * 1e3

    @property
    def checks(self) -> dict[str, Any]:
        """How many planted copies there were, their recall, and how many answers were wrong."""
        recall = 1 - self.missed / self.copies if self.copies else 1.0
        return {"copies": self.copies, "recall": recall, "wrong": self.wrong}

    def costs(self) -> dict[str, float]:
        """Return microseconds per document, averaged over ``SPAN`` and ``LONG_SPAN`` documents."""
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

    def caller_us(self, documents: int) -> float:
        """Return processor time of the calling thread over the last documents, for each."""
        last = self._cpu[-documents // BATCH :]
        return sum(last) / (len(last) * BATCH) * 1e6

    def batches(self) -> dict[str, float]:
        """Return the wall time of the last batches in milliseconds."""
        last = self.batch_ms[-LAST_BATCHES:]
        return {
            "median_ms": float(np.median(last)),
            "p99_ms": float(np.quantile(last, 0.99)),
            "max_ms": float(last.max()),
        }


class Bar(Shown):
    """A progress bar without a thread of its own, which would count as the index's background."""

    def __init__(self, name: str, total: int) -> None:
        super().__init__(name, total, refreshes=False)

    def each(self, batches: range) -> Iterator[int]:
        """Yield the starts of batches, and advance the bar after each one."""
        for number, start in enumerate(batches):
            yield start
            self._progress.update(self._task, advance=batches.step)
            if number % _REPORTED_EVERY == 0:
                self._progress.refresh()


def other_threads() -> float:
    """Return the processor time of all other threads, in seconds."""
    return time.process_time() - time.thread_time()


def disk_bytes(directory: Path) -> int:
    """Return the disk usage of a directory; files may disappear meanwhile."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


@contextmanager
def index_directory(parent: Path | None) -> Iterator[Path]:
    """Create a directory for an index, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-index-", dir=parent) as directory:
        yield Path(directory)


def answers(work: Work) -> str:
    """Describe how many of the answers were right."""
    checks = work.checks
    return (
        f"recall {checks['recall']:.6f} of {checks['copies']:,} planted copies, "
        f"{checks['wrong']:,} documents found wrongly"
    )
