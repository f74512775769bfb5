"""*Pure.* The clock of the stream over an archive, in parts of consecutive documents.

The clock shows the largest value so far of a rank statistic of the last 16 times, see
:mod:`streamdedup.dedup.clock`. So of a part it is enough to know its first and last times, and the
largest such value inside of it. The driver chains the parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa

from streamdedup.columns import I64
from streamdedup.dedup.clock import RECENT, Allowances, Clock, effective_ms
from streamdedup.model import NO_TIMESTAMP
from streamdedup.spark.batches import Batches, Task, numbers, of_one_part
from streamdedup.spark.sketching import PLACE

SUMMARY = "part int, first array<long>, last array<long>, inner_ms long"
LAST = -1
"""Stands for the end of all parts."""
TIMES = f"{PLACE} long, now_ms long, effective_time_ms long"


def summarise(batches: Batches) -> Batches:
    """Return what the clock needs of each part; the rows are sorted by part and place."""
    for part, _, times_ms in _parts(batches):
        known = times_ms[times_ms != NO_TIMESTAMP]
        clock = Clock()
        clock.advance(known)
        columns = {
            "part": pa.array([part], pa.int32()),
            "first": [known[: RECENT - 1].tolist()],
            "last": [known[-RECENT:].tolist()],
            "inner_ms": [clock.now_ms],
        }
        yield pa.RecordBatch.from_pydict(columns)


def chain(summaries: Iterable[tuple[int, list[int], list[int], int]]) -> dict[int, bytes]:
    """Return the state of the clock before each part, by its number; and after all, ``LAST``.

    Args:
        summaries: the columns of ``SUMMARY``, in order of the parts.
    """
    clock = Clock()
    states: dict[int, bytes] = {}
    for part, first, last, inner_ms in summaries:
        states[part] = clock.state()
        clock.advance(np.array(first, dtype=np.int64))
        if len(last) == RECENT:
            clock = Clock(max(clock.now_ms, inner_ms), last)
    return states | {LAST: clock.state()}


def tell(states: Mapping[int, bytes], allowances: Allowances) -> Task:
    """Return the task that tells the clock and the effective time of each document."""

    def task(batches: Batches) -> Batches:
        for part, places, times_ms in _parts(batches):
            now_ms = Clock.from_state(states[part]).advance(times_ms)
            columns = [places, now_ms, effective_ms(times_ms, now_ms, allowances)]
            names = [PLACE, "now_ms", "effective_time_ms"]
            yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names)

    return task


def _parts(batches: Batches) -> Iterator[tuple[int, I64, I64]]:
    """Yield number, places and times of each part."""
    for part, pieces in groupby(of_one_part(batches), key=itemgetter(0)):
        rows = pa.Table.from_batches([piece for _, piece in pieces])
        yield part, numbers(rows, PLACE), numbers(rows, "event_time_ms")
