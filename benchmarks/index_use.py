"""An index as the benchmarks open it, use it, and judge its answers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.planted_stream import BATCH, Batch, Stream, document_id
from streamdedup.batches import Candidates
from streamdedup.index.store import Index
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import IndexSettings

LOG = "the benchmark's changelog"
"""With a changelog, as in a worker: documents in memory need no file to be durable."""
PARAMETERS = DedupSettings().sketch_parameters()

Rows = NDArray[np.bool_]


def open_index(
    directory: Path, window_documents: int, log: str = LOG, *, sync: bool = True
) -> Index:
    """Open an index with the default settings apart from the window and the syncing."""
    settings = IndexSettings(directory=directory, window_documents=window_documents, sync=sync)
    return Index(settings, PARAMETERS, log, texts=False)


def load_kernels() -> None:
    """Run a small index through flushes, merges and expiry, so that all kernels are loaded."""
    window = 8 * BATCH
    stream = Stream(window // 2)
    with tempfile.TemporaryDirectory() as directory:
        settings = IndexSettings(
            directory=Path(directory), window_documents=window, delta_documents=BATCH, sync=False
        )
        with Index(settings, PARAMETERS, LOG, texts=False) as index:
            for start in range(0, 3 * window, BATCH):
                keep(index, stream.batch(start))
        with Index(settings, PARAMETERS, LOG, texts=False) as index:
            index.probe(stream.batch(3 * window).documents)


def keep(index: Index, batch: Batch) -> Rows:
    """Judge a batch and keep what is new; return which rows were found."""
    found = find(batch, index.probe(batch.documents))
    index.apply(batch.update(~found, index.next_number), index.applied + 1)
    return found


def find(batch: Batch, candidates: Candidates) -> Rows:
    """Return which rows have a candidate with an equal signature."""
    rows = candidates.hit_rows[_equal(batch, candidates)]
    found = np.zeros(len(batch.documents), dtype=np.bool_)
    found[rows] = True
    # Of documents that are equal, only the first has hits.
    same: Rows = found[candidates.leaders[:, 0]]
    return found | same


def count_wrong(batch: Batch, candidates: Candidates) -> int:
    """Count the rows that were matched with a document other than their original."""
    equal = _equal(batch, candidates)
    rows, numbers = candidates.hit_rows[equal], candidates.hit_numbers[equal]
    ids = candidates.documents.ids
    indices = np.searchsorted(candidates.numbers, numbers).tolist()
    wrong = {
        row
        for row, index in zip(rows.tolist(), indices, strict=True)
        if not batch.copies[row] or ids[index] != document_id(int(batch.originals[row]))
    }
    return len(wrong)


def _equal(batch: Batch, candidates: Candidates) -> Rows:
    """Return which hits have the signature of the document that was looked up."""
    if not len(candidates.numbers):
        return np.zeros(len(candidates.hit_rows), dtype=np.bool_)
    found = candidates.documents.sketches.signatures[
        np.searchsorted(candidates.numbers, candidates.hit_numbers)
    ]
    equal: Rows = (found == batch.documents.sketches.signatures[candidates.hit_rows]).all(axis=1)
    return equal
