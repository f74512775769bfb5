"""A reference for the index: lists of everything that was applied, and what follows from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamdedup.batches import Candidates, DocumentColumns, IndexUpdate, Sketches
from streamdedup.columns import U64, Blobs, Positions, Strings
from streamdedup.dedup import clock as clocks
from streamdedup.dedup.clock import Allowances, Clock
from streamdedup.model import NO_TIMESTAMP, Position, SourceRange
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import milliseconds
from tests.support.builders import COLUMNS

WIDTH = 16
SOURCES = [("topic", 0), ("topic", 1), ("other", 0)]
HOUR_MS = 3_600_000
_STORED = np.uint64(24)
"""The index stores the bits of a key above these."""


@dataclass(frozen=True)
class Kept:
    """A kept document, as the index must return it."""

    keys: U64
    signature: bytes
    id: str
    position: Position
    event_ms: int
    effective_ms: int
    namespace: int
    text: bytes


def band_keys(rng: np.random.Generator, count: int, variety: int) -> U64:
    """Return keys that often collide; some agree in all bits that are stored."""
    upper = rng.integers(0, variety, (count, COLUMNS), dtype=np.uint64)
    spread = upper * np.uint64(0x9E3779B97F4A7C15) >> _STORED << _STORED
    return spread | rng.integers(0, 2**24, (count, COLUMNS), dtype=np.uint64)


class Reference:
    """Everything that an index was given.

    Args:
        settings: of the index.
        first: number of the first document: not 0 if the changelog has lost its beginning.
        texts: whether documents have texts.

    Attributes:
        updates: each update with its changelog offset and its notes.
        bucket_sizes: every bucket size that the index was opened with.
    """

    def __init__(self, settings: Settings, first: int, *, texts: bool) -> None:
        self.first = first
        self.updates: list[tuple[IndexUpdate, int, dict[str, bytes]]] = []
        self.documents: list[Kept] = []
        self.erased: set[int] = set()
        self.next_offsets: dict[tuple[str, int], int] = defaultdict(int)
        self.bucket_sizes = [settings.index.bucket_size]
        self.clock = Clock()
        self._allowances = Allowances.from_settings(settings.index)
        self._texts = texts
        self._settings = settings
        self._kept_positions: dict[Position, int] = {}
        self._now_ms = 1_700_000_000_000

    @property
    def applied(self) -> int:
        """The changelog offset of the last update."""
        return self.updates[-1][1] if self.updates else 0

    @property
    def next_number(self) -> int:
        """The number of the next document."""
        return self.first + len(self.documents) if self.updates else 0

    @property
    def notes(self) -> dict[str, bytes]:
        """The last note under each key."""
        return {key: value for _, _, notes in self.updates for key, value in notes.items()}

    def update(
        self, count: int, seed: int, variety: int, hours: float, erase: list[int]
    ) -> tuple[IndexUpdate, int, dict[str, bytes]]:
        """Make an update that keeps documents, and erases some shortly before its end."""
        rng = np.random.default_rng(seed)
        self._now_ms += int(hours * HOUR_MS)
        number = self.first + len(self.documents)
        keys = band_keys(rng, count, variety)
        new = [self._document(rng, number + row, keys[row]) for row in range(count)]
        self.documents += new
        held = range(self.first, self.first + len(self.documents))
        gone = {held[-back] for back in erase if back <= len(held)}
        self.erased |= gone
        update = IndexUpdate(
            number,
            columns_of(new, keys, [document.text for document in new] if self._texts else ()),
            tuple(SourceRange(*source, 0, offset) for source, offset in self.next_offsets.items()),
            np.array([document.effective_ms for document in new], dtype=np.int64),
            b"" if not count and seed % 2 else self.clock.state(),
            tuple(sorted(gone)),
        )
        # The offsets of a changelog have gaps: the markers of its transactions.
        applied = self.applied + 1 + seed % 3
        self.updates.append((update, applied, {f"note-{seed % 3}": seed.to_bytes(4, "big")}))
        return self.updates[-1]

    def _document(self, rng: np.random.Generator, number: int, keys: U64) -> Kept:
        """Make a document at the next offset or later, and advance the clock."""
        source = SOURCES[rng.integers(len(SOURCES))]
        offset = self.next_offsets[source] + int(rng.choice([0, 0, 1, 300, 70_000]))
        self.next_offsets[source] = offset + 1
        position = Position(*source, offset)
        self._kept_positions[position] = number
        hours = rng.choice([0, 0, -0.5, 0.5, -30, 10_000])
        event_ms = NO_TIMESTAMP if rng.random() < 0.2 else self._now_ms + int(hours * HOUR_MS)
        event = np.array([event_ms])
        effective_ms = int(
            clocks.effective_ms(event, self.clock.advance(event), self._allowances)[0]
        )
        return Kept(
            keys=keys,
            signature=rng.bytes(WIDTH),
            id=rng.choice(["", "é", "a much longer id "]) + str(number) * int(rng.integers(3)),
            position=position,
            event_ms=event_ms,
            effective_ms=effective_ms,
            namespace=int(rng.integers(2**64, dtype=np.uint64)),
            text=f"text {number}".encode() * int(rng.integers(3)),
        )

    def query(self, seed: int, variety: int) -> DocumentColumns:
        """Make documents of which some were kept, at positions that may have been judged."""
        rng = np.random.default_rng(seed)
        keys = band_keys(rng, 12, variety)
        if self.documents:
            rows = rng.integers(0, len(self.documents), 6)
            keys[:6] = np.stack([self.documents[row].keys for row in rows])
        positions = [self._position(rng) for _ in range(12)]
        blank = [Kept(keys[0], bytes(WIDTH), "", position, 0, 0, 0, b"") for position in positions]
        return columns_of(blank, keys, ())

    def _position(self, rng: np.random.Generator) -> Position:
        """Return a kept, a judged or a new position, or one of a new source."""
        if self.documents and rng.random() < 0.5:
            return self.documents[rng.integers(len(self.documents))].position
        topic, partition = [*SOURCES, ("new", 7)][rng.integers(4)]
        return Position(topic, partition, int(rng.integers(1000)))

    def compare(self, asked: DocumentColumns, found: Candidates, oldest: int) -> None:
        """Compare the candidates with the lists.

        Args:
            asked: what :meth:`query` returned.
            found: what the index found.
            oldest: the oldest number that the index holds.
        """
        seen: dict[tuple[int, int], list[int]] = defaultdict(list)
        hits = zip(found.hit_rows, found.hit_columns, found.hit_numbers, strict=True)
        for row, column, number in hits:
            seen[int(row), int(column)].append(int(number))
        keys = asked.sketches.band_keys
        held = np.stack([each.keys for each in self.documents]) if self.documents else keys[:0]
        for row in range(len(keys)):
            same = held >> _STORED == keys[row] >> _STORED
            # Only the first document with a key has hits.
            leaders = (keys >> _STORED == keys[row] >> _STORED).argmax(axis=0).tolist()
            for column, leader in enumerate(leaders):
                bucket = (self.first + np.flatnonzero(same[:, column])).tolist()
                self._compare_bucket(bucket, seen[leader, column], oldest)
                assert row == leader or (row, column) not in seen
        assert found.erased == self.erased.intersection(found.hit_numbers.tolist())
        assert {*found.numbers.tolist()} == {*found.hit_numbers.tolist()} - found.erased
        self._compare_documents(found)
        self._compare_replays(asked.positions, found, oldest)

    def _compare_bucket(self, bucket: list[int], seen: list[int], oldest: int) -> None:
        """Compare the hits of a key with all documents of its bucket."""
        size, smallest = self.bucket_sizes[-1], min(self.bucket_sizes)
        least = [number for number in bucket[-smallest:] if number >= oldest]
        # If the bucket size was smaller once, a segment has dropped documents that would now count,
        # and older documents of another segment count in their stead.
        most = bucket if smallest < size else bucket[-size:]
        assert set(least) <= set(seen) <= set(most)
        assert seen == sorted(seen)
        assert len(seen) <= size

    def _compare_documents(self, found: Candidates) -> None:
        wanted = [self.documents[number - self.first] for number in found.numbers.tolist()]
        documents = found.documents
        assert documents.ids == [each.id for each in wanted]
        assert documents.positions == [each.position for each in wanted]
        assert documents.event_times_ms.tolist() == [each.event_ms for each in wanted]
        assert found.effective_times_ms.tolist() == [each.effective_ms for each in wanted]
        assert documents.namespaces.tolist() == [each.namespace for each in wanted]
        signatures = documents.sketches.signatures
        assert [bytes(row) for row in signatures] == [each.signature for each in wanted]
        if self._texts:
            assert list(documents.texts) == [each.text for each in wanted]

    def _compare_replays(
        self, positions: Sequence[Position], found: Candidates, oldest: int
    ) -> None:
        judged = [
            position.offset < self.next_offsets.get(position[:2], 0) for position in positions
        ]
        assert found.already_judged.tolist() == judged
        assert found.already_kept == {
            row
            for row, position in enumerate(positions)
            if self._kept_positions.get(position, -1) >= oldest
        }

    def visible(self, numbers: list[int], oldest: int) -> list[int]:
        """Return the numbers that were neither erased nor have left the index."""
        return [number for number in numbers if number >= oldest and number not in self.erased]

    def oldest_that_may_match(self) -> int:
        """Return the oldest number that a future document could be a copy of."""
        settings = self._settings.index
        oldest = max(self.first, self.next_number - settings.window_documents)
        for number in range(oldest, self.next_number):
            effective_ms = self.documents[number - self.first].effective_ms
            reach = settings.reach()
            if reach is None or self.clock.now_ms == NO_TIMESTAMP:
                return number
            if effective_ms + milliseconds(reach) > self.clock.now_ms:
                return number
        return self.next_number


def columns_of(kept: list[Kept], keys: U64, texts: Sequence[bytes]) -> DocumentColumns:
    """Return documents as columns."""
    signatures: Any = np.frombuffer(b"".join(each.signature for each in kept), dtype=np.uint8)
    return DocumentColumns(
        ids=Strings.of([each.id for each in kept]),
        positions=Positions.of([each.position for each in kept]),
        event_times_ms=np.array([each.event_ms for each in kept], dtype=np.int64),
        namespaces=np.array([each.namespace for each in kept], dtype=np.uint64),
        sketches=Sketches(signatures.reshape(len(kept), WIDTH), keys),
        texts=Blobs.of(texts),
    )
