"""The index on disk: what a document costs as it grows, beside its peers, and what else takes time.

Every part takes sketches that are ready, in batches of 1,000, of 20 bands and the whole text, with
signatures of 128 bytes and ids of 20; 5 % are planted copies of earlier documents of any age up to
0.9 windows. The index has the default settings: it is on disk, and each segment forced to it.

- growth: probe and apply, up to all documents. ``resolve`` is not part of it; that every planted
  copy is found, and under its original's id, is checked outside of the timing.
- opening: of that index, in a process of its own.
- peers: documents per second beside datasketch and rensa in memory; the repeats of all rows take
  turns, and their medians are printed.
- rebuild: changelog entries of 1,000 documents, read from a file, decoded and applied.
- expiry: 2.5 windows through a window.

Wall times are of the calls alone: between them, while a batch is made, the background goes on. So
processor time stands beside them: "caller" is that of the thread that calls the index, "background"
that of all other threads, for flushes and merges, spread over the last million documents.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.index_measure import (
    LONG_SPAN,
    SPAN,
    Bar,
    Memory,
    Work,
    disk_bytes,
    drop_from_cache,
    other_threads,
)
from benchmarks.index_peers import Filter, filters
from benchmarks.index_use import PARAMETERS, load_kernels, open_index
from benchmarks.planted_stream import BATCH, COPIES, Stream
from streamdedup.formats import changelog

DOCUMENTS = 10_000_000
QUICK = 300_000
SECOND = 2 * SPAN
MARKS = (SECOND, 1_000_000, 3_000_000)
"""Where the growth is looked at, beside the end."""
REACH = 0.9
"""How far back copies reach, in windows."""
PEER_DOCUMENTS = 100_000
REPEATS = 3
REBUILT = 1_000_000
EXPIRY_WINDOW = 1_000_000
THROUGH = 2.5
"""Windows that go through the window."""
_LARGEST_ENTRY = 2**30
_LENGTH_BYTES = 4


@contextmanager
def index_directory(parent: Path | None) -> Iterator[Path]:
    """Make a directory for an index, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-index-", dir=parent) as directory:
        yield Path(directory)


def run_growth(documents: int, parent: Path | None) -> dict[str, Any]:
    """Fill an index, look at it on the way, and open it again."""
    marks = {mark for mark in (*MARKS, documents) if mark <= documents}
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
        start = Memory.now()
        with open_index(directory, documents) as index, Bar("growth", documents) as bar:
            work = Work(index)
            for at in bar.each(range(0, documents, BATCH)):
                work.take(stream.batch(at))
                if work.documents in marks:
                    rows.append(look(work, directory, start))
                    bar.say(grown(rows[-1]))
            began = time.perf_counter()
            index.flush()
            flushed_s = time.perf_counter() - began
            stats = dataclasses.asdict(index.stats())
        settled = {"disk_bytes": disk_bytes(directory), "stats": stats}
        opening = run_opening(directory, documents, reach)
    print(
        f"\n{_answers(work)}; the last flush took {flushed_s:.2f} s; at the end RAM beyond the "
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


def look(work: Work, directory: Path, start: Memory) -> dict[str, Any]:
    """Measure one row of the growth."""
    now = Memory.now()
    return {
        "documents": work.documents,
        **work.costs(),
        **work.batches(),
        "resident_bytes": now.resident - start.resident,
        "anonymous_bytes": now.anonymous - start.anonymous,
        "disk_bytes": disk_bytes(directory),
        "kept": work.index.next_number,
        "load": os.getloadavg()[0],
        "stats": dataclasses.asdict(work.index.stats()),
    }


def grown(row: dict[str, Any]) -> str:
    """Return a row of the growth as it is printed."""
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
    """Print what is on disk after the end, by part where the index says so."""
    stats = settled["stats"]
    documents = stats["documents"]
    print(
        f"closed: {documents:,} documents on disk, "
        f"{settled['disk_bytes'] / max(1, documents):.1f} bytes each"
    )
    print(
        "the index says: "
        + ", ".join(_said(name, value, documents) for name, value in stats.items())
    )


def _said(name: str, value: object, documents: int) -> str:
    if not isinstance(value, int):
        return f"{name} {value}"
    each = f" ({value / max(1, documents):.1f} a document)" if "bytes" in name else ""
    return f"{name} {value:,}{each}"


def print_ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Print the last documents against the second ones."""
    first, last = rows[0], rows[-1]
    if first["documents"] != SECOND or first is last:
        return {}
    names = ("wall_us", "caller_us", "all_threads_us")
    ratios = {name: last[name] / first[name] for name in names}
    # The second 100,000 have hardly seen a flush; the cost of theirs comes later.
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
    """Open an index in processes of their own, from the page cache and without it."""
    warm = open_elsewhere(directory, documents, reach)
    for path in directory.rglob("*"):
        if path.is_file():
            drop_from_cache(path)
    return {"warm": warm, "cold": open_elsewhere(directory, documents, reach)}


def open_elsewhere(directory: Path, documents: int, reach: int) -> dict[str, float]:
    """Open an index in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.index_opening", str(directory)]
    numbers = [documents, documents, reach, time.monotonic()]
    done = subprocess.run(  # noqa: S603 - our own program
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


class Pass(NamedTuple):
    """One run of a filter over the stream."""

    wall_s: float
    cpu_s: float
    recall: float
    wrong: int


def run_peers(documents: int, parent: Path | None) -> dict[str, Any]:
    """Measure each filter several times, in turns."""
    with index_directory(parent) as directory:
        made = filters(directory, documents)
        passes: dict[str, list[Pass]] = {name: [] for name in made}
        total = documents * len(made) * REPEATS
        with Bar("peers", total) as bar:
            for _ in range(REPEATS):
                for name, make in made.items():
                    passes[name].append(run_filter(make, documents, bar))
    return print_peers(passes, documents)


def run_filter(make: Callable[[], Filter], documents: int, bar: Bar) -> Pass:
    """Send the stream through a filter."""
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
        for at in bar.each(range(0, documents, BATCH)):
            batch = stream.batch(at)
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
    """Print the medians, each beside the first row."""
    print(
        f"\npeers, {documents:,} documents, medians of {REPEATS}; the index's last flush included"
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


def run_rebuild(documents: int, parent: Path | None) -> dict[str, Any]:
    """Write changelog entries to a file; then build an index of them."""
    with index_directory(parent) as directory:
        entries = directory / "entries"
        write_entries(entries, documents)
        wall, cpu = time.perf_counter(), time.process_time()
        with open_index(directory / "index", documents) as index:
            opened = time.perf_counter()
            with Bar("rebuild", documents) as bar:
                starts = bar.each(range(0, documents, BATCH))
                for _, entry in zip(starts, read_entries(entries), strict=True):
                    update = changelog.decode(entry, PARAMETERS.fingerprint())
                    index.apply(update, index.applied + 1)
            applied_s = time.perf_counter() - opened
            index.flush()
            complete = index.next_number == documents
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        size = entries.stat().st_size
    figures = {
        "documents": documents,
        "documents_per_s": documents / applied_s,
        "documents_per_s_flushed_and_closed": documents / wall,
        "cpu_us": cpu / documents * 1e6,
        "entry_bytes": size / documents,
        "complete": complete,
    }
    print(
        f"\nrebuild from {documents:,} documents in changelog entries of {BATCH:,} "
        f"({figures['entry_bytes']:.0f} bytes a document): {figures['documents_per_s']:,.0f} "
        f"documents/s, {figures['documents_per_s_flushed_and_closed']:,.0f} with the last flush "
        f"and the closing; {figures['cpu_us']:.2f} us of processor time of all threads a document",
        flush=True,
    )
    return figures


def write_entries(path: Path, documents: int) -> None:
    """Write the entries one after the other, each after its length."""
    stream = Stream(documents, copies=0.0)
    with path.open("wb") as file, Bar("changelog entries", documents) as bar:
        for at in bar.each(range(0, documents, BATCH)):
            batch = stream.batch(at)
            update = batch.update(~batch.copies, at)
            for entry in changelog.encode(update, PARAMETERS.fingerprint(), _LARGEST_ENTRY):
                file.write(len(entry).to_bytes(_LENGTH_BYTES, "little") + entry)


def read_entries(path: Path) -> Iterator[bytes]:
    """Yield the entries."""
    with path.open("rb") as file:
        while length := file.read(_LENGTH_BYTES):
            yield file.read(int.from_bytes(length, "little"))


def run_expiry(window: int, parent: Path | None) -> dict[str, Any]:
    """Send more documents through an index than its window holds."""
    documents = int(window * THROUGH) // BATCH * BATCH
    stream = Stream(int(window * REACH))
    with index_directory(parent) as directory:
        with open_index(directory, window) as index, Bar("expiry", documents) as bar:
            work = Work(index)
            for at in bar.each(range(0, documents, BATCH)):
                work.take(stream.batch(at))
            index.flush()
            kept = min(window, index.next_number)
            stats = dataclasses.asdict(index.stats())
        disk = disk_bytes(directory)
    on_disk = stats["documents"]
    after = work.batch_ms[int(window / (1 - COPIES)) // BATCH :]
    figures = {
        "window": window,
        "documents": documents,
        **work.costs(),
        "median_ms": float(np.median(after)),
        "max_ms": float(after.max()),
        "documents_on_disk": on_disk,
        "bytes_per_document_in_window": disk / kept,
        "settled": {"disk_bytes": disk, "stats": stats},
        **work.checks,
    }
    print(
        f"\nexpiry, {documents:,} documents through a window of {window:,}: once the window is "
        f"full a batch takes {figures['median_ms']:.2f} ms in the median, the largest "
        f"{figures['max_ms']:.1f} ms; in the end {on_disk:,} documents are on disk, "
        f"{figures['bytes_per_document_in_window']:.1f} bytes a document in the window\n"
        f"{_answers(work)}",
        flush=True,
    )
    return figures


def _answers(work: Work) -> str:
    checks = work.checks
    return (
        f"recall {checks['recall']:.6f} of {checks['copies']:,} planted copies, "
        f"{checks['wrong']:,} documents found wrongly"
    )


def machine() -> dict[str, Any]:
    """Say where this ran."""
    return {
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Read the arguments and run the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--documents", type=int, default=DOCUMENTS, help="default: %(default)s")
    size.add_argument(
        "--quick", dest="documents", action="store_const", const=QUICK, help=f"only {QUICK:,}"
    )
    names = ("growth", "peers", "rebuild", "expiry")
    parser.add_argument("--parts", nargs="+", default=names, choices=names)
    parser.add_argument("--directory", type=Path, help="where the indexes are; default: temporary")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    documents, parent = arguments.documents // BATCH * BATCH, arguments.directory
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "growth": lambda: run_growth(documents, parent),
        "peers": lambda: run_peers(min(PEER_DOCUMENTS, documents), parent),
        "rebuild": lambda: run_rebuild(min(REBUILT, documents), parent),
        "expiry": lambda: run_expiry(min(EXPIRY_WINDOW, documents // 3), parent),
    }
    figures: dict[str, Any] = {"machine": machine()}
    load_kernels()
    for name in arguments.parts:
        figures[name] = parts[name]()
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    refuse_wrong(figures)


def refuse_wrong(figures: dict[str, Any]) -> None:
    """End with an error where an answer was wrong: then no speed counts."""
    for name in ("growth", "expiry"):
        found = figures.get(name, {"recall": 1.0, "wrong": 0})
        if found["recall"] < 1 or found["wrong"]:
            raise SystemExit(f"{name}: the index missed planted copies, or found others")
    openings = figures.get("growth", {"opening": {}})["opening"]
    if any(figures["missed"] for figures in openings.values()):
        raise SystemExit("opening: the index missed planted copies")
    if not figures.get("rebuild", {"complete": True})["complete"]:
        raise SystemExit("rebuild: documents are missing")


if __name__ == "__main__":
    main()
