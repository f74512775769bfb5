"""The index as its callers see it: what is stored comes back, whatever is flushed."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.batches import Candidates, DocumentColumns
from streamdedup.errors import (
    IndexDamaged,
)
from streamdedup.index.store import LOCAL_LOG
from streamdedup.model import Position, SourceRange
from tests.index.updates import WIDTH, fill, hits, key
from tests.support.builders import (
    TOPIC,
    columns,
    examples,
    open_index,
    small_settings,
    update_of,
)


def test_everything_comes_back(tmp_path: Path) -> None:
    """Ids, positions, times, namespaces and signatures are read back as they were written."""
    documents = columns(
        [[key(1)] * WIDTH, [key(2)] * WIDTH], ids=["x" * 5000, "\x00é\U0001f600"], topic="t" * 400
    )
    documents.namespaces[:] = [2**64 - 1, 7]
    documents = replace(documents, event_times_ms=np.array([-(2**62), 2**62], dtype=np.int64))
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        index.apply(update_of(documents, 0), 1)
        in_memory = index.probe(documents)
    with open_index(settings) as index:
        on_disk = index.probe(documents)
    for candidates in (in_memory, on_disk):
        compare(candidates, documents)


def compare(candidates: Candidates, documents: DocumentColumns) -> None:
    """Compare the candidates with the stored documents."""
    found = candidates.documents
    np.testing.assert_array_equal(candidates.effective_times_ms, documents.event_times_ms)
    assert found.ids == documents.ids
    assert found.positions == documents.positions
    np.testing.assert_array_equal(found.event_times_ms, documents.event_times_ms)
    np.testing.assert_array_equal(found.namespaces, documents.namespaces)
    np.testing.assert_array_equal(found.sketches.signatures, documents.sketches.signatures)


def test_replays_are_marked(tmp_path: Path) -> None:
    """A probe says which positions were judged, and which of those were kept."""
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        update = update_of(columns([[key(1)] * WIDTH], 5), 0)
        ranges = (SourceRange(TOPIC, 0, 3, 8),)
        index.apply(replace(update, ranges=ranges), 1)
        before = index.probe(columns([[key(9)] * WIDTH] * 4, 4))
    with open_index(settings) as index:
        for found in (before, index.probe(columns([[key(9)] * WIDTH] * 4, 4))):
            assert found.already_judged.tolist() == [True, True, True, True]
            assert found.already_kept == {1}
        assert index.sources.next_offset(TOPIC, 0) == 8
        assert index.sources.next_offset(TOPIC, 1) == index.sources.next_offset("another", 0) == 0
        assert not index.probe(columns([[key(1)] * WIDTH], 8)).already_judged.any()


def test_apply_twice(tmp_path: Path) -> None:
    """Applying an update again, at the same or an earlier offset, changes nothing."""
    with open_index(small_settings(tmp_path)) as index:
        update = update_of(columns([[key(1)] * WIDTH]), 0)
        index.apply(update, 7)
        before = index.stats()
        index.apply(update, 7)
        index.apply(update, 3)
        assert index.stats() == before


def test_gap(tmp_path: Path) -> None:
    """An update that does not continue the index is refused."""
    with open_index(small_settings(tmp_path)) as index:
        index.apply(update_of(columns([[key(1)] * WIDTH]), 0), 1)
        with pytest.raises(IndexDamaged, match=r"next document has number 1"):
            index.apply(update_of(columns([[key(2)] * WIDTH], 5), 5), 2)


def test_changelog_that_begins_late(tmp_path: Path) -> None:
    """A new index begins with the first document of the changelog, also after a restart."""
    settings = small_settings(tmp_path, delta_documents=16)
    with open_index(settings, "changelog") as index:
        for step in range(40):
            number = 1_000_000 + step
            index.apply(update_of(columns([[key(step)] * WIDTH], number), number), step + 1)
        index.settle()
    with open_index(settings, "changelog") as index:
        found = index.probe(columns([[key(0)] * WIDTH, [key(39)] * WIDTH], 9))
        assert found.numbers.tolist() == [1_000_000, 1_000_039]
        assert (index.next_number, index.stats().documents) == (1_000_040, 40)


@pytest.mark.parametrize(("signature", "width"), [(16, 8), (15, 9)], ids=["keys", "signature"])
def test_other_widths(signature: int, width: int, tmp_path: Path) -> None:
    """An update whose sketches have another width is refused as a whole."""
    with open_index(small_settings(tmp_path)) as index:
        update = update_of(columns([[key(1)] * width], num_bytes=signature), 0)
        with pytest.raises(IndexDamaged, match="width"):
            index.apply(update, 1)
        assert index.is_new


def test_notes(tmp_path: Path) -> None:
    """A note of the transport is stored with its update, until another note replaces it."""
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        assert index.note("file") is None
        index.apply(
            update_of(columns([[key(1)] * WIDTH]), 0), 1, {"file": b"1", "x" * 3000: b"long"}
        )
        index.apply(update_of(columns([[key(2)] * WIDTH], 1), 1), 2, {"file": b"2"})
    with open_index(settings) as index:
        assert (index.note("file"), index.note("x" * 3000)) == (b"2", b"long")


@pytest.mark.parametrize("log", [LOCAL_LOG, "changelog"], ids=["tail", "changelog"])
def test_crash(log: str, tmp_path: Path) -> None:
    """A crash loses nothing without a changelog; with one, ``applied`` says what to replay."""
    settings = small_settings(tmp_path, delta_documents=16)
    index = open_index(settings, log)
    fill(index, [[number] * 3 for number in range(15)])
    index.settle()
    durable = index.stats().durable
    assert 0 < durable < 15
    index._release()  # noqa: SLF001 - a crash: nothing more is written
    with open_index(settings, log) as index:
        assert index.applied == (15 if log == LOCAL_LOG else durable)
        assert index.next_number == 3 * index.applied
        fill(index, [[number] * 3 for number in range(index.applied, 15)])
        found = hits(index.probe(columns([[key(each)] * WIDTH for each in range(15)], 500)))
    assert found == {
        (row, column): [3 * row, 3 * row + 1, 3 * row + 2]
        for row in range(15)
        for column in range(WIDTH)
    }


@given(
    batches=st.lists(st.lists(st.integers(0, 5), max_size=9), max_size=20),
    bucket_size=st.sampled_from([1, 3, 64]),
    probes=st.lists(st.integers(0, 6), max_size=3),
)
@examples(30)
def test_flushes_change_nothing(
    batches: list[list[int]], bucket_size: int, probes: list[int]
) -> None:
    """A stream has the same candidates, whatever is in memory, in runs, or merged."""
    seen = []
    for delta_documents, shards in ((16, 1), (32, 9), (65_536, 2)):
        with tempfile.TemporaryDirectory() as folder:
            settings = small_settings(
                Path(folder),
                shards=shards,
                bucket_size=bucket_size,
                delta_documents=delta_documents,
                window_documents=50,
            )
            with open_index(settings) as index:
                fill(index, batches)
                index.settle()
                oldest = index.next_number - 50
                found = hits(index.probe(columns([[key(each)] * WIDTH for each in probes], 10**6)))
                held = {cell: [n for n in found[cell] if n >= oldest] for cell in found}
                seen.append({cell: numbers for cell, numbers in held.items() if numbers})
    assert seen[0] == seen[1] == seen[2]


def test_long_names(tmp_path: Path) -> None:
    """Topics and paths may be longer than a key of LMDB."""
    topics = ["/" + "directory/" * 300 + end for end in ("a", "b")]
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        for number, topic in enumerate(topics):
            documents = columns([[key(number)] * WIDTH], number, topic=topic)
            index.apply(update_of(documents, number), number + 1)
    with open_index(settings) as index:
        assert [index.sources.next_offset(topic, 0) for topic in topics] == [1, 2]
        found = index.probe(columns([[key(0)] * WIDTH], 0, topic=topics[1]))
        assert found.already_judged.tolist() == [True]
        assert found.already_kept == frozenset()
        assert found.documents.positions == [Position(topics[0], 0, 0)]
