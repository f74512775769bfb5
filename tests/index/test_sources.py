"""Sources of an index without a changelog: known until they are forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamdedup.batches import IndexUpdate
from streamdedup.columns import Positions
from streamdedup.index.check import check
from streamdedup.index.state import FREE, SourcePartitions
from streamdedup.index.store import Index
from streamdedup.index.view import View
from streamdedup.model import Position, SourceRange
from tests.index.updates import WIDTH, key
from tests.support.builders import columns, open_index, small_settings, update_of


def fill(index: Index, topic: str, count: int) -> None:
    """Keep documents of a source, each with its number as key."""
    first = index.next_number
    documents = columns([[key(first + row)] * WIDTH for row in range(count)], topic=topic)
    index.apply(update_of(documents, first), index.applied + 1, {f"note of {topic}": b"1"})


def forget(index: Index, topic: str) -> None:
    """Forget a source and its note."""
    update = IndexUpdate.empty(index.next_number)
    index.apply(update, index.applied + 1, {f"note of {topic}": b""}, [(topic, 0)])


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "crashed"])
def test_a_forgotten_source_leaves_its_number_to_a_new_one(tmp_path: Path, crash: bool) -> None:
    """It is unknown after the documents have left, also after a crash, and may come again."""
    settings = small_settings(tmp_path, window_documents=20, delta_documents=16)
    with open_index(settings) as index:
        fill(index, "old", 20)
        fill(index, "newer", 60)
        index.flush()
        index.settle()
        index.flush()
        assert index.oldest_number >= 20
        forget(index, "old")
        fill(index, "newest", 2)
        fill(index, "old", 1)
        fill(index, "other", 1)
        if crash:
            index._release()  # noqa: SLF001 - nothing is flushed, as in a crash
    assert check(tmp_path).problems == []
    with View(tmp_path) as view:
        _, newest = view.documents(np.arange(80, 84))
        assert [each.topic for each in newest.positions] == ["newest", "newest", "old", "other"]
    with open_index(settings) as index:
        asked = columns([[key(80)] * WIDTH, [key(82)] * WIDTH, [key(83)] * WIDTH], 10**6)
        found = index.probe(asked).documents.positions
        assert found == [Position("newest", 0, 0), Position("old", 0, 0), Position("other", 0, 0)]
        topics = ("old", "newer", "newest", "other")
        ends = [index.sources.next_offset(topic, 0) for topic in topics]
        assert ends == [1, 60, 2, 1]
        keys = ["note of newer", "note of newest", "note of old", "note of other"]
        assert index.note_keys() == keys
    assert check(tmp_path).problems == []
    with View(tmp_path) as view:
        assert len(view.state.sources.entries()) == 4


def test_oldest_number(tmp_path: Path) -> None:
    """The oldest document may be in a segment or in memory; without one it is the next."""
    with open_index(small_settings(tmp_path)) as index:
        assert index.oldest_number == 0
        fill(index, "topic", 3)
        assert index.oldest_number == 0
        index.flush()
        assert index.oldest_number == 0


def test_numbers_of_sources() -> None:
    """Free numbers are used first, also those of stored entries."""
    sources = SourcePartitions([("a", 0, 5), (*FREE, 0), ("b", 1, 7)])
    sources.forget([("a", 0), ("unknown", 0), FREE])
    assert sources.next_offset("a", 0) == sources.next_offset(*FREE) == 0
    assert sources.entries() == [(*FREE, 0), (*FREE, 0), ("b", 1, 7)]
    positions = Positions.of([Position(topic, 0, 0) for topic in ("c", "d", "e", "c")])
    numbers, _ = sources.add(positions)
    assert sorted(numbers.tolist()[:3]) == [0, 1, 3]
    assert numbers[3] == numbers[0]
    sources.judge([SourceRange("e", 0, 0, 9)])
    assert sources.next_offset("e", 0) == 9
    assert SourcePartitions(sources.entries()).entries() == sources.entries()


def test_written_offsets() -> None:
    """They follow what a worker writes, also again, and stay behind what a judge judges."""
    sources = SourcePartitions()
    assert sources.written_offset("a", 0) == 0
    sources.judge([SourceRange("a", 0, 0, 9), SourceRange("b", 0, 0, 3)])
    assert (sources.written_offset("a", 0), sources.written()) == (9, [])
    sources.judge([SourceRange("a", 0, 9, 20)], is_ahead=True)
    assert (sources.next_offset("a", 0), sources.written_offset("a", 0)) == (20, 9)
    sources.judge([SourceRange("a", 0, 5, 7)])
    assert (sources.next_offset("a", 0), sources.written()) == (20, [7, 3])
    stored = SourcePartitions(sources.entries(), sources.written())
    assert [stored.written_offset(*each) for each in stored.names] == [7, 3]
    stored.forget([("a", 0)])
    stored.judge([SourceRange("c", 0, 0, 4)], is_ahead=True)
    assert [stored.written_offset(*each) for each in stored.names] == [0, 3]


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "crashed"])
def test_written_offsets_are_stored(tmp_path: Path, crash: bool) -> None:
    """A new process knows them; after a crash it reads them from the log again."""
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        fill(index, "topic", 3)
        ahead = replace(
            IndexUpdate.empty(index.next_number),
            ranges=(SourceRange("topic", 0, 3, 8),),
            is_ahead=True,
        )
        index.apply(ahead, index.applied + 1, {})
        if crash:
            index._release()  # noqa: SLF001 - nothing is flushed, as in a crash
    assert check(tmp_path).problems == []
    with open_index(settings) as index:
        sources = index.sources
        assert (sources.next_offset("topic", 0), sources.written_offset("topic", 0)) == (8, 3)
