"""*Pure.* Tasks over parts of consecutive documents: the clock of the stream, the kept sketches.

The clock shows the largest value so far of a rank statistic of the last 16 times, see
:mod:`streamdedup.dedup.clock`. So of a part it is enough to know its first and last times, and the
largest such value inside of it. The driver chains the parts.

A stream continues the kept sketches; see docs/internals/format.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamdedup.columns import I64
from streamdedup.dedup.clock import RECENT, Allowances, Clock, effective_ms
from streamdedup.dedup.rule import which_in_reach
from streamdedup.formats.sketches import KEPT_FORMAT, KEPT_TYPES
from streamdedup.model import NO_TIMESTAMP
from streamdedup.spark.batches import PLACE, Batches, Task, numbers

SUMMARY = "part int, first array<long>, last array<long>, inner_ms long"
LAST = -1
"""Stands for the end of all parts."""
TIMES = f"{PLACE} long, now_ms long, effective_time_ms long"
SKETCHED = ("id", "event_time_ms", "namespace", "signature", "band_keys", "text", "grp")
"""The columns of a document. A row in which ``is_document`` is false has none of them: it says that
the document at its place is a duplicate, and comes before that."""
_OF_SPARK = {"int32": "int", "int64": "long"}
KEPT = ", ".join(f"{name} {_OF_SPARK.get(kind, kind)}" for name, kind in KEPT_TYPES.items())
"""The schema of kept sketches."""
_NO_PLACE = -1


def summarise(batches: Batches) -> Batches:
    """Return what the clock needs of each part; the rows are sorted by part and place."""
    for part, _, times_ms in _times(batches):
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
    """Return the clock's state before each part, by its number; and after all, ``LAST``.

    The summaries have the columns of ``SUMMARY``, in order of the parts.
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
        for part, places, times_ms in _times(batches):
            now_ms = Clock.from_state(states[part]).advance(times_ms)
            columns = [places, now_ms, effective_ms(times_ms, now_ms, allowances)]
            names = [PLACE, "now_ms", "effective_time_ms"]
            yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names)

    return task


def _times(batches: Batches) -> Iterator[tuple[int, I64, I64]]:
    """Yield number, places and times of each part."""
    for part, pieces in groupby(_of_one_part(batches), key=itemgetter(0)):
        rows = pa.Table.from_batches([piece for _, piece in pieces])
        yield part, numbers(rows, PLACE), numbers(rows, "event_time_ms")


def _of_one_part(batches: Batches) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut batches where the column ``part`` changes; yield each part's number with its rows."""
    for batch in filter(len, batches):
        parts = numbers(batch, "part")
        starts = np.flatnonzero(np.diff(parts, prepend=parts[:1] - 1))
        for start, stop in zip(starts, np.append(starts[1:], len(parts)), strict=True):
            yield int(parts[start]), batch.slice(start, stop - start)


def keep(
    states: Mapping[int, bytes], allowances: Allowances, reach_ms: int, fingerprint: str
) -> Task:
    """Return the task that returns the kept documents; its rows are sorted by place.

    The states are those of :func:`chain`. Documents out of reach for ``LAST`` are left out.
    """
    now_ms = Clock.from_state(states[LAST]).now_ms

    def task(batches: Batches) -> Batches:
        current, clock, marked = None, Clock(), _NO_PLACE
        for part, batch in _of_one_part(batches):
            if part != current:
                current, clock = part, Clock.from_state(states.get(part, b""))
            places = numbers(batch, PLACE)
            is_document: NDArray[np.bool_] = batch.column("is_document").to_numpy(
                zero_copy_only=False
            )
            before = np.concatenate([[marked], np.where(is_document, _NO_PLACE, places)[:-1]])
            is_duplicate = before == places
            marked = _NO_PLACE if is_document[-1] else int(places[-1])
            documents = batch.filter(pa.array(is_document))
            times_ms = numbers(documents, "event_time_ms")
            effective = effective_ms(times_ms, clock.advance(times_ms), allowances)
            stays = ~is_duplicate[is_document]
            stays &= documents.column("grp").is_valid().to_numpy(zero_copy_only=False)
            stays &= which_in_reach(effective, now_ms, reach_ms)
            yield _table(
                documents.filter(pa.array(stays)), effective[stays], fingerprint, states[LAST]
            )

    return task


def _table(
    chosen: pa.RecordBatch, effective_times_ms: I64, fingerprint: str, clock: bytes
) -> pa.RecordBatch:
    same = pa.array(np.zeros(len(chosen), dtype=np.int32))
    columns = {
        "format": pa.array([KEPT_FORMAT], pa.int32()).take(same),
        "fingerprint": pa.array([fingerprint]).take(same),
        "clock": pa.array([clock], pa.binary()).take(same),
        "place": chosen.column(PLACE),
        "id": chosen.column("id"),
        "event_time_ms": chosen.column("event_time_ms"),
        "effective_time_ms": pa.array(effective_times_ms),
        **{name: chosen.column(name) for name in ("namespace", "signature", "band_keys", "text")},
    }
    return pa.RecordBatch.from_pydict(columns)
