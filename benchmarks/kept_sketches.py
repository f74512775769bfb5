"""Kept sketches of a planted stream, as the deduplication of an archive writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.index_measure import Bar
from benchmarks.index_use import PARAMETERS
from benchmarks.planted_stream import Batch, Stream
from streamdedup.columns import Positions
from streamdedup.dedup.clock import RECENT, Clock
from streamdedup.formats.kept_sketches import FORMAT, TOPIC

FILE_DOCUMENTS = 250_000
"""Documents of a file, and of its one row group."""
_BATCH = 50_000


def write_sketches(folder: Path, documents: int) -> None:
    """Write the sketches of a stream without copies."""
    stream = Stream(documents, copies=0.0)
    folder.mkdir()
    clock = Clock()
    last = stream.batch(documents - RECENT, RECENT)
    clock.advance(last.documents.event_times_ms)
    with Bar("kept sketches", documents) as bar:
        for first in range(0, documents, FILE_DOCUMENTS):
            end = min(documents, first + FILE_DOCUMENTS)
            tables = []
            for start in bar.each(range(first, end, _BATCH)):
                batch = stream.batch(start, min(_BATCH, end - start))
                tables.append(_table(batch, clock.state()))
            pq.write_table(
                pa.concat_tables(tables),
                folder / f"part-{first:012d}.parquet",
                compression="snappy",
            )


def in_archive(batch: Batch) -> Batch:
    """Return a batch with the positions of an archive."""
    zeros = np.zeros_like(batch.places)
    positions = Positions((TOPIC,), zeros, zeros, batch.places)
    return batch._replace(documents=replace(batch.documents, positions=positions))


def _table(batch: Batch, clock: bytes) -> pa.Table:
    documents, count = batch.documents, len(batch.places)
    integers = {
        "place": batch.places,
        "event_time_ms": documents.event_times_ms,
        "effective_time_ms": documents.event_times_ms,
        "namespace": documents.namespaces.view(np.int64),
    }
    return pa.table(
        {
            "format": pa.repeat(pa.scalar(FORMAT, pa.int32()), count),
            "fingerprint": pa.repeat(PARAMETERS.fingerprint(), count),
            "clock": pa.repeat(pa.scalar(clock, pa.binary()), count),
            "id": pa.array(documents.ids.tolist()),
            "signature": _values(documents.sketches.signatures),
            "band_keys": _values(documents.sketches.band_keys.view(np.uint8)),
            "text": pa.nulls(count, pa.binary()),
            **{name: pa.array(values) for name, values in integers.items()},
        }
    )


def _values(rows: NDArray[np.uint8]) -> pa.Array:
    """Return the rows of an array as values of equal size."""
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(rows.shape[1]), len(rows), [None, pa.py_buffer(rows)]
    ).cast(pa.binary())
