"""Open an index in a new process, probe it, and print the duration of each step as JSON.

Run by :mod:`benchmarks.index_growth`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from benchmarks.index_use import find, load_kernels, open_index
from benchmarks.planted_stream import BATCH, Stream

PROBED = 20
"""Batches that are probed after opening."""


def main() -> None:
    """Parse the arguments, open, probe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("documents", type=int, help="that the stream has brought so far")
    parser.add_argument("window", type=int)
    parser.add_argument("reach", type=int, help="of the stream")
    parser.add_argument("started", type=float, help="when the process was, on the monotonic clock")
    arguments = parser.parse_args()
    stream = Stream(arguments.reach)
    times = [arguments.started, time.monotonic()]
    load_kernels()
    times.append(time.monotonic())
    index = open_index(arguments.directory, arguments.window)
    times.append(time.monotonic())
    seconds, copies, missed = [], 0, 0
    for number in range(PROBED):
        batch = stream.batch(arguments.documents + number * BATCH)
        start = time.perf_counter()
        candidates = index.probe(batch.documents)
        seconds.append(time.perf_counter() - start)
        expected = batch.copies & (batch.originals < arguments.documents)
        copies += int(expected.sum())
        missed += int((expected & ~find(batch, candidates)).sum())
    index.close()
    imports_s, kernels_s, open_s = np.diff(times).tolist()
    print(
        json.dumps(
            {
                "open_s": open_s,
                "imports_s": imports_s,
                "kernels_s": kernels_s,
                "process_s": imports_s + kernels_s + open_s,
                "first_probe_ms": seconds[0] * 1e3,
                "probe_us": sum(seconds) / PROBED / BATCH * 1e6,
                "copies": copies,
                "missed": missed,
            }
        )
    )


if __name__ == "__main__":
    main()
