"""What a document costs an index as it grows, and what opening the index costs then."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.index_measure import (
    LONG_SPAN,
    REACH,
    SPAN,
    Bar,
    Memory,
    Work,
    answers,
    disk_bytes,
    index_directory,
)
from benchmarks.index_use import open_index
from benchmarks.planted_stream import BATCH, Stream
from tests.testkit.page_cache import drop_from_cache

_SECOND = 2 * SPAN
_MARKS = (_SECOND, 1_000_000, 3_000_000)
"""Numbers of documents after which the growth is measured, apart from the end."""


def run_growth(documents: int, parent: Path | None) -> dict[str, Any]:
    """Fill an index, measure it on the way, and open it again."""
    marks = {mark for mark in (*_MARKS, documents) if mark <= documents}
    reach = int(documents * REACH)
    stream = Stream(reach)
    rows = []
    print(f"\ngrowth, window of {documents:,} documents; microseconds a document")
    print(
        f"{'documents':>11} {'wall':>7} {'caller':>7} {'backgr.':>7} {'all':>7}   "
        f"{'batch ms median / p99 / max':27} {'RAM MB':>7} {'RSS MB':>7} {'segments':>8} "
        f"{'disk B/doc':>10} {'load':>5}"
    )
    with index_directory(parent) as directory:
        before = Memory.now()
        with open_index(directory, documents) as index, Bar("growth", documents) as bar:
            work = Work(index)
            for start in bar.each(range(0, documents, BATCH)):
                work.take(stream.batch(start))
                if work.documents in marks:
                    rows.append(measure(work, directory, before))
                    bar.say(format_row(rows[-1]))
            began = time.perf_counter()
            index.flush()
            flushed_s = time.perf_counter() - began
            stats = dataclasses.asdict(index.stats())
        settled = {"disk_bytes": disk_bytes(directory), "stats": stats}
        opening = run_opening(directory, documents, reach)
    print(
        f"\n{answers(work)}; the last flush took {flushed_s:.2f} s; at the end RAM beyond the "
        f"start was {rows[-1]['anonymous_bytes'] / rows[-1]['kept']:.1f} bytes a document"
    )
    print_settled(settled)
    ratios = print_ratios(rows)
    print_opening(opening)
    return {
        "rows": rows,
        "ratios": ratios,
        "flush_s": flushed_s,
        "settled": settled,
        "opening": opening,
        **work.checks,
    }


def measure(work: Work, directory: Path, before: Memory) -> dict[str, Any]:
    """Return the figures of one row."""
    now = Memory.now()
    return {
        "documents": work.documents,
        **work.costs(),
        **work.batches(),
        "resident_bytes": now.resident - before.resident,
        "anonymous_bytes": now.anonymous - before.anonymous,
        "disk_bytes": disk_bytes(directory),
        "kept": work.index.next_number,
        "load": os.getloadavg()[0],
        "stats": dataclasses.asdict(work.index.stats()),
    }


def format_row(row: dict[str, Any]) -> str:
    """Return a row as it is printed."""
    costs = " ".join(
        f"{row[name]:7.2f}" for name in ("wall_us", "caller_us", "background_us", "all_threads_us")
    )
    batches = f"{row['median_ms']:.2f} / {row['p99_ms']:.2f} / {row['max_ms']:.1f}"
    return (
        f"{row['documents']:11,} {costs}   {batches:27} {row['anonymous_bytes'] / 1e6:7,.0f} "
        f"{row['resident_bytes'] / 1e6:7,.0f} {row['stats'].get('segments', '-'):>8} "
        f"{row['disk_bytes'] / row['kept']:10.1f} {row['load']:5.1f}"
    )


def print_settled(settled: dict[str, Any]) -> None:
    """Print what is on disk after the index is closed."""
    stats = settled["stats"]
    documents = stats["documents"]
    print(
        f"closed: {documents:,} documents on disk, "
        f"{settled['disk_bytes'] / max(1, documents):.1f} bytes each"
    )
    print(
        "the index says: "
        + ", ".join(_described(name, value, documents) for name, value in stats.items())
    )


def _described(name: str, value: object, documents: int) -> str:
    if not isinstance(value, int):
        return f"{name} {value}"
    each = f" ({value / max(1, documents):.1f} a document)" if "bytes" in name else ""
    return f"{name} {value:,}{each}"


def print_ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Print the costs of the last documents relative to those of the second ones."""
    first, last = rows[0], rows[-1]
    if first["documents"] != _SECOND or first is last:
        return {}
    names = ("wall_us", "caller_us", "all_threads_us")
    ratios = {name: last[name] / first[name] for name in names}
    # Hardly any flush has run by the second 100,000 documents; their cost comes later.
    steady = last["background_us"]
    ratios["steady"] = (last["caller_us"] + steady) / (first["caller_us"] + steady)
    print(
        f"last {SPAN:,} against second: wall {ratios['wall_us']:.2f}, "
        f"caller {ratios['caller_us']:.2f}, all threads {ratios['all_threads_us']:.2f}; with the "
        f"background of the last {min(LONG_SPAN, last['documents']):,} on both sides "
        f"{ratios['steady']:.2f}"
    )
    return ratios


def run_opening(directory: Path, documents: int, reach: int) -> dict[str, Any]:
    """Open an index in new processes, with a warm page cache and with a cold one."""
    warm = open_elsewhere(directory, documents, reach)
    for path in directory.rglob("*"):
        if path.is_file():
            drop_from_cache(path)
    return {"warm": warm, "cold": open_elsewhere(directory, documents, reach)}


def open_elsewhere(directory: Path, documents: int, reach: int) -> dict[str, float]:
    """Open an index in a new process."""
    command = [sys.executable, "-m", "benchmarks.index_opening", str(directory)]
    numbers = [documents, documents, reach, time.monotonic()]
    done = subprocess.run(
        [*command, *map(str, numbers)],
        stdout=subprocess.PIPE,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def print_opening(opening: dict[str, Any]) -> None:
    """Print both openings."""
    print("\nopening, in a process of its own; seconds")
    print(
        f"{'page cache':11} {'open':>7} {'imports':>8} {'kernels':>8} {'process':>8} "
        f"{'first batch ms':>15} {'probe us/doc':>13} {'missed':>7}"
    )
    for name, figures in opening.items():
        print(
            f"{name:11} {figures['open_s']:7.3f} {figures['imports_s']:8.2f} "
            f"{figures['kernels_s']:8.2f} {figures['process_s']:8.2f} "
            f"{figures['first_probe_ms']:15.2f} {figures['probe_us']:13.2f} {figures['missed']:7,}",
            flush=True,
        )
