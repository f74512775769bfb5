"""More documents pass through an index than its window holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.index_measure import (
    REACH,
    Bar,
    Work,
    answers,
    disk_bytes,
    index_directory,
)
from benchmarks.index_use import open_index
from benchmarks.planted_stream import BATCH, COPIES, Stream

_THROUGH = 2.5
"""Windows of documents that pass through the window."""


def run_expiry(window: int, parent: Path | None) -> dict[str, Any]:
    """Pass more documents through an index than its window holds."""
    documents = int(window * _THROUGH) // BATCH * BATCH
    stream = Stream(int(window * REACH))
    with index_directory(parent) as directory:
        with open_index(directory, window) as index, Bar("expiry", documents) as bar:
            work = Work(index)
            for start in bar.each(range(0, documents, BATCH)):
                work.take(stream.batch(start))
            index.flush()
            kept = min(window, index.next_number)
            stats = dataclasses.asdict(index.stats())
        disk = disk_bytes(directory)
    on_disk = stats["documents"]
    after = work.batch_ms[int(window / (1 - COPIES)) // BATCH :]
    figures = {
        "window": window,
        "documents": documents,
        **work.costs(),
        "median_ms": float(np.median(after)),
        "max_ms": float(after.max()),
        "documents_on_disk": on_disk,
        "bytes_per_document_in_window": disk / kept,
        "settled": {"disk_bytes": disk, "stats": stats},
        **work.checks,
    }
    print(
        f"\nexpiry, {documents:,} documents through a window of {window:,}: once the window is "
        f"full a batch takes {figures['median_ms']:.2f} ms in the median, the largest "
        f"{figures['max_ms']:.1f} ms; in the end {on_disk:,} documents are on disk, "
        f"{figures['bytes_per_document_in_window']:.1f} bytes a document in the window\n"
        f"{answers(work)}",
        flush=True,
    )
    return figures
