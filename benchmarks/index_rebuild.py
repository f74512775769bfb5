"""An index is rebuilt from the entries of its changelog."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.index_measure import (
    Bar,
    index_directory,
)
from benchmarks.index_use import PARAMETERS, open_index
from benchmarks.planted_stream import BATCH, Stream
from streamdedup.formats import changelog

_LARGEST_ENTRY = 2**30
_LENGTH_BYTES = 4


def run_rebuild(documents: int, parent: Path | None) -> dict[str, Any]:
    """Write changelog entries to a file, and build an index from them."""
    with index_directory(parent) as directory:
        entries = directory / "entries"
        write_entries(entries, documents)
        wall, cpu = time.perf_counter(), time.process_time()
        with open_index(directory / "index", documents) as index:
            opened = time.perf_counter()
            with Bar("rebuild", documents) as bar:
                starts = bar.each(range(0, documents, BATCH))
                for _, entry in zip(starts, read_entries(entries), strict=True):
                    update = changelog.decode(entry, PARAMETERS.fingerprint())
                    index.apply(update, index.applied + 1)
            applied_s = time.perf_counter() - opened
            index.flush()
            complete = index.next_number == documents
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        size = entries.stat().st_size
    figures = {
        "documents": documents,
        "documents_per_s": documents / applied_s,
        "documents_per_s_flushed_and_closed": documents / wall,
        "cpu_us": cpu / documents * 1e6,
        "entry_bytes": size / documents,
        "complete": complete,
    }
    print(
        f"\nrebuild from {documents:,} documents in changelog entries of {BATCH:,} "
        f"({figures['entry_bytes']:.0f} bytes a document): {figures['documents_per_s']:,.0f} "
        f"documents/s, {figures['documents_per_s_flushed_and_closed']:,.0f} with the last flush "
        f"and the closing; {figures['cpu_us']:.2f} us of processor time of all threads a document",
        flush=True,
    )
    return figures


def write_entries(path: Path, documents: int) -> None:
    """Write the entries, each preceded by its length."""
    stream = Stream(documents, copies=0.0)
    with path.open("wb") as file, Bar("changelog entries", documents) as bar:
        for start in bar.each(range(0, documents, BATCH)):
            batch = stream.batch(start)
            update = batch.update(~batch.copies, start)
            for entry in changelog.encode(update, PARAMETERS.fingerprint(), _LARGEST_ENTRY):
                file.write(len(entry).to_bytes(_LENGTH_BYTES, "little") + entry)


def read_entries(path: Path) -> Iterator[bytes]:
    """Yield the entries."""
    with path.open("rb") as file:
        while length := file.read(_LENGTH_BYTES):
            yield file.read(int.from_bytes(length, "little"))
