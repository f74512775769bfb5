"""*Blocking.* The index: look up documents, and take in what a batch has kept.

Rule 1: whatever the segments and the manifest do not hold yet can be read again: from the
changelog, or from the manifest's tail if there is no changelog. The checkpoint says from where.
Rule 2: a verdict does not depend on what is flushed, merged or expired already. Buckets are capped
in the order of the documents' numbers, and only documents that can no longer match leave.
Rule 3: one process owns an index, and one of its threads uses it. The background's work is adopted
between two calls.
Rule 4: memory that an interrupt may have left half-changed is never written and never used again.
By rule 1, opening the index again loses nothing.

docs/adr/0007-segments-behind-a-delta.md gives the reasons.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Self

from streamdedup.batches import Candidates, DocumentColumns, IndexUpdate
from streamdedup.columns import I64
from streamdedup.dedup.clock import Clock
from streamdedup.errors import REMEDY, IndexDamaged, IndexMismatch, IndexUnusable, StreamdedupError
from streamdedup.formats import changelog
from streamdedup.index.directory import check_locked, lock, translated, unlock
from streamdedup.index.jobs import BACKGROUND
from streamdedup.index.layers import Layers
from streamdedup.index.layout import FORMAT, MOST_DOCUMENTS, POSTING_BYTES, Geometry, Header, Tail
from streamdedup.index.manifest import Manifest
from streamdedup.index.rows import Source
from streamdedup.index.state import IndexState
from streamdedup.model import DiskRoom, IndexStats
from streamdedup.settings.sections import IndexSettings
from streamdedup.sketch.parameters import SketchParameters

LOCAL_LOG = "the embedded mode"
"""The ``log`` of an index without a changelog topic."""
_NO_LIMIT = 2**62


class Index:
    """The band index, a copy of the changelog ``log``.

    A relative directory is resolved now, so the process may change its working directory later. The
    bits of the sketches depend on nothing but the parameters. With ``texts`` it stores the texts;
    after a document without one, it cannot be opened so any more.

    Raises:
        IndexUnusable: the directory cannot be created or written.
        IndexLocked: the index is open, in another process or in this one.
        IndexMismatch: it was built with other parameters, or belongs to another changelog.
        IndexDamaged: its files are not what was written.

    Attributes:
        is_torn: whether an interrupt or an unexpected error may have left a change half-done in
            memory. Such an index can only close, without writing anything.
        is_staged: whether an update is staged and not confirmed.
        sources: the source partitions, and up to which offsets they were judged.
    """

    def __init__(
        self, settings: IndexSettings, parameters: SketchParameters, log: str, *, texts: bool
    ) -> None:
        self.directory = settings.directory.absolute()
        settings = settings.model_copy(update={"directory": self.directory})
        self.is_torn = self.is_staged = False
        self._is_open, self._process = True, os.getpid()
        self._texts, self._keeps_tail = texts, log == LOCAL_LOG
        self._fingerprint = parameters.fingerprint()
        self._geometry = Geometry.of(settings, parameters)
        header = Header(FORMAT, parameters.described(), log)
        with translated(self.directory), ExitStack() as resources:
            self._lock = lock(self.directory)
            resources.callback(unlock, self._lock)
            self._manifest = Manifest(self.directory, header, sync=settings.sync)
            resources.callback(self._manifest.close)
            self._state = IndexState(self._manifest.checkpoint(), self._manifest.erased())
            self.sources = self._state.sources
            if texts and not self._state.has_all_texts:
                raise IndexMismatch(
                    f"{self.directory}: the index was built without the texts that dedup.verify "
                    "exact compares; set dedup.verify to estimate, or use another index directory "
                    "and changelog"
                )
            self._layers = Layers(settings, self._geometry, self._manifest, self._state)
            resources.callback(self._layers.close)
            for applied, tail in list(self._manifest.tail()):
                update = changelog.decode(tail.update, self._fingerprint)
                self._check(update)
                self._layers.make_room(len(update.documents))
                self._take(update, tail.forgotten)
                self._confirm(applied, tail.notes, erases=bool(update.deleted))
            self._layers.plan()
            self._resources = resources.pop_all()
        # A program that drops an index has no other way to open the directory again.
        weakref.finalize(self, _abandon, self._resources, self._process).atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is only in memory, close all files and release the lock.

        In a forked process this does nothing: the files belong to the process that opened them.
        """
        if os.getpid() != self._process:
            return
        try:
            sound = not (self.is_torn or self.is_staged) and self._layers.failure is None
            if self._is_open and sound:
                self.flush()
        finally:
            self._release()

    def _release(self) -> None:
        """Close without writing anything, as a crash does."""
        self._is_open = False
        self._resources.close()

    @property
    def applied(self) -> int:
        """Changelog offset up to which entries are applied, exclusive."""
        return self._state.applied

    @property
    def is_new(self) -> bool:
        """Whether no entry was ever applied."""
        return self._state.applied == 0

    @property
    def next_number(self) -> int:
        """The number that the next kept document gets."""
        return self._state.next_number

    @property
    def clock(self) -> Clock:
        """The clock of the stream after the last update."""
        return self._state.clock

    def note(self, key: str) -> bytes | None:
        """Return the last note under a key; None if there is none."""
        return self._state.notes.get(key)

    def note_keys(self) -> list[str]:
        """Return the keys of all notes, the latest note last."""
        return list(self._state.notes)

    @property
    def oldest_number(self) -> int:
        """The number of the oldest document that the index holds, or of the next one."""
        return self._layers.oldest_number

    def stats(self) -> IndexStats:
        """Count what the index holds."""
        layers, state = self._layers, self._state
        in_memory, entries = layers.documents_in_memory, layers.entries
        looks, found = layers.lookup.looks.tolist()
        return IndexStats(
            documents=in_memory + sum(entry.count for entry in entries),
            postings=in_memory * self._geometry.columns
            + sum(entry.parts["postings"] for entry in entries) // POSTING_BYTES,
            segments=len(entries),
            bytes_used=layers.bytes_used,
            memory_bytes=layers.memory_bytes,
            delta_documents=in_memory,
            applied=state.applied,
            durable=layers.durable,
            next_number=state.next_number,
            clock_ms=state.clock.now_ms,
            oldest_ms=min((entry.oldest_ms for entry in entries), default=-1),
            **layers.counts,
            lookups=looks,
            lookups_found=found,
            reserve_bytes=layers.reserve_bytes,
            scrubbed_bytes=layers.scrub.bytes_read,
            damaged_blocks=layers.scrub.damaged,
        )

    def room(self) -> DiskRoom:
        """Return how much room the disk and ``index.disk_budget`` leave."""
        self._check_directory()
        return self._layers.room()

    def numbers_of(self, id_: str) -> list[int]:
        """Return the numbers of the documents with an id, ascending; all ids are read."""
        return self._layers.lookup.numbers_of(id_)

    def documents(self, numbers: I64) -> tuple[I64, DocumentColumns]:
        """Return documents by their numbers; see :meth:`Lookup.documents`."""
        return self._layers.lookup.documents(numbers, texts=self._texts)

    def probe(self, documents: DocumentColumns) -> Candidates:
        """Find the kept documents that share a bucket with each of the given ones."""
        with self._changing():
            self._layers.adopt()
        lookup = self._layers.lookup
        candidates = lookup.probe(documents, self._geometry.bucket_size, texts=self._texts)
        judged, kept = lookup.replays(documents.positions)
        return replace(candidates, already_judged=judged, already_kept=kept)

    def apply(
        self,
        update: IndexUpdate,
        applied: int,
        notes: Mapping[str, bytes] | None = None,
        forgotten: Sequence[Source] = (),
    ) -> None:
        """Apply an update, which leads to the changelog offset ``applied``, unless it was applied.

        The index keeps notes for the transport; an empty note deletes its key. Without a changelog,
        ``forgotten`` sources count as unknown afterwards; the index holds no document of them.

        Raises:
            IndexFull: no room is left on the disk.
            IndexDamaged: the update does not continue the index.
            IndexMismatch: the index stores texts, and the update has none.
            IndexUnusable: an earlier call was interrupted, or another process opened the index.
        """
        with self._changing():
            self._layers.adopt()
            if applied <= self._state.applied:
                return
            self._check(update, f" at offset {applied - 1}")
            self._layers.make_room(len(update.documents))
            # Nothing below fails half-way: the index never holds a part of an update.
            if self._keeps_tail:
                [entry] = changelog.encode(update, self._fingerprint, _NO_LIMIT)
                self._manifest.append(applied, Tail(entry, dict(notes or {}), list(forgotten)))
            self._take(update, forgotten)
            self._confirm(applied, notes or {}, erases=bool(update.deleted))

    def stage(self, update: IndexUpdate) -> None:
        """Take in an update whose changelog entry is not committed yet, in memory only.

        Look-ups find its documents. Nothing is written or removed on its account before
        :meth:`confirm`. If its transaction fails, close the index, which then writes nothing, and
        open it again. The errors are those of :meth:`apply`.
        """
        with self._changing():
            if self.is_staged:
                raise RuntimeError("another update is staged")
            self._layers.adopt()
            self._check(update)
            self._layers.make_room(len(update.documents))
            self.is_staged = True
            self._take(update)

    def confirm(self, applied: int, notes: Mapping[str, bytes] | None = None) -> None:
        """Make the staged update part of the index; see :meth:`apply`."""
        with self._changing():
            self.is_staged = False
            self._confirm(applied, notes or {}, erases=False)

    def flush(self) -> None:
        """Write everything that is only in memory, and wait until it is on disk."""
        with self._changing():
            if self.is_staged:
                raise RuntimeError("an update is staged")
            self._layers.flush()

    def settle(self) -> None:
        """Wait until the background has nothing left to do."""
        with self._changing():
            self._layers.settle()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Guard a change of memory: anything but an error of our own may leave it half-done."""
        self._check_usable()
        self.is_torn = True
        try:
            yield
        except StreamdedupError:  # raised before a change or after it
            self.is_torn = False
            raise
        self.is_torn = False

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise IndexUnusable(
                f"{self.directory}: process {self._process} opened the index, and process "
                f"{os.getpid()}, a fork of it, cannot use it; open an index in each process, with "
                "its own directory"
            )
        if not self._is_open:
            raise RuntimeError("the index is closed")
        self._check_directory()
        if self._layers.failure is not None:
            raise self._layers.failure
        if self.is_torn:
            raise IndexUnusable(
                f"{self.directory}: an earlier call was interrupted; close the index and open it "
                "again, nothing is lost"
            )

    def _check_directory(self) -> None:
        try:
            check_locked(self.directory, self._lock)
        except IndexUnusable as error:
            self._layers.failure = error  # nothing may be written any more
            raise

    def _check(self, update: IndexUpdate, where: str = "") -> None:
        """Refuse an update that does not continue the index, or could not be read back."""
        # A new index may begin in mid-changelog: its retention may have deleted the beginning.
        if update.first_number != self._state.next_number and self._state.next_number:
            raise IndexDamaged(
                f"{self.directory}: the next document has number {self._state.next_number}, the "
                f"changelog continues{where} with {update.first_number}; {REMEDY}; if the rebuild "
                "ends in the same way, the changelog lacks entries: restore the topic, or delete "
                "its records before that offset with 'kafka-delete-records.sh', and remove the "
                "index directory again"
            )
        Clock.from_state(update.clock)
        documents = update.documents
        if not len(documents):
            return
        if len(documents) > MOST_DOCUMENTS:
            raise IndexUnusable(
                f"{self.directory}: {len(documents)} documents at once, a segment holds "
                f"{MOST_DOCUMENTS}; pass fewer documents at once"
            )
        if self._texts and not documents.texts:
            raise IndexMismatch(
                "the changelog was written without the texts that dedup.verify exact compares; set "
                "dedup.verify to estimate, or choose a new changelog topic and index"
            )
        signatures, band_keys = documents.sketches.signatures, documents.sketches.band_keys
        widths = signatures.shape[1], band_keys.shape[1]
        expected = self._geometry.width, self._geometry.columns
        if widths != expected:
            raise IndexDamaged(
                f"{self.directory}: an update has sketches of another width: {widths} (bytes, "
                f"keys) instead of {expected}; {REMEDY}"
            )

    def _take(self, update: IndexUpdate, forgotten: Sequence[Source] = ()) -> None:
        """Take in an update for which there is room."""
        rows = self._state.advance(update, forgotten, texts=self._texts)
        if rows is not None:
            self._layers.live.add(update.first_number, update.documents.sketches.band_keys, rows)

    def _confirm(self, applied: int, notes: Mapping[str, bytes], *, erases: bool) -> None:
        self._state.confirm(applied, notes)
        self._layers.end_update(erases=erases)


def _abandon(resources: ExitStack, process: int) -> None:
    """Close the files of an index that was dropped, without writing anything, as a crash does."""
    if os.getpid() != process:
        return
    if threading.current_thread().name == BACKGROUND:
        # The collector runs in any thread, and the background cannot wait for its own end.
        threading.Thread(target=resources.close, daemon=True).start()
    else:
        resources.close()
