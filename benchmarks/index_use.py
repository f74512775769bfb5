"""An index as the benchmarks open it, use it, and look at what it answers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.planted_stream import BATCH, Batch, Stream, document_id
from streamdedup.index.store import Index
from streamdedup.model import Candidates
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import IndexSettings

LOG = "the benchmark's changelog"
"""An index of a worker: what is in memory is durable by the changelog, not by a file of its own."""
PARAMETERS = DedupSettings().sketch_parameters()

Rows = NDArray[np.bool_]


def open_index(directory: Path, window_documents: int, log: str = LOG) -> Index:
    """Open an index with the default settings but the window."""
    settings = IndexSettings(directory=directory, window_documents=window_documents)
    return Index(settings, PARAMETERS, log, texts=False)


def load_kernels() -> None:
    """Let a small index live through everything, so that no kernel is loaded in a timed part."""
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
    """Judge a batch, keep what is new; return the rows that were found."""
    found = find(batch, index.probe(batch.documents))
    index.apply(batch.update(~found, index.next_number), index.applied + 1)
    return found


def find(batch: Batch, candidates: Candidates) -> Rows:
    """Return which rows have a candidate with an equal signature."""
    rows = candidates.hit_rows[_equal(batch, candidates)]
    found = np.zeros(len(batch.documents), dtype=np.bool_)
    found[rows] = True
    return found


def count_wrong(batch: Batch, candidates: Candidates) -> int:
    """Count the rows that were found to equal a document that is not their original."""
    equal = _equal(batch, candidates)
    rows, numbers = candidates.hit_rows[equal], candidates.hit_numbers[equal]
    ids = candidates.documents.ids
    places = np.searchsorted(candidates.numbers, numbers).tolist()
    wrong = {
        row
        for row, place in zip(rows.tolist(), places, strict=True)
        if not batch.copies[row] or ids[place] != document_id(int(batch.originals[row]))
    }
    return len(wrong)


def _equal(batch: Batch, candidates: Candidates) -> Rows:
    """Return which hits have the signature of the document that they are for."""
    if not len(candidates.numbers):
        return np.zeros(len(candidates.hit_rows), dtype=np.bool_)
    found = candidates.documents.sketches.signatures[
        np.searchsorted(candidates.numbers, candidates.hit_numbers)
    ]
    equal: Rows = (found == batch.documents.sketches.signatures[candidates.hit_rows]).all(axis=1)
    return equal
