"""Documents per second of the index and of its peers in memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.index_measure import (
    REACH,
    Bar,
    index_directory,
    other_threads,
)
from benchmarks.index_peers import Filter, filters
from benchmarks.planted_stream import BATCH, Stream

_REPEATS = 3


class Pass(NamedTuple):
    """One run of a filter over the stream."""

    wall_s: float
    cpu_s: float
    recall: float
    wrong: int


def run_peers(documents: int, parent: Path | None) -> dict[str, Any]:
    """Measure each filter several times; the filters take turns."""
    with index_directory(parent) as directory:
        made = filters(directory, documents)
        passes: dict[str, list[Pass]] = {name: [] for name in made}
        total = documents * len(made) * _REPEATS
        with Bar("peers", total) as bar:
            for _ in range(_REPEATS):
                for name, make in made.items():
                    passes[name].append(run_filter(make, documents, bar))
    return print_peers(passes, documents)


def run_filter(make: Callable[[], Filter], documents: int, bar: Bar) -> Pass:
    """Pass the stream through a filter."""
    stream = Stream(int(documents * REACH))
    judged = make()
    wall_s = cpu_s = 0.0
    copies = hits = wrong = 0
    others = other_threads()

    def timed(work: Callable[[], Any]) -> Any:
        nonlocal wall_s, cpu_s
        wall, cpu = time.perf_counter(), judged.processor_time()
        result = work()
        wall_s += time.perf_counter() - wall
        cpu_s += judged.processor_time() - cpu
        return result

    try:
        for start in bar.each(range(0, documents, BATCH)):
            batch = stream.batch(start)
            prepared = judged.prepare(batch)
            found = np.array(timed(partial(judged.judge, prepared)))
            copies += int(batch.copies.sum())
            hits += int((batch.copies & found).sum())
            wrong += int((found & ~batch.copies).sum())
        timed(judged.finish)
        if judged.background:
            cpu_s += other_threads() - others
    finally:
        judged.close()
    return Pass(wall_s, cpu_s, hits / max(1, copies), wrong)


def print_peers(passes: dict[str, list[Pass]], documents: int) -> dict[str, Any]:
    """Print the medians, each relative to the first row."""
    print(
        f"\npeers, {documents:,} documents, medians of {_REPEATS}; the index's last flush included"
    )
    print(
        f"{'':56} {'docs/s':>9} {'row 1 / this':>13} {'CPU us/doc':>11} {'recall':>7} {'wrong':>6}"
    )
    figures: dict[str, Any] = {}
    for name, runs in passes.items():
        speed = documents / statistics.median(run.wall_s for run in runs)
        cpu_us = statistics.median(run.cpu_s for run in runs) / documents * 1e6
        figures[name] = {
            "documents_per_s": speed,
            "cpu_us": cpu_us,
            "recall": min(run.recall for run in runs),
            "wrong": max(run.wrong for run in runs),
            "runs_s": [run.wall_s for run in runs],
        }
        first = next(iter(figures.values()))["documents_per_s"]
        print(
            f"{name:56} {speed:9,.0f} {first / speed:13.2f} {cpu_us:11.2f} "
            f"{figures[name]['recall']:7.4f} {figures[name]['wrong']:6,}",
            flush=True,
        )
    return figures
