"""*Blocking.* Counts what an index holds, for ``streamdedup index stats``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from streamdedup.index.postings import PREFIX_SHIFT
from streamdedup.index.progress import Progress, no_progress
from streamdedup.index.view import View
from streamdedup.model import NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class FilterFill:
    """The stored filter of a segment.

    Attributes:
        segment: name of the segment.
        documents: number of the documents whose keys it holds.
        fill: share of the bits that are set; above one half the filter is overfull.
    """

    segment: str
    documents: int
    fill: float


@dataclass(frozen=True, slots=True)
class Contents:
    """What an index holds.

    Attributes:
        log: the changelog that it is a copy of.
        documents: number of kept documents, including erased ones.
        tail_documents: number of those that no segment holds yet; 0 with a changelog.
        segments: number of immutable parts on disk.
        erased: number of erased documents whose number is still held.
        erased_waiting: number of those whose bytes are not overwritten yet.
        applied: changelog offset up to which entries are applied, exclusive.
        next_number: number of the next kept document.
        clock_ms: time of the clock of the stream; None if it has none yet.
        oldest_ms: earliest effective time; None if no document has one.
        newest_ms: latest effective time; None if no document has one.
        holds_texts: whether every document has its text.
        bytes_used: bytes on disk.
        bytes_by_part: the same by kind of value; ``overhead`` is LMDB's own.
        buckets: number of buckets that hold 1, 2, 3-4, 5-8, ... documents.
        largest_bucket: number of documents in the largest bucket.
        filters: the stored filters; the others are computed when the index is opened.
    """

    log: str
    documents: int
    tail_documents: int
    segments: int
    erased: int
    erased_waiting: int
    applied: int
    next_number: int
    clock_ms: int | None
    oldest_ms: int | None
    newest_ms: int | None
    holds_texts: bool
    bytes_used: int
    bytes_by_part: dict[str, int]
    buckets: dict[str, int]
    largest_bucket: int
    filters: list[FilterFill]


def count_contents(view: View, progress: Progress = no_progress) -> Contents:
    """Count what an index holds; this reads all postings.

    Args:
        view: the index.
        progress: called with the number of columns read so far, and of all columns.
    """
    sizes: Counter[int] = Counter()
    for column in range(view.columns):
        progress(column, view.columns)
        sizes.update(_bucket_sizes(view, column))
    progress(view.columns, view.columns)
    oldest_ms, newest_ms = _times(view)
    return Contents(
        log=view.header.log,
        documents=view.documents_held,
        tail_documents=view.tail_documents,
        segments=len(view.entries),
        erased=len(view.erasures),
        erased_waiting=len(view.erasures.waiting()),
        applied=view.applied,
        next_number=view.next_number,
        clock_ms=_known_time([view.clock.now_ms]),
        oldest_ms=oldest_ms,
        newest_ms=newest_ms,
        holds_texts=view.holds_texts,
        bytes_used=sum(entry.size for entry in view.entries) + view.manifest_bytes,
        bytes_by_part=_bytes_by_part(view),
        buckets=_histogram(sizes),
        largest_bucket=max(sizes, default=0),
        filters=[
            FilterFill(
                segment.entry.name, len(segment.entry.filter_documents), segment.filter_fill()
            )
            for segment in reversed(view.segments)
            if segment.entry.stores_filter
        ],
    )


def _bucket_sizes(view: View, column: int) -> Counter[int]:
    """Count a column's buckets by their size, over all segments and the tail."""
    parts = [] if view.tail is None else [view.tail.keys[: view.tail.count, column]]
    for segment in view.segments:
        postings = np.empty(segment.entry.count, dtype=np.uint64)
        parts.append(postings[: segment.column(column, postings)])
    if not parts:
        return Counter()
    _, buckets = np.unique(np.concatenate(parts) >> PREFIX_SHIFT, return_counts=True)
    sizes, times = np.unique(buckets, return_counts=True)
    return Counter(dict(zip(sizes.tolist(), times.tolist(), strict=True)))


def _times(view: View) -> tuple[int | None, int | None]:
    """Return the earliest and the latest effective time of all documents."""
    oldest = [entry.oldest_ms for entry in view.entries]
    newest = [entry.newest_ms for entry in view.entries]
    for update in view.updates:
        if len(update.documents):
            oldest.append(int(update.effective_times_ms.min()))
            newest.append(int(update.effective_times_ms.max()))
    return _known_time(oldest), _known_time([max(newest, default=NO_TIMESTAMP)])


def _known_time(times_ms: list[int]) -> int | None:
    """Return the earliest of the known times; None if there is none."""
    return min((time_ms for time_ms in times_ms if time_ms != NO_TIMESTAMP), default=None)


def _bytes_by_part(view: View) -> dict[str, int]:
    by_part: Counter[str] = Counter()
    for entry in view.entries:
        by_part.update(entry.parts)
    overhead = sum(entry.size for entry in view.entries) - sum(by_part.values())
    return {**by_part, "overhead": overhead, "manifest": view.manifest_bytes}


def _histogram(sizes: Counter[int]) -> dict[str, int]:
    """Count buckets of sizes 1, 2, 3-4, 5-8, ..., ascending, without gaps."""
    classes: Counter[int] = Counter()
    for size, times in sizes.items():
        classes[(size - 1).bit_length()] += times
    return {_class_name(number): classes[number] for number in range(max(classes, default=-1) + 1)}


def _class_name(number: int) -> str:
    low, high = (1 << number >> 1) + 1, 1 << number
    return str(high) if low >= high else f"{low}-{high}"
