"""Kept sketches of a planted stream, as the deduplication of an archive writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.index_measure import Bar
from benchmarks.index_use import PARAMETERS
from benchmarks.planted_stream import Batch, Stream
from streamdedup.columns import Positions
from streamdedup.dedup.clock import RECENT, Clock
from streamdedup.formats.sketches import ARCHIVE_TOPIC
from tests.testkit.kept_sketches import table

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
                kept = in_archive(stream.batch(start, min(_BATCH, end - start))).documents
                of = (kept.event_times_ms, clock.state(), PARAMETERS.fingerprint())
                tables.append(table(kept, *of))
            path = folder / f"part-{first:012d}.parquet"
            pq.write_table(pa.concat_tables(tables), path, compression="snappy")


def in_archive(batch: Batch) -> Batch:
    """Return a batch with the positions of an archive."""
    zeros = np.zeros_like(batch.places)
    positions = Positions((ARCHIVE_TOPIC,), zeros, zeros, batch.places)
    return batch._replace(documents=replace(batch.documents, positions=positions))
