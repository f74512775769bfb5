"""The index and the stream of the capacity benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmarks.index_use import LOG, PARAMETERS
from benchmarks.planted_stream import Stream
from streamdedup.index.store import Index
from streamdedup.settings.sections import IndexSettings

COPIES = 0.1
"""Share of the documents that are copies."""


def open_index(directory: Path, window_documents: int) -> Index:
    """Open an index with the default settings, apart from the window, and without syncing."""
    settings = IndexSettings(directory=directory, window_documents=window_documents, sync=False)
    return Index(settings, PARAMETERS, LOG, texts=False)


def stream_of(window_documents: int) -> Stream:
    """Return a stream with copies of documents of any age."""
    return Stream(window_documents, COPIES)
