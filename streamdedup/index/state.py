"""*Pure.* The state of an index at a changelog offset: everything apart from the documents.

Rule 1: an erased document is never found again, whether its bytes are overwritten or not.
Rule 2: an erasure advances from *waiting* to *overwritten*, and never goes back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from streamdedup.batches import IndexUpdate
from streamdedup.columns import I64, Positions
from streamdedup.dedup.clock import Clock
from streamdedup.index.layout import Checkpoint
from streamdedup.index.rows import Bools, Source, StoredRows
from streamdedup.model import SourceRange

FREE: Source = ("", -1)
"""Replaces a forgotten source, until a new one gets its number."""


class IndexState:
    """What updates change besides documents, from a checkpoint on.

    The attributes are those of :class:`Checkpoint`, the latest note last. ``erased`` says of each
    erased number whether its bytes are still to be overwritten.
    """

    def __init__(self, checkpoint: Checkpoint, erased: Mapping[int, bool]) -> None:
        self.applied = checkpoint.applied
        self.next_number = checkpoint.next_number
        self.clock = Clock.from_state(checkpoint.clock)
        self.sources = SourcePartitions(checkpoint.sources, checkpoint.written)
        self.erasures = Erasures(erased)
        self.notes = dict(checkpoint.notes)
        self.has_all_texts = checkpoint.has_all_texts

    def advance(
        self, update: IndexUpdate, forgotten: Sequence[Source] = (), *, texts: bool
    ) -> StoredRows | None:
        """Advance past an update, up to its :meth:`confirm`.

        The index holds no documents of the sources to forget. Returns the rows of the update's
        documents, with or without their ``texts``; None if it has none.
        """
        documents, rows = update.documents, None
        self.sources.judge(update.ranges, is_ahead=update.is_ahead)
        if update.clock:
            self.clock = Clock.from_state(update.clock)
        self.next_number = update.first_number + len(documents)
        if len(documents):
            self.has_all_texts = self.has_all_texts and texts
            located = self.sources.add(documents.positions)
            rows = StoredRows.of(documents, update.effective_times_ms, *located, texts=texts)
        self.sources.forget(forgotten)
        self.erasures.add(update.deleted)
        return rows

    def confirm(self, applied: int, notes: Mapping[str, bytes]) -> None:
        """Record that the updates so far are in the changelog; an empty note deletes its key."""
        for key, note in notes.items():
            self.notes.pop(key, None)
            if note:
                self.notes[key] = note
        self.applied = applied

    def checkpoint(self) -> Checkpoint:
        """Return the state as the manifest stores it."""
        return Checkpoint(
            applied=self.applied,
            next_number=self.next_number,
            clock=self.clock.state(),
            sources=self.sources.entries(),
            written=self.sources.written(),
            notes=dict(self.notes),
            has_all_texts=self.has_all_texts,
        )


class Erasures:
    """The erased documents of an index, and which of them still have their bytes in a segment.

    ``known`` says of each erased number whether its bytes are still to be overwritten.
    """

    def __init__(self, known: Mapping[int, bool]) -> None:
        self._waits = dict(known)

    def __contains__(self, number: object) -> bool:
        return number in self._waits

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, numbers: Iterable[int]) -> None:
        """Erase documents; a replayed erasure changes nothing."""
        for number in numbers:
            self._waits.setdefault(number, True)

    def waiting(self) -> frozenset[int]:
        """Return the numbers whose bytes are still to be overwritten."""
        return frozenset(number for number, waits in self._waits.items() if waits)

    def overwritten(self, numbers: Iterable[int]) -> None:
        """Record that the bytes of erased documents are overwritten."""
        self._waits.update(dict.fromkeys(numbers, False))

    def forget(self, end: int) -> None:
        """Forget the numbers below ``end``: their segment has left the index."""
        for number in [number for number in self._waits if number < end]:
            del self._waits[number]

    def split(self, numbers: I64) -> tuple[I64, frozenset[int]]:
        """Return the numbers, ``(n,)``, that are not erased, and those that are."""
        if not self._waits:
            return numbers, frozenset()
        erased = np.fromiter(self._waits, dtype=np.int64, count=len(self._waits))
        gone = np.isin(numbers, erased)
        return numbers[~gone], frozenset(numbers[gone].tolist())


class SourcePartitions:
    """Source partitions, numbered in the order in which the index met them.

    A forgotten source leaves its number to a new one. ``entries`` and ``written`` are ``sources``
    and ``written`` of a :class:`Checkpoint`. ``names`` has topic and partition of each source, by
    its number.
    """

    def __init__(
        self, entries: Iterable[tuple[str, int, int]] = (), written: Sequence[int] = ()
    ) -> None:
        entries = list(entries)
        self.names: list[Source] = [(topic, partition) for topic, partition, _ in entries]
        self._next_offsets = [next_offset for _, _, next_offset in entries]
        self._written = list(written or self._next_offsets)
        self._numbers = dict(zip(self.names, itertools.count()))
        self._numbers.pop(FREE, None)
        self._free = [number for number, name in enumerate(self.names) if name == FREE]

    def entries(self) -> list[tuple[str, int, int]]:
        """Return topic, partition and next offset of each source, by its number."""
        return [(*each, end) for each, end in zip(self.names, self._next_offsets, strict=True)]

    def written(self) -> list[int]:
        """Return the written offset of each source; an empty list if they are the next offsets."""
        return [] if self._written == self._next_offsets else list(self._written)

    def next_offset(self, topic: str, partition: int) -> int:
        """Return the offset up to which a partition was judged, exclusive; 0 if unknown."""
        number = self._numbers.get((topic, partition))
        return 0 if number is None else self._next_offsets[number]

    def written_offset(self, topic: str, partition: int) -> int:
        """Return the offset behind the last range of a partition whose outputs came with it.

        It is earlier than the next offset if a judge has judged more than its edges had to write,
        and while records are written again. It is 0 for an unknown partition.
        """
        number = self._numbers.get((topic, partition))
        return 0 if number is None else self._written[number]

    def judge(self, ranges: Iterable[SourceRange], *, is_ahead: bool = False) -> None:
        """Advance the next offsets past judged ranges; they never go back.

        If a judge ``is_ahead``, edges write the outputs later.
        """
        for topic, partition, _, next_offset in ranges:
            number = self._add((topic, partition))
            self._next_offsets[number] = max(self._next_offsets[number], next_offset)
            if not is_ahead:
                self._written[number] = next_offset

    def locate(self, positions: Positions) -> tuple[I64, I64]:
        """Return each position's source number, -1 if unknown, and offset; both ``(n,)`` int64."""
        sources, rows = positions.sources()
        # The last entry serves columns without rows.
        numbers = [*(self._numbers.get(source, -1) for source in sources), -1]
        return np.array(numbers, dtype=np.int64)[rows], positions.offsets

    def add(self, positions: Positions) -> tuple[I64, I64]:
        """Number the sources of all positions, and return what :meth:`locate` returns."""
        for source in positions.sources()[0]:
            self._add(source)
        return self.locate(positions)

    def judged(self, sources: I64, offsets: I64) -> Bools:
        """Return whether each located position, ``(n,)``, lies before its next offset."""
        # The last entry is for the source -1: nothing of an unknown source was judged.
        next_offsets = np.array([*self._next_offsets, 0], dtype=np.int64)
        before: Bools = offsets < next_offsets[sources]
        return before

    def forget(self, sources: Iterable[Source]) -> None:
        """Forget sources of which the index holds no document; unknown ones are ignored."""
        for source in sources:
            number = self._numbers.pop(source, -1)
            if number >= 0:
                self.names[number], self._next_offsets[number], self._written[number] = FREE, 0, 0
                self._free.append(number)

    def _add(self, source: Source) -> int:
        """Return the number of a source; a new source gets a free number or the next one."""
        if source not in self._numbers:
            if not self._free:
                self._free.append(len(self.names))
                self.names.append(FREE)
                self._next_offsets.append(0)
                self._written.append(0)
            number = self._numbers[source] = self._free.pop()
            self.names[number] = source
        return self._numbers[source]
