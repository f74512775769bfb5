"""Open an index in a new process, probe it for some time, and print the figures as JSON.

Run by :mod:`benchmarks.capacity`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.index_measure import Memory
from benchmarks.index_use import find, load_kernels, open_index
from benchmarks.planted_stream import BATCH, Stream
from tests.testkit.page_cache import files_below, resident_share

COPIES = 0.1
"""Share of the documents that are copies."""


def main() -> None:
    """Parse the arguments, open, probe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("window", type=int, help="of the index")
    parser.add_argument("batches", type=int, help="to probe in each interval, at least")
    parser.add_argument("until", type=float, nargs="+", help="ends of intervals, in seconds")
    arguments = parser.parse_args()
    stream = Stream(arguments.window, COPIES)
    load_kernels()
    before = Memory.now().anonymous
    began = time.perf_counter()
    index = open_index(arguments.directory, arguments.window, sync=False)
    opened = time.perf_counter()
    start = end = index.applied * BATCH  # each update was a batch
    rows: list[dict[str, Any]] = []
    missed = 0
    for until in arguments.until:
        seconds: list[float] = []
        while len(seconds) < arguments.batches or time.perf_counter() < opened + until:
            batch = stream.batch(start)
            since = time.perf_counter()
            candidates = index.probe(batch.documents)
            seconds.append(time.perf_counter() - since)
            known = batch.copies & (batch.originals < end)
            missed += int((known & ~find(batch, candidates)).sum())
            start += BATCH
        rows.append(
            {
                "until_s": until,
                "probed": len(seconds) * BATCH,
                "probe_us": sum(seconds) / len(seconds) / BATCH * 1e6,
                "cached": resident_share(files_below(arguments.directory / "segments")),
            }
        )
    anonymous = Memory.now().anonymous - before
    index.close()
    print(
        json.dumps(
            {"open_s": opened - began, "rows": rows, "missed": missed, "anonymous_bytes": anonymous}
        )
    )


if __name__ == "__main__":
    main()
