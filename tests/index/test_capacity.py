"""What limits the number of documents: numbers, segments, filters, each at its edge."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from streamdedup.columns import U64
from streamdedup.errors import IndexUnusable
from streamdedup.index import store, upkeep
from streamdedup.index.check import check
from streamdedup.index.check_values import check_plane
from streamdedup.index.filter import _line_of
from streamdedup.index.layers import SLICE_CELLS
from streamdedup.index.layout import MOST_DOCUMENTS, Geometry, SegmentEntry
from streamdedup.index.manifest import Manifest
from streamdedup.index.memory import LINE, address
from streamdedup.index.postings import NUMBER_MASK, SUBS, merge_column, pack
from streamdedup.index.store import Index
from streamdedup.index.view import View
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import IndexSettings
from tests.index.updates import fill
from tests.support.builders import COLUMNS, TOPIC, columns, open_index, small_settings, update_of

WINDOW, DELTA = 1000, 16
STEP = 10


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slice of 152 documents, a seventh of the window, consist of four parts."""
    monkeypatch.setattr(upkeep, "MOST_IN_PART", 40)


def open_small(directory: Path, window_documents: int = WINDOW) -> Index:
    """Open an index with a changelog, so that its numbers can begin anywhere."""
    settings = small_settings(directory, delta_documents=DELTA, window_documents=window_documents)
    return open_index(settings, "changelog")


def key_of(number: int) -> int:
    """Return the band key of a document: spread over all upper bits, and never twice."""
    return (number * 0x9E3779B97F4A7C15 & (2**40 - 1)) << 24


def keep(index: Index, first: int, count: int) -> None:
    """Keep documents, some at a time, and let the background keep up."""
    for number in range(first, first + count, STEP):
        numbers = range(number, min(first + count, number + STEP))
        keys = [[key_of(each)] * COLUMNS for each in numbers]
        documents = columns(keys, index.sources.next_offset(TOPIC, 0))
        index.apply(update_of(documents, number), index.applied + 1)
        index.settle()


def found(index: Index | View, numbers: range) -> list[int]:
    """Return which documents a probe finds."""
    asked = columns([[key_of(number)] * COLUMNS for number in numbers], 10**9)
    candidates = index.probe(asked) if isinstance(index, Index) else index.probe(asked, 64)
    there: list[int] = candidates.numbers.tolist()
    return there


def entries(directory: Path) -> list[SegmentEntry]:
    """Return the segments' records in the manifest, oldest first."""
    with closing(Manifest(directory, None, readonly=True)) as manifest:
        return manifest.segments()


@pytest.mark.parametrize("edge", [2**31, 2**32, 2**53, 2**62])
def test_numbers_beyond_an_edge(edge: int, tmp_path: Path) -> None:
    """Numbers on both sides of a power of two: found, erased, merged, expired, checked."""
    first, count = edge - 600, 1200
    with open_small(tmp_path) as index:
        keep(index, first, count)
        end = first + count
        assert index.next_number == end
        held = range(index.oldest_number, end)
        assert edge - WINDOW <= held.start <= end - WINDOW
        assert index.stats().merges > 0
        assert index.stats().expired > 0
        assert found(index, held) == list(held)
    with open_small(tmp_path) as index:
        assert found(index, held) == list(held)
        times_ms, documents = index.documents(np.array([held.start, end - 1]))
        assert (len(times_ms), len(documents)) == (2, 2)
    with View(tmp_path) as view:
        assert found(view, held) == list(held)
        keys, known = view.keys_of(edge)
        assert known.all()
        assert keys.tolist() == [key_of(edge)] * COLUMNS
    assert check(tmp_path).problems == []


@pytest.mark.usefixtures("small_parts")
def test_a_slice_of_parts_stores_one_filter(tmp_path: Path) -> None:
    """The last part of a slice stores the bits of all its parts; a start finds everything."""
    with open_small(tmp_path) as index:
        keep(index, 0, 800)
        documents = range(800)
        assert found(index, documents) == list(documents)
    stored = [entry for entry in entries(tmp_path) if entry.stores_filter]
    slices = [entry.filter_documents for entry in stored]
    # The last run of a part may reach into the next part, but not further.
    assert [(each.start // 152, each.stop // 152) for each in slices] == [
        (n, n + 1) for n in range(5)
    ]
    assert all(entry.filter_first < entry.first for entry in stored)
    assert all(152 - DELTA <= len(each) <= 152 + DELTA for each in slices)
    with open_small(tmp_path) as index:
        assert found(index, documents) == list(documents)
    assert check(tmp_path).problems == []


@pytest.mark.usefixtures("small_parts")
def test_a_stored_filter_holds_the_keys_that_it_names(tmp_path: Path) -> None:
    """Each posting of the documents that a stored filter names passes it."""
    with open_small(tmp_path) as index:
        keep(index, 0, 400)
        held = index._layers._segments.held  # noqa: SLF001 - their filters and postings
        owner = next(segment for segment in held if segment.entry.stores_filter)
        named = owner.entry.filter_documents
        members = [segment for segment in held if segment.entry.first in named]
        assert len(members) > 1
        for segment in members:
            postings = np.empty(segment.entry.count, dtype=np.uint64)
            for column in range(COLUMNS):
                shard = next(each for each in owner.shards if column in each.columns)
                count = segment.column(column, postings)
                plane = shard.plane(column)
                check_plane(plane, shard.entry.plane_bytes, postings[:count])


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("window_documents", [500, 990, 1010, 5000])
def test_another_window(window_documents: int, tmp_path: Path) -> None:
    """With another window the slices begin elsewhere: nothing that is held is missed."""
    with open_small(tmp_path) as index:
        keep(index, 0, 800)
    with open_small(tmp_path, window_documents) as index:
        index.settle()
        held = range(index.oldest_number, 800)
        assert found(index, held) == list(held)
        keep(index, 800, 200)
        held = range(index.oldest_number, 1000)
        assert found(index, held) == list(held)
    assert check(tmp_path).problems == []


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("erased", [300, 450])
def test_rewritten_part(erased: int, tmp_path: Path) -> None:
    """A part that is rewritten without an erased document keeps its slice's filter complete."""
    with open_small(tmp_path) as index:
        keep(index, 0, 800)
        before = {entry.name for entry in index._layers.entries}  # noqa: SLF001
        nothing = update_of(columns([]), 800)
        object.__setattr__(nothing, "deleted", (erased,))
        index.apply(nothing, index.applied + 1)
        index.settle()
        after = {entry.name for entry in index._layers.entries}  # noqa: SLF001
        assert len(before - after) == len(after - before) == 1
    documents = [number for number in range(800) if number != erased]
    with open_small(tmp_path) as index:
        assert found(index, range(800)) == documents
    assert check(tmp_path).problems == []


def test_the_last_number_of_a_segment() -> None:
    """A merge numbers documents up to the last one that a posting has bits for."""
    keys = [
        np.arange(5, dtype=np.uint64) << np.uint64(24),
        np.arange(3, 9, dtype=np.uint64) << np.uint64(24),
    ]
    values = [packed(each | np.arange(len(each), dtype=np.uint64)) for each in keys]
    subs = np.zeros((2, SUBS, 3), dtype=np.int64)
    for entry, value, each in zip(subs[:, 0], values, keys, strict=True):
        entry[:] = address(value), address(value) + 4 * len(each), len(each)
    shifts = np.array([0, MOST_DOCUMENTS - 6])
    work, out = np.empty(11, dtype=np.uint64), np.empty(11, dtype=np.uint64)
    count = merge_column(subs, shifts, 4096, work, out, np.empty(SUBS + 1, dtype=np.int64))
    numbers = (out[:count] & NUMBER_MASK).astype(np.int64)
    assert sorted(numbers.tolist()) == [*range(5), *range(MOST_DOCUMENTS - 6, MOST_DOCUMENTS)]
    merged_keys = (out[:count] >> np.uint64(24)).tolist()
    assert merged_keys == sorted([*range(5), *range(3, 9)])
    assert numbers.max() == MOST_DOCUMENTS - 1


def packed(postings: U64) -> np.ndarray:
    """Return postings as a value."""
    value = np.zeros(7 * len(postings), dtype=np.uint8)
    pack(postings, value)
    return value


def test_an_update_larger_than_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More documents at once than a segment can number are refused, and nothing changes."""
    monkeypatch.setattr(store, "MOST_DOCUMENTS", 3)
    with open_small(tmp_path) as index:
        with pytest.raises(
            IndexUnusable, match="4 documents at once, a segment holds 3; pass fewer"
        ):
            fill(index, [[1, 2, 3, 4]])
        fill(index, [[1, 2, 3]])
        assert index.next_number == 3


@pytest.mark.parametrize(
    "lines", [1, 2**24 - 1, 2**24, 2**24 + 1, 24_560_009, 2**31, 2**32 + 1, 2**40]
)
def test_line_of_a_key(lines: int) -> None:
    """The line is exact when the product of prefix and lines has more than 64 bits."""
    for prefix in (0, 1, 2**20 - 1, 2**20, 2**39, 2**40 - 2**20 - 1, 2**40 - 1, 0xA5A5A5A5A5):
        cell, _ = _line_of(np.uint64(prefix << 24), lines)
        assert cell == prefix * lines // 2**40 * LINE


def test_memory_of_a_billion() -> None:
    """Filters take at most 40 bytes of a document of the window, whatever its size."""
    columns_ = Geometry.of(IndexSettings(), DedupSettings().sketch_parameters()).columns
    for window in (10**7, 2 * 10**7, 25 * 10**7, 10**9):
        limits = upkeep.UpkeepLimits.of(IndexSettings(window_documents=window))
        slots = columns_ * SLICE_CELLS * limits.slice_documents
        runs = columns_ * 16 * limits.delta_documents
        assert (slots + runs) / window < 40
