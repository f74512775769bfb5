"""*Pure.* Finds kept documents: by band keys, number, position or id.

An open index and a view of a closed one use the same look-ups, so they find the same documents. A
view has no filters in front of its segments; filters only save time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import Candidates, DocumentColumns
from streamdedup.columns import I64, U64, Positions
from streamdedup.dedup.judge import IGNORED_KEY_BITS, group
from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.index import blocks
from streamdedup.index.blocks import BLOCK_DOCUMENTS
from streamdedup.index.chores import Prefetch
from streamdedup.index.delta import Delta
from streamdedup.index.filter import SLOTS, Bank, slots_of
from streamdedup.index.postings import addresses_of, find
from streamdedup.index.rows import SOURCE, Bools, StoredRows
from streamdedup.index.segment import Segment
from streamdedup.index.state import IndexState

_LEAST_HITS = 4096
"""Hits for which memory is reserved, however few keys are looked up."""


class Lookup:
    """Finds documents in deltas and segments. Erased documents are never found by id.

    Without banks, the filters of runs and of slices, it searches every segment.

    Attributes:
        banks_in_use: the filters that some segment uses, each with its number.
        looks: ``(2,)`` int64: look-ups in segments so far, and those that found something.
    """

    def __init__(self, width: int, state: IndexState, banks: Sequence[Bank] = ()) -> None:
        self._width, self._banks = width, banks
        self._sources, self._erasures = state.sources, state.erasures
        self.looks = np.zeros(2, dtype=np.int64)
        self._prefetch = Prefetch()
        self.set_layers([], [])

    def set_layers(self, deltas: Sequence[Delta], segments: Sequence[Segment]) -> None:
        """Replace what is searched; both come newest first."""
        self._deltas, self._segments = list(deltas), list(segments)
        table = [
            (each.slot if self._banks else 0, each.entry.first, each.entry.count)
            for each in segments
        ]
        self._table = np.array(table, dtype=np.int64)
        if segments:
            self._subs = np.stack([segment.subs for segment in segments])
        used = sorted({segment.slot // SLOTS for segment in segments}) if self._banks else []
        self._prefetch.set_files([file for segment in segments for file in segment.files])
        self.banks_in_use = [(number, self._banks[number]) for number in used]

    def probe(
        self, documents: DocumentColumns, size: int, *, texts: bool, known: Bools | None = None
    ) -> Candidates:
        """Find the kept documents that share a bucket with each of the given ones.

        Of each bucket, the newest documents count, as many as ``size`` says. The positions of the
        given documents count as new; see :meth:`replays`. ``known`` says which columns to search,
        ``(columns,)``; None for all.
        """
        keys = documents.sketches.band_keys
        buckets, leaders, shared = group(keys, IGNORED_KEY_BITS)
        with self._prefetch.measure(len(keys)):
            hits = self._hits(keys, leaders, size, known)
            numbers, erased = self._erasures.split(np.unique(hits[:, 2]))
            effective_times_ms, found = self.documents(numbers, texts=texts)
        return Candidates(
            buckets=buckets,
            leaders=leaders,
            shared=shared,
            hit_rows=hits[:, 0],
            hit_columns=hits[:, 1],
            hit_numbers=hits[:, 2],
            erased=erased,
            numbers=numbers,
            effective_times_ms=effective_times_ms,
            documents=found,
            already_kept=frozenset(),
            already_judged=np.zeros(len(documents), dtype=np.bool_),
        )

    def _hits(
        self, keys: U64, leaders: NDArray[np.int32], bucket_size: int, known: Bools | None
    ) -> I64:
        """Return the hits of band keys, ``(h, 3)``: row, column and number, in ascending order.

        They include the hits of erased documents. Of equal keys of a column only the first has
        hits, so that a bucket which many of the documents share is read once.
        """
        hits = np.empty((max(_LEAST_HITS, keys.size // 8), 3), dtype=np.int64)
        # Without filters, every segment has slot 0.
        masks = np.full(keys.shape, 0 if self._banks else 1, dtype=np.uint64)
        for number, bank in self.banks_in_use:
            slots_of(bank.cells, bank.address, bank.lines, number * SLOTS, keys, masks)
        if self._prefetch.is_on and self._segments:
            addresses = np.empty(max(_LEAST_HITS, 4 * keys.size), dtype=np.int64)
            count = addresses_of(keys, masks, self._table, self._subs, addresses)
            self._prefetch.pages(addresses[:count])
        repeated = leaders != np.arange(len(keys))[:, None]
        while True:
            left = np.where(repeated, 0, bucket_size)
            if known is not None:
                left[:, ~known] = 0
            looks, filled = np.zeros(3, dtype=np.int64), 0
            for delta in self._deltas:
                filled = delta.find(keys, left, hits, filled)
            if self._segments:
                filled = find(keys, masks, self._table, self._subs, left, hits, filled, looks)
            if filled <= len(hits):
                break
            hits = np.empty((filled, 3), dtype=np.int64)
        if looks[2]:
            raise IndexDamaged(
                f"the index is damaged: {looks[2]} postings lead out of their segment; {REMEDY}"
            )
        self.looks += looks[:2]
        hits = hits[:filled]
        return hits[np.lexsort((hits[:, 2], hits[:, 1], hits[:, 0]))]

    def replays(self, positions: Positions) -> tuple[Bools, frozenset[int]]:
        """Return which positions were judged before, and the rows of those that were kept."""
        sources, offsets = self._sources.locate(positions)
        judged = self._sources.judged(sources, offsets)
        rows = np.flatnonzero(judged)
        if not len(rows):
            return judged, frozenset()
        wanted = sources[rows], offsets[rows]
        kept = np.zeros(len(rows), dtype=np.bool_)
        for delta in self._deltas:
            kept |= delta.find_positions(*wanted)
        for segment in self._segments:
            kept |= segment.find_positions(*wanted)
        return judged, frozenset(rows[kept].tolist())

    def documents(self, numbers: I64, *, texts: bool) -> tuple[I64, DocumentColumns]:
        """Return documents by their numbers, which are ascending, held, and ``(n,)``.

        Their effective times in milliseconds, ``(n,)``, come first.

        Raises:
            IndexDamaged: a document is not what was written.
        """
        rows, names = self._rows(numbers), self._sources.names
        sources = rows.fields[:, SOURCE]
        try:
            if ((sources < 0) | (sources >= len(names))).any():
                raise ValueError("unknown source")  # noqa: TRY301 - translated below
            return rows.effective_times_ms(), rows.documents(names, texts=texts)
        except ValueError as error:  # an id that is not UTF-8 is one too
            raise IndexDamaged(
                f"the index is damaged: a document is invalid ({error}); {REMEDY}"
            ) from error

    def _rows(self, numbers: I64) -> StoredRows:
        oldest_first = self._segments[::-1]
        ends = np.searchsorted(numbers, [segment.entry.end for segment in oldest_first]).tolist()
        on_disk = ends[-1] if ends else 0
        indices = numbers[:on_disk].copy()
        addresses, sizes = np.empty_like(indices), np.empty_like(indices)
        parts = [
            (segment, slice(start, end))
            for segment, start, end in zip(oldest_first, [0, *ends], ends, strict=False)
            if start < end
        ]
        for segment, part in parts:
            indices[part] -= segment.entry.first
        block_numbers, within = np.divmod(indices, BLOCK_DOCUMENTS)
        if self._prefetch.is_on:
            for segment, part in parts:
                segment.documents.will_need(np.unique(block_numbers[part]).tolist())
        for segment, part in parts:
            segment.documents.check_once(block_numbers[part])
            addresses[part] = segment.documents.addresses[block_numbers[part]]
            sizes[part] = segment.documents.sizes[block_numbers[part]]
        found = [blocks.gather(addresses, sizes, within, self._width)]
        for delta in reversed(self._deltas):
            mine = numbers[(numbers >= delta.first) & (numbers < delta.end)]
            if len(mine):
                found.append(delta.rows(mine - delta.first))
        return StoredRows.concatenate(found)

    def numbers_of(self, id_: str) -> list[int]:
        """Return the numbers of the documents with an id, ascending; all ids are read."""
        of_segments = (segment.all_rows(self._width) for segment in reversed(self._segments))
        of_deltas = (
            (delta.first, delta.rows(np.arange(delta.count))) for delta in reversed(self._deltas)
        )
        return [
            first + row
            for first, rows in itertools.chain(*of_segments, of_deltas)
            for row in rows.rows_with_id(id_)
            if first + row not in self._erasures
        ]
