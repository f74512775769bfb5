"""*Blocking.* An index that nobody has open, looked at and left as it is.

Rule 1: nothing here needs settings, and nothing is written: what an index is follows from its
manifest. Opened with an :class:`streamdedup.index.store.Index` of other settings it might drop what
is outside of their window.
Rule 2: a look-up finds what the index itself would find. There are no filters in front of the
segments; they only save time.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from streamdedup.dedup.clock import Clock
from streamdedup.errors import IndexMismatch, IndexUnusable
from streamdedup.formats import changelog
from streamdedup.index import blocks
from streamdedup.index.blocks import Bools, Rows
from streamdedup.index.manifest import Checkpoint, Header, Manifest, SegmentEntry
from streamdedup.index.postings import KEYS, SUBS, find
from streamdedup.index.segment import Segment
from streamdedup.index.store import lock
from streamdedup.model import (
    I64,
    NO_TIMESTAMP,
    U64,
    Candidates,
    DocumentColumns,
    Sketches,
)
from streamdedup.settings.sections import IndexSettings
from streamdedup.sketch.normalize import resolve
from streamdedup.sketch.parameters import SketchParameters

Progress = Callable[[int, int], None]
"""Told how much of how much is done."""

_PREFIX_SHIFT = np.uint64(24)
_NUMBER_MASK = np.uint64((1 << 24) - 1)

T = TypeVar("T")


def no_progress(_done: int, _total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class FilterFill:
    """The stored filter of a segment.

    Attributes:
        segment: its name.
        documents: of the segment.
        fill: share of the bits that are set; half of them is too many.
    """

    segment: str
    documents: int
    fill: float


@dataclass(frozen=True, slots=True)
class Contents:
    """What an index holds.

    Attributes:
        log: the changelog that it is a copy of.
        documents: kept documents, erased ones too.
        tail_documents: those of them that no segment holds yet; only without a changelog.
        segments: immutable parts on the disk.
        erased: documents that were erased and whose place is still there.
        erased_waiting: those of them whose bytes are not overwritten yet.
        applied: changelog offset that the index stands for.
        next_number: number of the next kept document.
        clock_ms: what the clock of the stream says; None for nothing.
        oldest_ms: earliest effective time; None where no document has one.
        newest_ms: latest effective time that counts.
        holds_texts: whether each document has its text.
        bytes_used: bytes on the disk.
        bytes_by_part: the same, by what they hold; ``overhead`` is what LMDB takes.
        buckets: how many buckets hold 1, 2, 3-4, 5-8, ... documents.
        largest_bucket: documents in the largest bucket.
        filters: the stored ones; the others are made when the index is opened.
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


class View:
    """The index in a directory, locked while it is looked at.

    Args:
        directory: of the index.

    Raises:
        IndexUnusable: the directory holds no index.
        IndexLocked: another process has it open.
        IndexMismatch: another release wrote it.
        IndexDamaged: its files are not what was written.

    Attributes:
        header: what the index says of itself.
        parameters: what the bits of its sketches depend on.
        checkpoint: what the segments stand for.
        erased: erased numbers, and whether their bytes are still to be overwritten.
        updates: what no segment holds yet, oldest first.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.header: Header
        self.checkpoint: Checkpoint
        with ExitStack() as resources:
            resources.callback(os.close, lock_existing(directory))
            manifest = Manifest(directory, None, readonly=True)
            resources.callback(manifest.close)
            self.header, self.checkpoint = manifest.header, manifest.checkpoint()
            self.parameters = parameters_of(manifest.header)
            self.entries: list[SegmentEntry] = manifest.segments()
            self.erased = manifest.erased()
            self._manifest_bytes = manifest.bytes_used
            fingerprint = self.parameters.fingerprint()
            tail = list(manifest.tail())
            self.updates = [changelog.decode(each.update, fingerprint) for _, each in tail]
            self.applied = tail[-1][0] if tail else self.checkpoint.applied
            self._columns = self.parameters.bands + 1
            self._width = self.parameters.signature_bytes
            self._segments: list[Segment] = []
            for entry in self.entries:
                segment = Segment(directory, entry, self._columns)
                resources.callback(segment.close)
                self._segments.append(segment)
            self._resources = resources.pop_all()

    def close(self) -> None:
        """Close the files, and let go of the lock."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def next_number(self) -> int:
        """The number that the next kept document gets."""
        last = self.updates[-1] if self.updates else None
        if last is None:
            return self.checkpoint.next_number
        return last.first_number + len(last.documents)

    @property
    def documents_held(self) -> int:
        """How many documents the index holds."""
        return sum(entry.count for entry in self.entries) + self._tail_documents

    @property
    def holds_texts(self) -> bool:
        """Whether every document came with its text; an index without documents has none."""
        held = all(len(each.documents.texts) == len(each.documents) for each in self.updates)
        return self.next_number > 0 and self.checkpoint.has_all_texts and held

    @property
    def _tail_documents(self) -> int:
        return sum(len(update.documents) for update in self.updates)

    def clock(self, settings: IndexSettings) -> Clock:
        """Return the clock as it stands after the last update."""
        state = self.checkpoint.clock
        clock = Clock.from_state(state, settings) if state else Clock.from_settings(settings)
        for update in self.updates:
            clock.advance_to(update.clock_ms)
            clock.advance(update.first_number, update.documents.event_times_ms)
        return clock

    def probe(
        self, documents: DocumentColumns, size: int, known: Bools | None = None
    ) -> Candidates:
        """Find the kept documents that share a bucket with each of the given ones.

        Args:
            documents: their positions count as new.
            size: documents of a bucket that count, the newest.
            known: ``(columns,)`` whether a column's keys are known; None for all.
        """
        keys = documents.sketches.band_keys
        counts = np.zeros(keys.shape, dtype=np.uint64)
        if known is not None:
            counts[:, ~known] = size  # full already
        hits = np.concatenate(
            [self._tail_hits(keys, size, counts), self._segment_hits(keys, size, counts)]
        )
        hits = hits[~np.isin(hits[:, 2], np.fromiter(self.erased_numbers(), dtype=np.int64))]
        hits = hits[np.lexsort((hits[:, 2], hits[:, 1], hits[:, 0]))]
        numbers = np.unique(hits[:, 2])
        effective_times_ms, found = self.documents(numbers)
        return Candidates(
            hit_rows=hits[:, 0],
            hit_columns=hits[:, 1],
            hit_numbers=hits[:, 2],
            numbers=numbers,
            effective_times_ms=effective_times_ms,
            documents=found,
            already_kept=frozenset(),
            already_judged=np.zeros(len(documents), dtype=np.bool_),
        )

    def erased_numbers(self) -> set[int]:
        """Return the numbers of the erased documents."""
        return {*self.erased, *(number for update in self.updates for number in update.deleted)}

    def documents(self, numbers: I64) -> tuple[I64, DocumentColumns]:
        """Return documents by their numbers, ascending, as :meth:`Index.documents` does."""
        parts: list[tuple[I64, DocumentColumns]] = []
        for segment in self._segments:
            mine = _within(numbers, segment.entry.first, segment.entry.count)
            if len(mine):
                parts.append(self._of_rows(segment.rows(mine, self._width)))
        for update in self.updates:
            mine = _within(numbers, update.first_number, len(update.documents))
            if len(mine):
                some = update.documents.take(mine.tolist())
                parts.append((update.effective_times_ms[mine], some))
        return _concatenate(parts, self._width, texts=self.holds_texts)

    def numbers_of(self, id_: str) -> list[int]:
        """Return the numbers of the documents with an id, ascending; all ids are looked at."""
        found = [
            first + at
            for segment in self._segments
            for first, rows in segment.all_rows(self._width)
            for at in rows.places_of(id_)
        ]
        for update in self.updates:
            ids = update.documents.ids
            found += [update.first_number + at for at, each in enumerate(ids) if each == id_]
        erased = self.erased_numbers()
        return [number for number in found if number not in erased]

    def keys_of(self, number: int) -> tuple[U64, Bools]:
        """Return what the index knows of a document's band keys: the upper 40 bits of each.

        Returns:
            ``(columns,)`` keys whose other bits are 0, and ``(columns,)`` whether each is known:
            a full bucket has forgotten its oldest documents.
        """
        keys = np.zeros(self._columns, dtype=np.uint64)
        known = np.zeros(self._columns, dtype=np.bool_)
        for update in self.updates:
            if update.first_number <= number < update.first_number + len(update.documents):
                keys[:] = update.documents.sketches.band_keys[number - update.first_number]
                known[:] = True
        for segment in self._segments:
            entry = segment.entry
            if not entry.first <= number < entry.end:
                continue
            postings = np.empty(entry.count, dtype=np.uint64)
            for column in range(self._columns):
                some = postings[: segment.column(column, postings)]
                mine = some[(some & _NUMBER_MASK) == np.uint64(number - entry.first)]
                known[column] = len(mine) > 0
                keys[column] = mine[0] if len(mine) else 0
        return keys & ~_NUMBER_MASK, known

    def contents(self, progress: Progress = no_progress) -> Contents:
        """Count what the index holds; all postings are read for it.

        Args:
            progress: told how many of the columns are read.
        """
        sizes: Counter[int] = Counter()
        for column in range(self._columns):
            progress(column, self._columns)
            sizes.update(self._bucket_sizes(column))
        progress(self._columns, self._columns)
        by_part: Counter[str] = Counter()
        for entry in self.entries:
            by_part.update(entry.parts)
        on_disk = sum(entry.size for entry in self.entries)
        overhead = on_disk - sum(by_part.values())
        erased = self.erased_numbers()
        times = [(each.oldest_ms, each.newest_ms) for each in self.entries]
        times += [
            (int(each.effective_times_ms.min()), int(each.effective_times_ms.max()))
            for each in self.updates
            if len(each.documents)
        ]
        return Contents(
            log=self.header.log,
            documents=self.documents_held,
            tail_documents=self._tail_documents,
            segments=len(self.entries),
            erased=len(erased),
            erased_waiting=sum(self.erased.get(number, True) for number in erased),
            applied=self.applied,
            next_number=self.next_number,
            clock_ms=_known_time([self.clock(IndexSettings()).now_ms]),
            oldest_ms=_known_time([oldest for oldest, _ in times]),
            newest_ms=_known_time([max((newest for _, newest in times), default=NO_TIMESTAMP)]),
            holds_texts=self.holds_texts,
            bytes_used=on_disk + self._manifest_bytes,
            bytes_by_part={**by_part, "overhead": overhead, "manifest": self._manifest_bytes},
            buckets=_histogram(sizes),
            largest_bucket=max(sizes, default=0),
            filters=[_fill(segment) for segment in self._segments if _stores_filter(segment)],
        )

    def _tail_hits(self, keys: U64, size: int, counts: U64) -> I64:
        """Return the hits ``(h, 3)`` in what no segment holds; each counts in its bucket."""
        found = [np.empty((0, 3), dtype=np.int64)]
        for update in reversed(self.updates):
            theirs = update.documents.sketches.band_keys
            if not len(update.documents):
                continue
            for row, mine in enumerate(keys):
                same = (theirs >> _PREFIX_SHIFT) == (mine >> _PREFIX_SHIFT)
                for column in np.flatnonzero(same.any(axis=0)).tolist():
                    room = max(0, size - int(counts[row, column]))
                    places = np.flatnonzero(same[:, column])[::-1][:room]
                    counts[row, column] += np.uint64(len(places))
                    here = np.empty((len(places), 3), dtype=np.int64)
                    here[:, 0], here[:, 1], here[:, 2] = row, column, update.first_number + places
                    found.append(here)
        return np.concatenate(found)

    def _segment_hits(self, keys: U64, size: int, counts: U64) -> I64:
        newest_first = self._segments[::-1]
        hits = np.empty((keys.size * size, 3), dtype=np.int64)
        if not newest_first:
            return hits[:0]
        filled = find(
            keys,
            np.ones(keys.shape, dtype=np.uint64),
            np.zeros(len(newest_first), dtype=np.int64),
            np.array([segment.entry.first for segment in newest_first], dtype=np.int64),
            np.stack([segment.places for segment in newest_first]),
            size,
            counts,
            hits,
            0,
            np.zeros(2, dtype=np.int64),
        )
        return hits[:filled]

    def _of_rows(self, rows: Rows) -> tuple[I64, DocumentColumns]:
        sources = [(topic, partition) for topic, partition, _ in self.checkpoint.sources]
        found = rows.documents(sources, texts=self.holds_texts)
        return rows.fields[:, blocks.EFFECTIVE_TIME].copy(), found

    def _bucket_sizes(self, column: int) -> Counter[int]:
        """Count a column's buckets by their size, over all segments."""
        parts = [
            update.documents.sketches.band_keys[:, column]
            for update in self.updates
            if len(update.documents)
        ]
        for segment in self._segments:
            postings = np.empty(segment.entry.count, dtype=np.uint64)
            parts.append(postings[: segment.column(column, postings)])
        if not parts:
            return Counter()
        keys = np.concatenate(parts) >> _PREFIX_SHIFT
        keys.sort()
        starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1]))
        sizes, times = np.unique(np.diff(starts, append=len(keys)), return_counts=True)
        return Counter(dict(zip(sizes.tolist(), times.tolist(), strict=True)))


def lock_existing(directory: Path) -> int:
    """Lock an index that is there; the directory is not made.

    Raises:
        IndexUnusable: the directory holds no index.
        IndexLocked: another process has it open.
    """
    if not (directory / "manifest" / "data.mdb").exists():
        raise IndexUnusable(f"{directory} holds no index")
    return lock(directory)


def parameters_of(header: Header) -> SketchParameters:
    """Return what the bits of an index's sketches depend on.

    Raises:
        IndexMismatch: this release does not make such sketches.
    """
    names = {field.name for field in fields(SketchParameters)}
    values = {name: value for name, value in header.parameters.items() if name in names}
    try:
        parameters = SketchParameters(**values)  # type: ignore[arg-type] # compared below
        made = {**parameters.described(), "profile_version": resolve(parameters.profile).version}
    except (TypeError, ValueError) as error:
        raise IndexMismatch(
            f"the index's parameters are not those of this release: {error}"
        ) from None
    if made != header.parameters:
        raise IndexMismatch("the index was made by a release that makes other sketches of a text")
    return parameters


def _within(numbers: I64, first: int, count: int) -> I64:
    """Return the places of those numbers that lie in a run of documents."""
    return numbers[(numbers >= first) & (numbers < first + count)] - first


def _concatenate(
    parts: list[tuple[I64, DocumentColumns]], width: int, *, texts: bool
) -> tuple[I64, DocumentColumns]:
    times = [times for times, _ in parts]
    some = [documents for _, documents in parts]
    signatures = [each.sketches.signatures for each in some]
    count = sum(len(each) for each in some)
    documents = DocumentColumns(
        ids=_chain(each.ids for each in some),
        positions=_chain(each.positions for each in some),
        event_times_ms=np.concatenate(
            [np.empty(0, dtype=np.int64), *(each.event_times_ms for each in some)]
        ),
        namespaces=np.concatenate(
            [np.empty(0, dtype=np.uint64), *(each.namespaces for each in some)]
        ),
        sketches=Sketches(
            np.concatenate([np.empty((0, width), dtype=np.uint8), *signatures]),
            np.empty((count, 0), dtype=np.uint64),
        ),
        texts=_chain(each.texts for each in some) if texts else (),
    )
    return np.concatenate([np.empty(0, dtype=np.int64), *times]), documents


def _chain(lists: Iterable[Iterable[T]]) -> list[T]:
    return [each for some in lists for each in some]


def _known_time(times_ms: list[int]) -> int | None:
    """Return the earliest time; None where there is none."""
    return min((each for each in times_ms if each != NO_TIMESTAMP), default=None)


def _histogram(sizes: Counter[int]) -> dict[str, int]:
    """Count buckets of sizes 1, 2, 3-4, 5-8, ..., ascending, without gaps."""
    classes: Counter[int] = Counter()
    for size, times in sizes.items():
        classes[(size - 1).bit_length()] += times
    return {_class_name(each): classes[each] for each in range(max(classes, default=-1) + 1)}


def _class_name(number: int) -> str:
    low, high = (1 << number >> 1) + 1, 1 << number
    return str(high) if low >= high else f"{low}-{high}"


def _stores_filter(segment: Segment) -> bool:
    return all(shard.plane_bytes > 0 for shard in segment.entry.shards)


def _fill(segment: Segment) -> FilterFill:
    """Count the bits of a stored filter."""
    filled = total = 0
    for shard in segment.entry.shards:
        # The keys of its first sub are where its first value begins.
        start = int(segment.places[shard.first_column * SUBS, KEYS])
        for distance in np.frombuffer(shard.planes, dtype=np.int64).tolist():
            bits = (ctypes.c_uint8 * shard.plane_bytes).from_address(start + distance)
            filled += int(np.bitwise_count(np.ctypeslib.as_array(bits)).sum())
            total += 8 * shard.plane_bytes
    return FilterFill(segment.entry.name, segment.entry.count, filled / total)
