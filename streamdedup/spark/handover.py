"""*Pure.* The kept sketches, which a stream continues; see docs/internals/format.md."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamdedup.columns import I64
from streamdedup.dedup.clock import Allowances, Clock, effective_ms
from streamdedup.dedup.rule import which_in_reach
from streamdedup.formats.kept_sketches import FORMAT, TYPES
from streamdedup.spark.batches import Batches, Task, numbers, of_one_part
from streamdedup.spark.sketching import PLACE
from streamdedup.spark.times import LAST

SKETCHED = ("id", "event_time_ms", "namespace", "signature", "band_keys", "text", "grp")
"""The columns of a document. A row in which ``is_document`` is false has none of them: it says that
the document at its place is a duplicate, and comes before that."""
_OF_SPARK = {"int32": "int", "int64": "long"}
KEPT = ", ".join(f"{name} {_OF_SPARK.get(kind, kind)}" for name, kind in TYPES.items())
"""The schema of kept sketches."""
_NO_PLACE = -1


def keep(
    states: Mapping[int, bytes], allowances: Allowances, reach_ms: int, fingerprint: str
) -> Task:
    """Return the task that returns the kept documents; its rows are sorted by place.

    Args:
        states: the clock before each part, and ``LAST``: after all.
        allowances: limits of effective times around the clock.
        reach_ms: documents that are out of reach for the clock after all are left out.
        fingerprint: of the sketch parameters.
    """
    now_ms = Clock.from_state(states[LAST]).now_ms

    def task(batches: Batches) -> Batches:
        current, clock, marked = None, Clock(), _NO_PLACE
        for part, batch in of_one_part(batches):
            if part != current:
                current, clock = part, Clock.from_state(states.get(part, b""))
            places, is_document = numbers(batch, PLACE), _flags(batch, "is_document")
            before = np.concatenate([[marked], np.where(is_document, _NO_PLACE, places)[:-1]])
            is_duplicate = before == places
            marked = _NO_PLACE if is_document[-1] else int(places[-1])
            documents = batch.filter(pa.array(is_document))
            times_ms = numbers(documents, "event_time_ms")
            effective = effective_ms(times_ms, clock.advance(times_ms), allowances)
            stays = ~is_duplicate[is_document]
            stays &= documents.column("grp").is_valid().to_numpy(zero_copy_only=False)
            stays &= which_in_reach(effective, now_ms, reach_ms)
            yield _table(documents, effective, stays, fingerprint, states[LAST])

    return task


def _flags(batch: pa.RecordBatch, name: str) -> NDArray[np.bool_]:
    flags: NDArray[np.bool_] = batch.column(name).to_numpy(zero_copy_only=False)
    return flags


def _table(
    documents: pa.RecordBatch,
    effective_times_ms: I64,
    stays: NDArray[np.bool_],
    fingerprint: str,
    clock: bytes,
) -> pa.RecordBatch:
    chosen = documents.filter(pa.array(stays))
    count = len(chosen)
    columns = {
        "format": pa.array(np.full(count, FORMAT, dtype=np.int32)),
        "fingerprint": pa.array([fingerprint]).take(pa.array(np.zeros(count, dtype=np.int32))),
        "clock": pa.array([clock], pa.binary()).take(pa.array(np.zeros(count, dtype=np.int32))),
        "place": chosen.column(PLACE),
        "id": chosen.column("id"),
        "event_time_ms": chosen.column("event_time_ms"),
        "effective_time_ms": pa.array(effective_times_ms[stays]),
        **{name: chosen.column(name) for name in ("namespace", "signature", "band_keys", "text")},
    }
    return pa.RecordBatch.from_pydict(columns)
