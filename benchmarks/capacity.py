"""The capacity of an index: what a document costs at 20 million, next to 1 million.

Sketches of random bits pass through an index in batches of 1,000: 20 bands and the whole text,
signatures of 128 bytes, ids of 20. 10 % are planted copies of documents of any age. Outside of the
timing, every planted copy must be found, under its original's id. Nothing expires.

- growth: processor time of probe and apply in the calling thread, over the last million documents,
  and of the background (flush, merge), over all documents since the row before: the merge of a
  slice is rare. Then a new process opens the index, and looks up documents. RAM is the anonymous
  memory that it has gained, for each kept document: filters and tables. RSS is the resident memory
  of the process that fills the index; it includes mapped files.
- cold: the files are dropped from the page cache. A new process opens the index, and probes without
  a pause for a minute.

With ``--directory`` the index stays there, and is not filled again if it is full. With ``--window``
the filters are those of a larger index, which is not filled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench_index import machine
from benchmarks.capacity_opening import COPIES
from benchmarks.index_measure import (
    LONG_SPAN,
    Memory,
    Work,
    disk_bytes,
    index_directory,
    other_threads,
)
from benchmarks.index_use import load_kernels, open_index
from benchmarks.planted_stream import BATCH, Stream
from streamdedup.index.store import Index
from tests.testkit.page_cache import drop_from_cache, files_below, resident_share

DOCUMENTS = 20_000_000
MARKS = (1_000_000, 2_000_000, 5_000_000, 10_000_000, 50_000_000, 100_000_000)
"""Kept documents after which the growth is measured, apart from the end."""
COLD_UNTIL_S = (1, 2, 5, 10, 15, 20, 30, 60)
"""Ends of the intervals after a cold opening over which probes are averaged."""
WARM_BATCHES = 50
HIGHEST_RATIO, MOST_BYTES, LONGEST_OPENING_S, SLOWEST_PROBE_US = 1.3, 40.0, 5.0, 50.0
"""Goals: cost at the end against 1 million, RAM of a document, warm opening, warmed probe."""

Figures = dict[str, Any]


def main() -> None:
    """Parse the arguments, fill the index, and open it cold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=DOCUMENTS, help="default: %(default)s")
    parser.add_argument("--window", type=int, help="index.window_documents; default: --documents")
    parser.add_argument("--directory", type=Path, help="keep the index here; default: temporary")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    documents, window = arguments.documents, arguments.window or arguments.documents
    load_kernels()
    figures: Figures = {"machine": machine(), "documents": documents, "window": window}
    with kept_directory(arguments.directory) as directory:
        with open_index(directory, window, sync=False) as index:
            is_full = index.next_number >= documents
        if not is_full:
            figures["growth"] = run_growth(directory, documents, window)
        figures["cold"] = run_cold(directory, window)
    if not is_full:
        print_goals(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    missed = figures["cold"]["missed"] + sum(
        row["missed"] + row["wrong"] for row in figures.get("growth", ())
    )
    if missed:
        raise SystemExit("the index missed planted copies, or found wrong documents")


@contextmanager
def kept_directory(directory: Path | None) -> Iterator[Path]:
    """Yield the directory, or a temporary one."""
    if directory is not None:
        yield directory
        return
    with index_directory(None) as temporary:
        yield temporary


def run_growth(directory: Path, documents: int, window: int) -> list[Figures]:
    """Fill an index, and measure it on the way."""
    print("growth; processor time in microseconds a document")
    print(
        f"{'documents':>11} {'caller':>7} {'backgr.':>7} {'both':>7} {'lookups':>7} "
        f"{'segments':>8} {'disk B':>7} {'RAM B':>6} {'RSS MB':>7} {'open s':>7} "
        f"{'probe us':>8} {'load':>5}"
    )
    rows: list[Figures] = []
    stream, start = Stream(window, COPIES), 0
    for mark in [*(mark for mark in MARKS if mark < documents), documents]:
        with open_index(directory, window, sync=False) as index:
            row, start = fill(index, stream, start, mark)
        row["disk_bytes"] = disk_bytes(directory) / row["kept"]
        warm = open_elsewhere(directory, window, WARM_BATCHES, (0,))
        row |= {"open_s": warm["open_s"], "probe_us": warm["rows"][0]["probe_us"]}
        row["ram_bytes"] = warm["anonymous_bytes"] / row["kept"]
        row["missed"] += warm["missed"]
        rows.append(row)
        print(format_row(row), flush=True)
    return rows


def fill(index: Index, stream: Stream, start: int, end: int) -> tuple[Figures, int]:
    """Fill an index until it holds ``end`` documents.

    Args:
        index: the index.
        stream: its documents.
        start: place of the next document in the stream.
        end: the number of the document to stop before.

    Returns:
        The figures, and the place of the next document.
    """
    first, background_s = start, other_threads()
    work = Work(index)
    while index.next_number < end:
        work.take(stream.batch(start))
        start += BATCH
    index.flush()
    index.settle()
    stats = index.stats()
    caller_us = work.caller_us(LONG_SPAN)
    background_us = (other_threads() - background_s) / (start - first) * 1e6
    row = {
        "kept": stats.documents,
        "caller_us": caller_us,
        "background_us": background_us,
        "both_us": caller_us + background_us,
        "lookups": stats.lookups / (start - first),
        "segments": stats.segments,
        "resident_bytes": Memory.now().resident,
        "missed": work.missed,
        "wrong": work.wrong,
        "load": os.getloadavg()[0],
    }
    return row, start


def format_row(row: Figures) -> str:
    """Return a row as it is printed."""
    return (
        f"{row['kept']:11,} {row['caller_us']:7.2f} {row['background_us']:7.2f} "
        f"{row['both_us']:7.2f} {row['lookups']:7.2f} {row['segments']:8} "
        f"{row['disk_bytes']:7.1f} {row['ram_bytes']:6.1f} {row['resident_bytes'] / 1e6:7,.0f} "
        f"{row['open_s']:7.2f} {row['probe_us']:8.2f} {row['load']:5.1f}"
    )


def run_cold(directory: Path, window: int) -> Figures:
    """Open an index that is not in the page cache."""
    files = files_below(directory)
    for path in files:
        drop_from_cache(path)
    share = resident_share(files)
    cold = open_elsewhere(directory, window, 1, COLD_UNTIL_S)
    print(
        f"\ncold: {share:.1%} of the files in the page cache; opened in {cold['open_s']:.2f} s"
        f"\n{'until s':>8} {'probed':>10} {'probe us':>9} {'cached':>7}"
    )
    for row in cold["rows"]:
        print(
            f"{row['until_s']:8.0f} {row['probed']:10,} {row['probe_us']:9.1f} "
            f"{row['cached']:7.1%}",
            flush=True,
        )
    return cold


def open_elsewhere(directory: Path, window: int, batches: int, until_s: Sequence[int]) -> Figures:
    """Open an index in a new process, and probe batches until some seconds after that."""
    command = [sys.executable, "-m", "benchmarks.capacity_opening", str(directory)]
    numbers = map(str, (window, batches, *until_s))
    folder = Path(__file__).parents[1]
    done = subprocess.run([*command, *numbers], stdout=subprocess.PIPE, check=True, cwd=folder)
    figures: Figures = json.loads(done.stdout)
    return figures


def print_goals(figures: Figures) -> None:
    """Print what the goals are about."""
    first, last = figures["growth"][0], figures["growth"][-1]
    ratio = last["both_us"] / first["both_us"]
    cold = figures["cold"]["rows"][-1]
    print(
        f"\ncost at {last['kept']:,} against {first['kept']:,}: {ratio:.2f} (goal "
        f"{HIGHEST_RATIO}); RAM of a document {last['ram_bytes']:.1f} bytes (goal {MOST_BYTES:g}); "
        f"warm opening {last['open_s']:.2f} s (goal {LONGEST_OPENING_S:g}); probe "
        f"up to {cold['until_s']:.0f} s after a cold opening {cold['probe_us']:.1f} us (goal "
        f"{SLOWEST_PROBE_US:g})"
    )


if __name__ == "__main__":
    main()
