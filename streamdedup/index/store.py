"""*Blocking.* The index: two deltas in memory, segments behind them, filters in front of these.

Rule 1: what a segment and the manifest do not hold yet can be read again: from the changelog, or
from the tail that the manifest keeps where there is none. ``applied`` on the disk says from where.
Rule 2: a verdict does not depend on what is flushed, merged or expired already: buckets are capped
in the order of the documents' numbers, whatever they lie in, and only what can no longer match
leaves.
Rule 3: one process owns an index, and one thread of it uses it. What happens in the background is
adopted between two calls.

docs/adr/0007-segments-behind-a-delta.md says why it is built so.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Self

import numpy as np

from streamdedup.dedup.clock import Clock
from streamdedup.errors import (
    REMEDY,
    IndexDamaged,
    IndexFull,
    IndexLocked,
    IndexMismatch,
    IndexUnusable,
)
from streamdedup.formats import changelog
from streamdedup.index import blocks
from streamdedup.index.background import (
    Background,
    Expire,
    Flush,
    Geometry,
    Merge,
    Outcome,
    Remove,
)
from streamdedup.index.blocks import Bools, Rows, concatenate
from streamdedup.index.delta import Delta
from streamdedup.index.filter import SLOTS, Bank, slots_of
from streamdedup.index.manifest import FORMAT, Checkpoint, Header, Manifest, SegmentEntry, Tail
from streamdedup.index.postings import MOST_DOCUMENTS, POSTING_BYTES, find
from streamdedup.index.segment import Segment
from streamdedup.model import (
    I64,
    U64,
    Candidates,
    DiskRoom,
    DocumentColumns,
    IndexStats,
    IndexUpdate,
    Position,
    SourceRange,
)
from streamdedup.settings.sections import IndexSettings
from streamdedup.settings.units import milliseconds
from streamdedup.sketch.parameters import SketchParameters

LOCAL_LOG = "the embedded mode"
"""The ``log`` of an index that no changelog topic stands behind."""

SLICES = 7
"""Parts of a window. One more may be half filled, and one half expired: eight slots' worth."""
RUN_PLACES, SLICE_PLACES = 16, 11
"""Bytes of filter for each key. Runs are small, so theirs may be better."""
FAN_IN = 6
"""Segments of much the same size that are merged into one. Eight runs have slots; two of these are
for what is flushed while the others are merged."""
_MOST_UPDATES = 16_384
"""Updates between two checkpoints: where few documents are kept, a restart reads no more again."""
_DOCUMENT_BYTES = 400
"""Of a document on the disk, without its text: a guess from above for what is in memory."""
_NO_LIMIT = 2**62
_RUN_SLOTS = range(SLOTS)
_SLICE_SLOTS = range(SLOTS, 2 * SLOTS)


_SOURCE, _OFFSET = itemgetter(0, 1), itemgetter(2)
"""Of a position."""


class _Numbers(dict[tuple[str, int], int]):
    """The numbers of sources; -1 for one that has none."""

    def __missing__(self, source: tuple[str, int]) -> int:
        return -1


class Index:
    """The band index.

    Args:
        settings: where it lives, and its limits.
        parameters: what the bits of its sketches depend on.
        log: the changelog that it is a copy of.
        texts: whether to hold the documents' texts, all of them. Once a document has come without
            its text the index holds them no more.

    Raises:
        IndexUnusable: the directory cannot be made or written.
        IndexLocked: another process has it open.
        IndexMismatch: it was built with other parameters or belongs to another changelog.
        IndexDamaged: its files are not what was written.
    """

    def __init__(
        self, settings: IndexSettings, parameters: SketchParameters, log: str, *, texts: bool
    ) -> None:
        self.directory = settings.directory
        self._settings = settings
        self._texts = texts
        self._fingerprint = parameters.fingerprint()
        self._geometry = geometry(settings, parameters)
        self._capacity = settings.delta_documents
        self._slice = slice_documents(settings)
        self._keeps_tail = log == LOCAL_LOG
        self._segments: list[Segment] = []
        self._counts: Counter[str] = Counter()
        self._failure: BaseException | None = None
        self._lock = lock(settings.directory)
        self._manifest: Manifest | None = None
        self._background: Background | None = None
        try:
            self._open(Header(FORMAT, parameters.described(), log))
        except BaseException:
            self._release()
            raise

    def _open(self, header: Header) -> None:
        settings, sizes = self._settings, self._geometry
        self._manifest = Manifest(self.directory, header, sync=settings.sync)
        self._banks = (
            Bank(sizes.columns, self._capacity, RUN_PLACES),
            Bank(sizes.columns, self._slice, SLICE_PLACES),
        )
        self._load(self._manifest.checkpoint())
        self._erased = self._manifest.erased()
        self._open_segments(self._manifest.segments())
        self._live = Delta(self._capacity, sizes.columns, sizes.width)
        self._spare: Delta | None = Delta(self._capacity, sizes.columns, sizes.width)
        self._frozen: Delta | None = None
        self._merging = False
        self._updates = 0
        self._changed = False
        names = [int(segment.entry.name) for segment in self._segments]
        self._background = Background(
            self.directory, self._manifest, sizes, self._banks, sync=settings.sync
        )
        self._background.start(max(names, default=-1) + 1)
        for applied, tail in list(self._manifest.tail()):
            update = changelog.decode(tail.update, self._fingerprint)
            self._check(update)
            self._make_room(update)
            self._take(update, applied, tail.notes)
        self._plan()

    def _load(self, checkpoint: Checkpoint) -> None:
        self._applied = self._durable = checkpoint.applied
        self._next_number = checkpoint.next_number
        self._clock = (
            Clock.from_state(checkpoint.clock, self._settings)
            if checkpoint.clock
            else Clock.from_settings(self._settings)
        )
        self._sources = [(topic, partition) for topic, partition, _ in checkpoint.sources]
        self._source_numbers = _Numbers(zip(self._sources, itertools.count()))
        self._next_offsets = [offset for _, _, offset in checkpoint.sources]
        self._notes = dict(checkpoint.notes)
        self._has_all_texts = checkpoint.has_all_texts
        if self._texts and not self._has_all_texts:
            raise IndexMismatch(
                f"{self.directory}: the index was built without the texts that dedup.verify exact "
                "compares; set dedup.verify to estimate, or use another index directory and "
                "changelog"
            )

    def _open_segments(self, entries: list[SegmentEntry]) -> None:
        self._users: Counter[int] = Counter()
        self._remove_strangers({entry.name for entry in entries})
        end = entries[0].first if entries else 0
        for entry in entries:
            if entry.first != end:
                raise IndexDamaged(
                    f"{self.directory}: documents {end} to {entry.first} are missing; {REMEDY}"
                )
            end = entry.end
            segment = Segment(self.directory, entry, self._geometry.columns)
            segment.slot = self._slot_for(entry.first, entry.count)
            self._users[segment.slot] += 1
            self._segments.insert(0, segment)
        if entries and end != self._next_number:
            raise IndexDamaged(
                f"{self.directory}: the segments end with document {end}, the manifest says "
                f"{self._next_number}; {REMEDY}"
            )
        for segment in self._segments:
            segment.fill(self._banks[segment.slot // SLOTS])
        self._tabulate()

    def _remove_strangers(self, known: set[str]) -> None:
        """Remove what a crash has left: half-written, or replaced already."""
        directory = self.directory / "segments"
        for found in directory.iterdir() if directory.exists() else ():
            if found.name not in known:
                shutil.rmtree(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is only in memory, close all files and let go of the lock."""
        try:
            if self._background is not None and self._failure is None:
                self.flush()
        finally:
            self._release()

    def _release(self) -> None:
        if self._background is not None:
            self._background.close()
            self._background = None
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        if self._manifest is not None:
            self._manifest.close()
            self._manifest = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def applied(self) -> int:
        """The changelog offset up to which entries are in, exclusive."""
        return self._applied

    @property
    def is_new(self) -> bool:
        """Whether no entry was ever applied."""
        return self._applied == 0

    @property
    def next_number(self) -> int:
        """The number that the next kept document gets."""
        return self._next_number

    @property
    def clock(self) -> Clock:
        """The clock as it stands after the last update."""
        return self._clock

    def next_offset(self, topic: str, partition: int) -> int:
        """Return the offset up to which a source partition was judged, exclusive."""
        source = self._source_numbers[topic, partition]
        return 0 if source < 0 else self._next_offsets[source]

    def note(self, key: str) -> bytes | None:
        """Return what was noted with the last update under a key."""
        return self._notes.get(key)

    def stats(self) -> IndexStats:
        """Count what the index holds."""
        deltas = [delta for delta in (self._live, self._frozen) if delta is not None]
        in_memory = sum(delta.count for delta in deltas)
        entries = [segment.entry for segment in self._segments]
        return IndexStats(
            documents=in_memory + sum(entry.count for entry in entries),
            postings=in_memory * self._geometry.columns
            + sum(entry.parts["postings"] for entry in entries) // POSTING_BYTES,
            segments=len(entries),
            bytes_used=self._bytes_used(),
            memory_bytes=2 * self._live.nbytes + sum(bank.nbytes for _, bank in self._banks_in_use),
            delta_documents=in_memory,
            applied=self._applied,
            durable=self._durable,
            next_number=self._next_number,
            clock_ms=self._clock.now_ms,
            oldest_ms=min((entry.oldest_ms for entry in entries), default=-1),
            flushes=self._counts["flushes"],
            merges=self._counts["merges"],
            expired=self._counts["expired"],
            stalls=self._counts["stalls"],
            lookups=self._counts["lookups"],
            lookups_found=self._counts["lookups_found"],
            reserve_bytes=self._reserve_bytes(in_memory),
        )

    def room(self) -> DiskRoom:
        """Ask how much room the disk and ``index.disk_budget`` leave."""
        free = shutil.disk_usage(self.directory).free
        budget = self._settings.disk_budget
        left = free if budget is None else min(free, budget - self._bytes_used())
        return DiskRoom(free, max(0, left))

    def _bytes_used(self) -> int:
        segments = sum(segment.entry.size for segment in self._segments)
        return self._opened_manifest.bytes_used + segments

    def _reserve_bytes(self, in_memory: int) -> int:
        """Return what a merge of the slice that is being filled would take, and the deltas."""
        filling = self._next_number // self._slice
        sizes = [
            segment.entry.size
            for segment in self._segments
            if segment.entry.first // self._slice == filling
        ]
        return sum(sizes) + in_memory * _DOCUMENT_BYTES

    def numbers_of(self, id_: str) -> list[int]:
        """Return the numbers of the documents with an id, ascending; all ids are looked at."""
        found = [first + at for first, rows in self._all_rows() for at in rows.places_of(id_)]
        return [number for number in found if number not in self._erased]

    def documents(self, numbers: I64) -> tuple[I64, DocumentColumns]:
        """Return documents by their numbers.

        Args:
            numbers: ascending, each of a document that the index holds, ``(n,)``.

        Returns:
            Their effective times in milliseconds, ``(n,)``, and the documents.
        """
        rows = self._rows_of(numbers)
        found = rows.documents(self._sources, texts=self._texts)
        return rows.fields[:, blocks.EFFECTIVE_TIME].copy(), found

    def probe(self, documents: DocumentColumns) -> Candidates:
        """Find the kept documents that share a bucket with each of the given ones."""
        self._adopt()
        hits = self._hits(documents.sketches.band_keys)
        numbers = np.unique(hits[:, 2])
        effective_times_ms, found = self.documents(numbers)
        judged, kept = self._known(documents.positions)
        return Candidates(
            hit_rows=hits[:, 0],
            hit_columns=hits[:, 1],
            hit_numbers=hits[:, 2],
            numbers=numbers,
            effective_times_ms=effective_times_ms,
            documents=found,
            already_kept=kept,
            already_judged=judged,
        )

    def apply(
        self, update: IndexUpdate, applied: int, notes: Mapping[str, bytes] | None = None
    ) -> None:
        """Take an update in. One that was taken in before changes nothing.

        Args:
            update: what the index gains.
            applied: changelog offset that this brings the index to.
            notes: what the transport must remember with it.

        Raises:
            IndexFull: no room is left on the disk.
            IndexDamaged: the update does not go on where the index ends.
            IndexMismatch: the index holds texts, and the update brings none.
        """
        self._adopt()
        if applied <= self._applied:
            return
        self._check(update)
        self._make_room(update)
        # Nothing below fails half-way: the index never stands for a part of an update.
        if self._keeps_tail:
            [entry] = changelog.encode(update, self._fingerprint, _NO_LIMIT)
            self._opened_manifest.append(applied, Tail(entry, dict(notes or {})))
        self._take(update, applied, notes or {})

    def flush(self) -> None:
        """Write everything that is only in memory, and wait until it is on the disk."""
        self._adopt()
        self._freeze()
        while self._frozen is not None:
            self._adopt(wait=True)
        if self._changed:
            self._announce_checkpoint()

    def settle(self) -> None:
        """Wait until the background has nothing left to do."""
        while self._opened_background.pending:
            self._adopt(wait=True)

    def _check(self, update: IndexUpdate) -> None:
        """Refuse what does not go on here, or would be read back as something else."""
        # A new index may begin where the changelog does: its retention may have cut the oldest.
        if update.first_number != self._next_number and self._next_number:
            raise IndexDamaged(
                f"{self.directory}: the next document has number {self._next_number}, the "
                f"changelog goes on with {update.first_number}; {REMEDY}"
            )
        documents = update.documents
        if not len(documents):
            return
        if self._texts and not documents.texts:
            raise IndexMismatch(
                "the changelog was written without the texts that dedup.verify exact compares; set "
                "dedup.verify to estimate, or choose a new changelog topic and index"
            )
        widths = documents.sketches.signatures.shape[1], documents.sketches.band_keys.shape[1]
        if widths != (self._geometry.width, self._geometry.columns):
            raise IndexDamaged(f"{self.directory}: an update has sketches of another width")

    def _make_room(self, update: IndexUpdate) -> None:
        if not self._live.has_room(len(update.documents)):
            self._freeze()

    def _take(self, update: IndexUpdate, applied: int, notes: Mapping[str, bytes]) -> None:
        documents = update.documents
        self._remember(update.ranges)
        if len(documents):
            keys = documents.sketches.band_keys
            self._live.add(update.first_number, keys, self._rows(update))
            self._has_all_texts = self._has_all_texts and self._texts
        self._clock.advance_to(update.clock_ms)
        self._clock.advance(update.first_number, documents.event_times_ms)
        self._erased.update(dict.fromkeys(update.deleted, True))
        self._notes.update(notes)
        self._next_number = update.first_number + len(documents)
        self._applied = applied
        self._changed = True
        self._updates += 1
        if self._updates >= _MOST_UPDATES:
            self._checkpoint()
        if update.deleted:
            self._plan()
        else:
            self._expire()

    def _rows(self, update: IndexUpdate) -> Rows:
        documents = update.documents
        count = len(documents)
        sources, offsets = self._locate(documents.positions)
        if (sources < 0).any():
            for source in dict.fromkeys(map(_SOURCE, documents.positions)):
                self._source(source)
            sources, offsets = self._locate(documents.positions)
        fields = np.empty((count, blocks.FIELDS), dtype=np.int64)
        fields[:, blocks.EVENT_TIME] = documents.event_times_ms
        fields[:, blocks.EFFECTIVE_TIME] = update.effective_times_ms
        fields[:, blocks.SOURCE] = sources
        fields[:, blocks.OFFSET] = offsets
        fields[:, blocks.NAMESPACE] = documents.namespaces.view(np.int64)
        ids = "".join(documents.ids).encode()
        lengths = np.fromiter(map(len, documents.ids), dtype=np.int64, count=count)
        if lengths.sum() != len(ids):  # characters are not bytes
            lengths = np.array([len(each.encode()) for each in documents.ids], dtype=np.int64)
        texts = documents.texts if self._texts else [b""] * count
        return Rows(
            documents.sketches.signatures,
            fields,
            np.cumsum(lengths),
            np.frombuffer(ids, dtype=np.uint8),
            np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=count)),
            np.frombuffer(b"".join(texts), dtype=np.uint8),
        )

    def _locate(self, positions: list[Position]) -> tuple[I64, I64]:
        """Return the sources' numbers, -1 for one that is not known, and the offsets."""
        count = len(positions)
        known = map(self._source_numbers.__getitem__, map(_SOURCE, positions))
        sources = np.fromiter(known, dtype=np.int64, count=count)
        return sources, np.fromiter(map(_OFFSET, positions), dtype=np.int64, count=count)

    def _source(self, source: tuple[str, int]) -> int:
        """Return the number of a source, which gets one if it has none."""
        if source not in self._source_numbers:
            self._source_numbers[source] = len(self._sources)
            self._sources.append(source)
            self._next_offsets.append(0)
        return self._source_numbers[source]

    def _remember(self, ranges: tuple[SourceRange, ...]) -> None:
        for topic, partition, _, next_offset in ranges:
            source = self._source((topic, partition))
            self._next_offsets[source] = max(self._next_offsets[source], next_offset)

    def _known(self, positions: list[Position]) -> tuple[Bools, frozenset[int]]:
        """Tell which positions were judged before, and which of these were kept."""
        sources, offsets = self._locate(positions)
        next_offsets = np.array([*self._next_offsets, 0], dtype=np.int64)
        judged = offsets < next_offsets[sources]
        rows = np.flatnonzero(judged)
        if not len(rows):
            return judged, frozenset()
        wanted = sources[rows], offsets[rows]
        kept = np.zeros(len(rows), dtype=np.bool_)
        for delta in (self._live, self._frozen):
            if delta is not None:
                kept |= delta.positions_found(*wanted)
        for segment in self._segments:
            kept |= blocks.find_positions(segment.blocks, *wanted)
        return judged, frozenset(rows[kept].tolist())

    def _hits(self, keys: U64) -> I64:
        """Return the hits ``(h, 3)`` - row, column, number - in ascending order."""
        size = self._geometry.bucket_size
        hits = np.empty((max(4096, keys.size // 8), 3), dtype=np.int64)
        looks = np.zeros(2, dtype=np.int64)
        masks = self._masks(keys)
        while True:
            counts = np.zeros(keys.shape, dtype=np.uint64)
            filled = self._live.find(keys, size, counts, hits, 0)
            if self._frozen is not None:
                filled = self._frozen.find(keys, size, counts, hits, filled)
            if self._segments:
                filled = find(
                    keys,
                    masks,
                    self._slots,
                    self._firsts,
                    self._places,
                    size,
                    counts,
                    hits,
                    filled,
                    looks,
                )
            if filled <= len(hits):
                break
            hits, looks[:] = np.empty((filled, 3), dtype=np.int64), 0
        self._counts["lookups"] += int(looks[0])
        self._counts["lookups_found"] += int(looks[1])
        hits = hits[:filled]
        if self._erased:
            erased = np.fromiter(self._erased, dtype=np.int64, count=len(self._erased))
            hits = hits[~np.isin(hits[:, 2], erased)]
        return hits[np.lexsort((hits[:, 2], hits[:, 1], hits[:, 0]))]

    def _masks(self, keys: U64) -> U64:
        """Return, for each key, the slots whose segments may hold it."""
        masks = np.zeros(keys.shape, dtype=np.uint64)
        for number, bank in self._banks_in_use:
            slots_of(bank.cells, bank.address, bank.lines, number * SLOTS, keys, masks)
        return masks

    def _tabulate(self) -> None:
        """Make the kernels' view of the segments."""
        segments = self._segments
        self._slots = np.array([each.slot for each in segments], dtype=np.int64)
        self._firsts = np.array([each.entry.first for each in segments], dtype=np.int64)
        used = {each.slot // SLOTS for each in segments}
        self._banks_in_use = [(number, self._banks[number]) for number in sorted(used)]
        if segments:
            self._places = np.stack([each.places for each in segments])

    def _rows_of(self, numbers: I64) -> Rows:
        """Return documents by ascending numbers."""
        parts = []
        ends = np.searchsorted(
            numbers, [segment.entry.end for segment in reversed(self._segments)]
        ).tolist()
        starts = [0, *ends]
        on_disk = starts[-1]
        if on_disk:
            addresses = np.empty(on_disk, dtype=np.int64)
            places = np.empty(on_disk, dtype=np.int64)
            for segment, start, end in zip(reversed(self._segments), starts, ends, strict=False):
                if start < end:
                    local = numbers[start:end] - segment.entry.first
                    addresses[start:end] = segment.blocks[local // blocks.BLOCK_DOCUMENTS]
                    places[start:end] = local % blocks.BLOCK_DOCUMENTS
            parts.append(blocks.gather(addresses, places, self._geometry.width))
        for delta in (self._frozen, self._live):
            if delta is not None:
                mine = numbers[on_disk:]
                mine = mine[(mine >= delta.first) & (mine < delta.end)]
                parts.append(delta.rows(mine - delta.first))
        return concatenate(parts)

    def _all_rows(self) -> Iterator[tuple[int, Rows]]:
        """Yield all documents, a block at a time, with the number of the first, ascending."""
        for segment in reversed(self._segments):
            yield from segment.all_rows(self._geometry.width)
        for delta in (self._frozen, self._live):
            if delta is not None and delta.count:
                yield delta.first, delta.rows(np.arange(delta.count))

    def _checkpoint(self) -> None:
        """Let the disk follow, so that a restart has less to read again."""
        if self._live.count:
            self._freeze()
        elif self._frozen is None:
            self._announce_checkpoint()

    def _announce_checkpoint(self) -> None:
        self._opened_manifest.announce(checkpoint=self._now(), erased=self._erased)
        self._durable, self._changed, self._updates = self._applied, False, 0

    def _now(self) -> Checkpoint:
        return Checkpoint(
            applied=self._applied,
            next_number=self._next_number,
            clock=self._clock.state(),
            sources=[
                (*source, offset)
                for source, offset in zip(self._sources, self._next_offsets, strict=True)
            ],
            notes=dict(self._notes),
            has_all_texts=self._has_all_texts,
        )

    def _freeze(self) -> None:
        """Have the live delta flushed, and go on with the other one."""
        if not self._live.count:
            return
        if self.room().bytes_left < self._live.count * _DOCUMENT_BYTES // 2:
            raise IndexFull(
                f"the index {self.directory} has no room left; make room on the disk, raise "
                "index.disk_budget, or lower index.window_documents"
            )
        if self._frozen is not None:  # the one place where the callers wait
            self._counts["stalls"] += 1
        while self._spare is None:
            self._adopt(wait=True)
        delta, self._live, self._spare = self._live, self._spare, None
        self._frozen = delta
        job = Flush(
            delta,
            self._take_slot(delta.first, delta.count),
            self._now(),
            self._to_overwrite(),
            self._clock.settlement,
        )
        self._changed, self._updates = False, 0
        self._opened_background.submit(job)

    def _adopt(self, *, wait: bool = False) -> None:
        """Take over what the background has done; only here the view of the segments changes."""
        if self._failure is not None:
            raise self._failure
        changed = False
        while (outcome := self._opened_background.outcome(wait=wait)) is not None:
            wait = False
            changed |= self._adopt_one(outcome)
        if changed:
            self._tabulate()
            self._plan()

    def _adopt_one(self, outcome: Outcome) -> bool:
        if outcome.error is not None:
            self._failure = outcome.error
            raise outcome.error
        match outcome.job:
            case Flush(delta=delta, segment=Segment() as segment, checkpoint=checkpoint) as flush:
                self._segments.insert(0, segment)
                self._frozen = None
                self._durable = checkpoint.applied
                self._overwritten(segment, flush.erased)
                self._counts["flushes"] += 1
                self._opened_background.submit(Remove(delta=delta))
            case Merge(members=members, segment=Segment() as segment) as merge:
                at = self._segments.index(members[-1])
                self._segments[at : at + len(members)] = [segment]
                self._merging = False
                self._overwritten(segment, merge.erased)
                self._counts["merges"] += 1
                self._retire(members)
            case Expire(segment=segment):
                self._segments.remove(segment)
                for number in [each for each in self._erased if each < segment.entry.end]:
                    del self._erased[number]
                self._counts["expired"] += 1
                self._retire([segment])
            case Remove(slots=slots, delta=delta):
                self._users.subtract(slots)
                self._spare = self._spare or delta
                return False
        return True

    def _retire(self, segments: list[Segment]) -> None:
        """Have segments removed that the kernels no longer see, and slots cleared with them."""
        free = []
        for segment in segments:
            self._users[segment.slot] -= 1
            if not self._users[segment.slot]:
                free.append(segment.slot)
        self._users.update(free)  # until they are cleared
        self._opened_background.submit(Remove(segments, free))

    def _plan(self) -> None:
        self._expire()
        members, complete = ([], False) if self._merging else self._next_merge()
        # A merge can wait for better times: for room that expiry makes, or the operator.
        if not members or self.room().bytes_left < sum(each.entry.size for each in members):
            return
        members.reverse()
        first, end = members[0].entry.first, members[-1].entry.end
        for member in members:
            member.busy = True
        self._merging = True
        slot = self._take_slot(first, end - first)
        erased = frozenset(each for each in self._to_overwrite() if first <= each < end)
        store = complete and slot in _SLICE_SLOTS
        self._opened_background.submit(Merge(members, slot, erased, self._clock.settlement, store))

    def _next_merge(self) -> tuple[list[Segment], bool]:
        """Choose segments to merge, newest first, and tell whether they are a whole slice."""
        oldest_in_memory = next(
            (delta.first for delta in (self._frozen, self._live) if delta and delta.count),
            self._next_number,
        )
        filling = oldest_in_memory // self._slice
        by_slice = itertools.groupby(self._segments, lambda each: each.entry.first // self._slice)
        for number, group in by_slice:
            members = list(group)
            if any(member.busy for member in members):
                continue
            if number < filling and len(members) > 1:
                return members, True
            if number >= filling and (alike := self._alike(members)):
                return alike, False
        waiting = self._to_overwrite()
        for segment in self._segments if waiting else ():
            here = range(segment.entry.first, segment.entry.end)
            if not segment.busy and any(number in here for number in waiting):
                return [segment], segment.entry.shards[0].plane_bytes > 0
        return [], False

    def _alike(self, members: list[Segment]) -> list[Segment]:
        """Return the newest segments of much the same size, where there are enough of them."""
        low, limit = 0, self._capacity
        while limit < self._slice:
            larger = (at for at, each in enumerate(members) if each.entry.count > limit)
            recent = members[: next(larger, len(members))]
            if sum(each.entry.count > low for each in recent) >= FAN_IN:
                return recent
            low, limit = limit, limit * FAN_IN
        return []

    def _expire(self) -> None:
        """Let go of the oldest segments when none of their documents can match any more."""
        for segment in reversed(self._segments):
            if segment.busy or not self._is_out(segment.entry):
                return
            segment.busy = True
            self._opened_background.submit(Expire(segment))

    def _is_out(self, entry: SegmentEntry) -> bool:
        if entry.end <= self._next_number - self._settings.window_documents:
            return True
        window, oldest_ms = self._settings.window, self._clock.oldest_ms
        if window is None or oldest_ms is None:
            return False
        newest_ms, settlement = entry.newest_ms, self._clock.settlement
        if entry.end <= settlement.number:  # it may have been written before the clock settled
            newest_ms = min(newest_ms, settlement.ceiling_ms)
        return newest_ms + milliseconds(window) <= oldest_ms

    def _to_overwrite(self) -> frozenset[int]:
        return frozenset(number for number, waiting in self._erased.items() if waiting)

    def _overwritten(self, segment: Segment, erased: frozenset[int]) -> None:
        for number in erased:
            if segment.entry.first <= number < segment.entry.end:
                self._erased[number] = False

    def _take_slot(self, first: int, count: int) -> int:
        """Return a slot for a segment, and count its user."""
        slot = self._slot_for(first, count)
        self._users[slot] += 1
        return slot

    def _slot_for(self, first: int, count: int) -> int:
        """Return the slot for a segment: a run's own, or its slice's, or one that must do.

        Segments may always share a slot: a look-up then goes to all of them.
        """
        if count <= self._capacity:
            for slot in _RUN_SLOTS:
                if not self._users[slot]:
                    return slot
        while True:
            of_slices = {
                each.entry.first // self._slice: each.slot
                for each in self._segments
                if each.slot in _SLICE_SLOTS
            }
            wanted = first // self._slice
            if wanted in of_slices:
                return of_slices[wanted]
            for slot in _SLICE_SLOTS:
                if not self._users[slot]:
                    return slot
            if of_slices:
                return of_slices[max(of_slices)]
            self._adopt(wait=True)

    @property
    def _opened_manifest(self) -> Manifest:
        if self._manifest is None:
            raise RuntimeError("the index is closed")
        return self._manifest

    @property
    def _opened_background(self) -> Background:
        if self._background is None:
            raise RuntimeError("the index is closed")
        return self._background


def geometry(settings: IndexSettings, parameters: SketchParameters) -> Geometry:
    """Return the sizes that an index of these settings has."""
    columns = parameters.bands + 1
    shards = min(settings.shards, columns)
    edges = [columns * shard // shards for shard in range(shards + 1)]
    return Geometry(
        columns=columns,
        width=parameters.signature_bytes,
        bucket_size=settings.bucket_size,
        shards=[range(edges[at], edges[at + 1]) for at in range(shards)],
    )


def slice_documents(settings: IndexSettings) -> int:
    """Return how many documents are merged into one segment, and leave the window together."""
    # The last of a slice's runs may reach into the next slice, and a delta or two are on the way.
    most = settings.window_documents + 4 * settings.delta_documents
    return min(MOST_DOCUMENTS // 2, max(settings.delta_documents, -(-most // SLICES)))


def lock(directory: Path) -> int:
    """Make the directory, and lock it for this process."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise IndexUnusable(
            f"cannot write the index directory {directory}: {error.strerror}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise IndexLocked(
            f"the index {directory} is open in another process; stop that one first"
        ) from error
    return descriptor
