"""The index as a state machine, against lists: whatever is done to it, in whatever order."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from streamdedup.dedup.clock import Clock
from streamdedup.index.check import check
from streamdedup.index.manifest import Manifest
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.model import (
    NO_TIMESTAMP,
    U64,
    DocumentColumns,
    IndexUpdate,
    Position,
    Sketches,
    SourceRange,
)
from streamdedup.settings.units import milliseconds
from tests.support.builders import COLUMNS, examples, open_index, small_settings

WIDTH = 16
SOURCES = [("topic", 0), ("topic", 1), ("other", 0)]
HOUR_MS = 3_600_000
_STORED = np.uint64(24)
"""The index stores the bits of a key above these."""
SEEDS = st.integers(0, 2**32 - 1)
VARIETIES = st.sampled_from([2, 12, 1000])
BUCKET_SIZES = st.sampled_from([2, 5, 64])
SHARDS = st.sampled_from([1, 2, 9, 64])


@dataclass(frozen=True)
class Kept:
    """A document that was kept, as the index must give it back."""

    keys: U64
    signature: bytes
    id: str
    position: Position
    event_ms: int
    effective_ms: int
    namespace: int
    text: bytes


def band_keys(rng: np.random.Generator, count: int, variety: int) -> U64:
    """Return keys that often meet; some are alike in all the bits that are stored."""
    upper = rng.integers(0, variety, (count, COLUMNS), dtype=np.uint64)
    spread = upper * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(24) << np.uint64(24)
    return spread | rng.integers(0, 2**24, (count, COLUMNS), dtype=np.uint64)


class Machine(RuleBasedStateMachine):
    """An index, and lists of all that it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.directory = Path(self.folder.name) / "index"
        self.index: Index | None = None
        self.updates: list[tuple[IndexUpdate, int, dict[str, bytes]]] = []
        self.documents: list[Kept] = []
        self.erased: set[int] = set()
        self.next_offsets: dict[tuple[str, int], int] = defaultdict(int)
        self.kept_positions: dict[Position, int] = {}
        self.now_ms = 1_700_000_000_000

    @initialize(
        local=st.booleans(),
        texts=st.booleans(),
        late=st.booleans(),
        window_documents=st.sampled_from([20, 100, 1000]),
        window_hours=st.sampled_from([None, 1, 6]),
        bucket_size=BUCKET_SIZES,
        shards=SHARDS,
    )
    def begin(
        self,
        *,
        local: bool,
        texts: bool,
        late: bool,
        window_documents: int,
        window_hours: int | None,
        bucket_size: int,
        shards: int,
    ) -> None:
        """Open a new index; its changelog may have lost its beginning."""
        self.log = LOCAL_LOG if local else "changelog"
        self.first = 1_000_000 if late and not local else 0
        self.bucket_sizes = [bucket_size]
        self.options: dict[str, Any] = {
            "window_documents": window_documents,
            "window": None if window_hours is None else dt.timedelta(hours=window_hours),
            "allowed_lateness": dt.timedelta(hours=2),
            "allowed_ahead": dt.timedelta(hours=1),
            "delta_documents": 16,
            "bucket_size": bucket_size,
            "shards": shards,
            "verify": "exact" if texts else "estimate",
        }
        self.clock = Clock.from_settings(self.settings.index)
        self.open()

    @property
    def settings(self) -> Any:
        """The settings as they are now."""
        return small_settings(self.directory, **self.options)

    @property
    def opened(self) -> Index:
        """The index."""
        assert self.index is not None
        return self.index

    @property
    def next_number(self) -> int:
        """The number of the next document."""
        return self.first + len(self.documents) if self.updates else 0

    def open(self) -> None:
        """Open the index, and tell it again what it may have lost."""
        self.index = open_index(self.settings, self.log)
        if self.log == LOCAL_LOG and self.updates:
            assert self.index.applied == self.updates[-1][1], "what was taken in is lost"
        known = self.index.applied
        for update, applied, notes in self.updates:
            if applied > known:
                self.index.apply(update, applied, notes)

    @rule(
        count=st.sampled_from([0, 1, 3, 10, 17, 40]),
        seed=SEEDS,
        variety=VARIETIES,
        hours=st.sampled_from([0, 0, 0.1, 1, 5]),
        erase=st.lists(st.integers(1, 60), max_size=2),
    )
    def update(self, count: int, seed: int, variety: int, hours: float, erase: list[int]) -> None:
        """Keep some documents; erase some that came shortly before."""
        rng = np.random.default_rng(seed)
        self.now_ms += int(hours * HOUR_MS)
        number = self.first + len(self.documents)
        clock_ms = self.clock.now_ms if self.updates and hours == 0 else self.now_ms
        self.clock.advance_to(clock_ms)
        keys = band_keys(rng, count, variety)
        new = [self.document(rng, number + row, keys[row]) for row in range(count)]
        self.documents += new
        held = range(self.first, self.first + len(self.documents))
        gone = {held[-back] for back in erase if back <= len(held)}
        self.erased |= gone
        ranges = tuple(
            SourceRange(topic, partition, 0, offset)
            for (topic, partition), offset in self.next_offsets.items()
        )
        texts = [each.text for each in new] if self.options["verify"] == "exact" else ()
        update = IndexUpdate(
            number,
            columns_of(new, keys, texts),
            ranges,
            np.array([each.effective_ms for each in new], dtype=np.int64),
            clock_ms,
            tuple(sorted(gone)),
        )
        # Offsets of a changelog have gaps: the markers of its transactions.
        applied = (self.updates[-1][1] if self.updates else 0) + 1 + seed % 3
        notes = {f"note-{seed % 3}": seed.to_bytes(4, "big")}
        self.opened.apply(update, applied, notes)
        self.updates.append((update, applied, notes))

    def document(self, rng: np.random.Generator, number: int, keys: U64) -> Kept:
        """Make a document, at the next offset or further on, and let the clock go on."""
        source = SOURCES[rng.integers(len(SOURCES))]
        offset = self.next_offsets[source] + int(rng.choice([0, 0, 1, 300, 70_000]))
        self.next_offsets[source] = offset + 1
        position = Position(*source, offset)
        self.kept_positions[position] = number
        hours = rng.choice([0, 0, -0.5, 0.5, -30, 10_000])
        event_ms = NO_TIMESTAMP if rng.random() < 0.2 else self.now_ms + int(hours * HOUR_MS)
        effective_ms = self.clock.effective_ms(event_ms)
        self.clock.keep(number, event_ms)
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

    @rule(seed=SEEDS, variety=VARIETIES)
    def probe(self, seed: int, variety: int) -> None:
        """Ask for documents that may be there, from positions that may be judged already."""
        rng = np.random.default_rng(seed)
        keys = band_keys(rng, 12, variety)
        if self.documents:
            places = rng.integers(0, len(self.documents), 6)
            keys[:6] = np.stack([self.documents[place].keys for place in places])
        positions = [self.some_position(rng) for _ in range(12)]
        asked = columns_of([], keys, (), positions)
        found = self.opened.probe(asked)
        # How far back the index reaches is its own affair, within what may still match.
        oldest = self.next_number - self.opened.stats().documents
        assert oldest <= self.oldest_that_may_match()
        seen: dict[tuple[int, int], list[int]] = defaultdict(list)
        hits = zip(found.hit_rows, found.hit_columns, found.hit_numbers, strict=True)
        for row, column, number in hits:
            seen[int(row), int(column)].append(int(number))
        held = np.stack([each.keys for each in self.documents]) if self.documents else keys[:0]
        for row in range(12):
            same = held >> _STORED == keys[row] >> _STORED
            for column in range(COLUMNS):
                bucket = (self.first + np.flatnonzero(same[:, column])).tolist()
                self.compare_bucket(bucket, seen[row, column], oldest)
        self.compare_documents(found.numbers.tolist(), found.effective_times_ms, found.documents)
        judged = [at.offset < self.next_offsets.get(at[:2], 0) for at in positions]
        assert found.already_judged.tolist() == judged
        kept = {
            row for row, at in enumerate(positions) if self.kept_positions.get(at, -1) >= oldest
        }
        assert found.already_kept == kept

    def some_position(self, rng: np.random.Generator) -> Position:
        """Return a position that was kept, judged, or is new, or of a source that is."""
        if self.documents and rng.random() < 0.5:
            return self.documents[rng.integers(len(self.documents))].position
        topic, partition = [*SOURCES, ("new", 7)][rng.integers(4)]
        return Position(topic, partition, int(rng.integers(1000)))

    def oldest_that_may_match(self) -> int:
        """Return the first number that a document that is still to come could be a copy of."""
        oldest = max(self.first, self.next_number - self.options["window_documents"])
        window, oldest_ms = self.options["window"], self.clock.oldest_ms
        for number in range(oldest, self.next_number):
            effective_ms = self.documents[number - self.first].effective_ms
            if window is None or effective_ms + milliseconds(window) > (oldest_ms or 0):
                return number
        return self.next_number

    def compare_bucket(self, bucket: list[int], seen: list[int], oldest: int) -> None:
        """Compare what was found in a bucket with all documents that were filed in it."""
        # Where a bucket was smaller once, its older documents may be gone or not.
        most = self.shown(bucket[-self.bucket_sizes[-1] :], oldest)
        least = self.shown(bucket[-min(self.bucket_sizes) :], oldest)
        assert set(least) <= set(seen) <= set(most)
        assert seen == sorted(seen)

    def shown(self, bucket: list[int], oldest: int) -> list[int]:
        """Leave out the documents that were erased or have left."""
        return [number for number in bucket if number >= oldest and number not in self.erased]

    def compare_documents(
        self, numbers: list[int], effective_times_ms: Any, found: DocumentColumns
    ) -> None:
        """Compare what was found with what was kept."""
        wanted = [self.documents[number - self.first] for number in numbers]
        assert found.ids == [each.id for each in wanted]
        assert found.positions == [each.position for each in wanted]
        assert found.event_times_ms.tolist() == [each.event_ms for each in wanted]
        assert effective_times_ms.tolist() == [each.effective_ms for each in wanted]
        assert found.namespaces.tolist() == [each.namespace for each in wanted]
        signatures = found.sketches.signatures
        assert [bytes(each) for each in signatures] == [each.signature for each in wanted]
        if self.options["verify"] == "exact":
            assert list(found.texts) == [each.text for each in wanted]

    @precondition(lambda self: self.documents)
    @rule(place=st.integers(0, 2**16))
    def look_for_id(self, place: int) -> None:
        """Find all documents with an id, the erased ones left out."""
        id_ = self.documents[place % len(self.documents)].id
        oldest = self.next_number - self.opened.stats().documents
        wanted = [self.first + at for at, each in enumerate(self.documents) if each.id == id_]
        assert self.opened.numbers_of(id_) == self.shown(wanted, oldest)

    @rule()
    def flush(self) -> None:
        """Write everything to the disk."""
        self.opened.flush()
        assert self.opened.stats().durable == self.opened.applied

    @rule()
    def settle(self) -> None:
        """Let the background come to its end."""
        self.opened.settle()

    @rule(shards=SHARDS, bucket_size=BUCKET_SIZES)
    def reopen(self, shards: int, bucket_size: int) -> None:
        """Close the index, and open it with other settings."""
        self.opened.close()
        self.look()
        self.options |= {"shards": shards, "bucket_size": bucket_size}
        self.bucket_sizes.append(bucket_size)
        self.open()

    @rule()
    def crash(self) -> None:
        """End without another word between two jobs, and begin again."""
        self.opened._release()  # noqa: SLF001 - what a kill would leave
        self.look()
        self.open()

    def look(self) -> None:
        """Let the checker find nothing."""
        report = check(self.directory, bucket_size=max(self.bucket_sizes))
        assert report.problems == []

    @invariant()
    def counters_are_right(self) -> None:
        """What the index says of itself is what it was told."""
        if self.index is None:
            return
        assert self.index.applied == (self.updates[-1][1] if self.updates else 0)
        assert self.index.is_new == (not self.updates)
        assert self.index.next_number == self.next_number
        assert self.index.clock.state() == self.clock.state()
        for (topic, partition), offset in self.next_offsets.items():
            assert self.index.next_offset(topic, partition) == offset
        noted = {key: value for _, _, notes in self.updates for key, value in notes.items()}
        assert all(self.index.note(key) == value for key, value in noted.items())

    def teardown(self) -> None:
        """Settle, close, and look: nothing is wrong, and nothing too much."""
        try:
            if self.index is not None:
                self.probe(1, 2)
                self.index.flush()
                self.index.settle()
                self.probe(2, 12)
                self.index.close()
                self.look_closely()
        finally:
            if self.index is not None:
                self.index._release()  # noqa: SLF001 - whatever has happened
            self.folder.cleanup()

    def look_closely(self) -> None:
        """Let the checker find nothing at all; what was erased is overwritten."""
        self.look()
        report = check(self.directory)
        assert report.left_over == []
        with closing(Manifest(self.directory, None, readonly=True)) as manifest:
            erased = manifest.erased()
        oldest = self.next_number - report.documents
        assert {number for number in erased if number >= oldest} == {
            number for number in self.erased if number >= oldest
        }
        assert not any(waiting for number, waiting in erased.items() if number >= oldest)


def columns_of(
    kept: list[Kept], keys: U64, texts: Any, positions: list[Position] | None = None
) -> DocumentColumns:
    """Return documents as columns; those that only ask have positions and keys alone."""
    if positions is not None:
        blank = [Kept(keys[0], bytes(WIDTH), "", at, 0, 0, 0, b"") for at in positions]
        return columns_of(blank, keys, texts)
    signatures = np.frombuffer(b"".join(each.signature for each in kept), dtype=np.uint8)
    return DocumentColumns(
        ids=[each.id for each in kept],
        positions=[each.position for each in kept],
        event_times_ms=np.array([each.event_ms for each in kept], dtype=np.int64),
        namespaces=np.array([each.namespace for each in kept], dtype=np.uint64),
        sketches=Sketches(signatures.reshape(len(kept), WIDTH), keys),
        texts=texts,
    )


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(examples(40), stateful_step_count=30)
