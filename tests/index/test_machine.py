"""The index as a state machine, against lists: any operations, in any order."""

from __future__ import annotations

import datetime as dt
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from streamdedup.index import upkeep
from streamdedup.index.check import check
from streamdedup.index.manifest import Manifest
from streamdedup.index.store import LOCAL_LOG, Index
from tests.index.late import finish_jobs_late
from tests.index.reference import Reference
from tests.support.builders import examples, open_index, small_settings

SEEDS = st.integers(0, 2**32 - 1)
VARIETIES = st.sampled_from([2, 12, 1000])
BUCKET_SIZES = st.sampled_from([2, 5, 64])
SHARDS = st.sampled_from([1, 2, 9, 64])


class Machine(RuleBasedStateMachine):
    """An index, and a reference that was given the same updates."""

    reference: Reference

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        self.directory = Path(self.folder.name) / "index"
        self.index: Index | None = None

    @initialize(
        local=st.booleans(),
        texts=st.booleans(),
        first=st.sampled_from([0, 2**31 - 50, 2**32 - 50]),
        late_outcomes=st.booleans(),
        window_documents=st.sampled_from([20, 100, 1000]),
        window_hours=st.sampled_from([None, 1, 6]),
        most_in_part=st.sampled_from([40, upkeep.MOST_IN_PART]),
        bucket_size=BUCKET_SIZES,
        shards=SHARDS,
    )
    def begin(  # noqa: PLR0913 - one argument for each choice
        self,
        *,
        local: bool,
        texts: bool,
        first: int,
        late_outcomes: bool,
        window_documents: int,
        window_hours: int | None,
        most_in_part: int,
        bucket_size: int,
        shards: int,
    ) -> None:
        """Open a new index, whose changelog may have lost its beginning."""
        self.patch.setattr(upkeep, "MOST_IN_PART", most_in_part)
        self.log = LOCAL_LOG if local else "changelog"
        self.late_outcomes = late_outcomes
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
        settings = small_settings(self.directory, **self.options)
        self.reference = Reference(settings, 0 if local else first, texts=texts)
        self.open()

    @property
    def opened(self) -> Index:
        """The index."""
        assert self.index is not None
        return self.index

    def open(self) -> None:
        """Open the index, and apply again what it may have lost."""
        self.index = open_index(small_settings(self.directory, **self.options), self.log)
        if self.late_outcomes:
            finish_jobs_late(self.index)
        if self.log == LOCAL_LOG:
            assert self.index.applied == self.reference.applied, "an applied update is lost"
        known = self.index.applied
        for update, applied, notes in self.reference.updates:
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
        """Keep some documents, and erase some that came shortly before."""
        self.opened.apply(*self.reference.update(count, seed, variety, hours, erase))

    @rule(seed=SEEDS, variety=VARIETIES)
    def probe(self, seed: int, variety: int) -> None:
        """Ask for documents that may be there, from positions that may be judged already."""
        asked = self.reference.query(seed, variety)
        found = self.opened.probe(asked)
        # The index may hold older documents than those that may still match.
        oldest = self.oldest_held
        assert oldest <= self.reference.oldest_that_may_match()
        self.reference.compare(asked, found, oldest)

    @property
    def oldest_held(self) -> int:
        """The oldest number that the index holds."""
        return self.reference.next_number - self.opened.stats().documents

    @precondition(lambda self: self.reference.documents)
    @rule(row=st.integers(0, 2**16))
    def look_for_id(self, row: int) -> None:
        """Find all documents with an id, apart from erased ones."""
        documents = self.reference.documents
        id_ = documents[row % len(documents)].id
        wanted = [
            number for number, each in enumerate(documents, self.reference.first) if each.id == id_
        ]
        assert self.opened.numbers_of(id_) == self.reference.visible(wanted, self.oldest_held)

    @rule()
    def flush(self) -> None:
        """Write everything to disk."""
        self.opened.flush()
        assert self.opened.stats().durable == self.opened.applied

    @rule()
    def settle(self) -> None:
        """Wait until the background has nothing left to do."""
        self.opened.settle()

    @rule(shards=SHARDS, bucket_size=BUCKET_SIZES)
    def reopen(self, shards: int, bucket_size: int) -> None:
        """Close the index, and open it with other settings."""
        self.opened.close()
        self.check()
        self.options |= {"shards": shards, "bucket_size": bucket_size}
        self.reference.bucket_sizes.append(bucket_size)
        self.open()

    @rule()
    def crash(self) -> None:
        """Stop between two jobs without writing anything, and start again."""
        self.opened._release()  # noqa: SLF001 - what a kill would leave
        self.check()
        self.open()

    def check(self) -> None:
        """Let the checker find no problem."""
        report = check(self.directory, bucket_size=max(self.reference.bucket_sizes))
        assert report.problems == []

    @invariant()
    def counters_are_right(self) -> None:
        """What the index says about itself follows from the updates."""
        if self.index is None:
            return
        index, reference = self.index, self.reference
        assert index.applied == reference.applied
        assert index.is_new == (not reference.updates)
        assert index.next_number == reference.next_number
        assert index.clock.state() == reference.clock.state()
        for (topic, partition), offset in reference.next_offsets.items():
            assert index.sources.next_offset(topic, partition) == offset
        assert all(index.note(key) == value for key, value in reference.notes.items())

    def teardown(self) -> None:
        """Settle, close and check: no problem, nothing left over, all erased bytes overwritten."""
        try:
            if self.index is not None:
                self.probe(1, 2)
                self.index.flush()
                self.index.settle()
                self.probe(2, 12)
                self.index.close()
                self.check_closed()
        finally:
            if self.index is not None:
                self.index._release()  # noqa: SLF001 - also after a failure
            self.folder.cleanup()
            self.patch.undo()

    def check_closed(self) -> None:
        """Check the directory of a settled index."""
        self.check()
        report = check(self.directory)
        assert report.left_over == []
        with closing(Manifest(self.directory, None, readonly=True)) as manifest:
            erased = manifest.erased()
        oldest = self.reference.next_number - report.documents
        assert set(erased) == {number for number in self.reference.erased if number >= oldest}
        assert not any(erased.values())


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(examples(40), stateful_step_count=30)
