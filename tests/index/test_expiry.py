"""Segments leave the window and free their disk space, and no verdict depends on it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamdedup.dedup.clock import Clock
from streamdedup.index.store import Index
from tests.support.builders import COLUMNS, columns, open_index, small_settings, update_of

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000


def keep(index: Index, count: int, minute: float = 0.0) -> None:
    """Keep documents with unique keys, at a minute of the stream."""
    first = index.next_number
    documents = columns([[(first + row) << 40] * COLUMNS for row in range(count)], first)
    now_ms = START_MS + int(minute * MINUTE_MS)
    documents.event_times_ms[:] = now_ms
    update = update_of(documents, first)
    clock = Clock(now_ms).state()
    index.apply(replace(update, clock=clock), index.applied + 1)


def found(index: Index, numbers: range) -> list[int]:
    """Return which of some documents a probe still finds."""
    probe = columns([[number << 40] * COLUMNS for number in numbers], 10**9)
    there: list[int] = index.probe(probe).numbers.tolist()
    return there


@pytest.mark.parametrize("window", [40, 300, 1200])
def test_by_count(window: int, tmp_path: Path) -> None:
    """After ten windows the disk holds little more than the last one, and all of it is found."""
    settings = small_settings(tmp_path, window_documents=window, delta_documents=32)
    sizes = []
    with open_index(settings) as index:
        for step in range(10 * window // 20):
            keep(index, 20)
            if step % 50 == 49:
                index.settle()
                end = index.next_number
                assert found(index, range(max(0, end - window), end)) == list(
                    range(max(0, end - window), end)
                )
        index.flush()
        index.settle()
        stats = index.stats()
        sizes.append(sum(path.stat().st_size for path in (tmp_path / "segments").rglob("*.mdb")))
        # A slice may be half filled, and one half expired.
        slice_documents = max(32, -(-(window + 4 * 32) // 7))
        assert window <= stats.documents <= window + 3 * slice_documents
        assert stats.expired > 0
        named = {entry.name for entry in index._layers.entries}  # noqa: SLF001
        assert {path.name for path in (tmp_path / "segments").iterdir()} == named
    with open_index(settings) as index:
        end = index.next_number
        assert found(index, range(end - window, end)) == list(range(end - window, end))


def test_by_time(tmp_path: Path) -> None:
    """A segment leaves when even the latest possible document cannot reach its newest one."""
    settings = small_settings(
        tmp_path,
        delta_documents=16,
        window=dt.timedelta(minutes=30),
        allowed_lateness=dt.timedelta(minutes=10),
    )
    with open_index(settings) as index:
        keep(index, 20, 0)
        keep(index, 20, 5)
        index.flush()
        index.settle()
        for minute in (20, 39, 39.9):
            keep(index, 1, minute)
            index.flush()
            index.settle()
            # A document that comes ten minutes late is less than thirty from the first ones.
            assert found(index, range(40)) == list(range(40))
        keep(index, 1, 44.9)
        index.settle()
        assert found(index, range(20, 40)) == list(range(20, 40))
        keep(index, 1, 45)
        index.settle()
        assert found(index, range(40)) == []
        assert index.stats().documents < 20


def test_only_the_oldest_leave(tmp_path: Path) -> None:
    """A segment that is out by time stays while an older one is not."""
    settings = small_settings(
        tmp_path,
        delta_documents=16,
        window=dt.timedelta(minutes=30),
        allowed_lateness=dt.timedelta(0),
        allowed_ahead=dt.timedelta(hours=2),
    )
    with open_index(settings) as index:
        keep(index, 1)
        first = index.next_number
        documents = columns([[first << 40] * COLUMNS], first)
        ahead = update_of(documents, first)
        times_ms = np.array([START_MS + 60 * MINUTE_MS], dtype=np.int64)
        index.apply(replace(ahead, effective_times_ms=times_ms), index.applied + 1)
        index.flush()
        keep(index, 20, 1)
        index.flush()
        keep(index, 1, 80)
        index.flush()
        index.settle()
        assert found(index, range(22)) == list(range(22))
        keep(index, 1, 90)
        index.settle()
        assert found(index, range(22)) == []


def test_a_smaller_window(tmp_path: Path) -> None:
    """A smaller window takes effect with the next update."""
    with open_index(small_settings(tmp_path, delta_documents=16)) as index:
        keep(index, 300)
        keep(index, 300)
    settings = small_settings(tmp_path, delta_documents=16, window_documents=10)
    with open_index(settings) as index:
        keep(index, 20)
        index.settle()
        assert index.stats().documents == 20
        assert found(index, range(610, 620)) == list(range(610, 620))


def test_one_update_longer_than_the_window(tmp_path: Path) -> None:
    """An update may be larger than the deltas and the window together."""
    settings = small_settings(tmp_path, delta_documents=16, window_documents=30)
    with open_index(settings) as index:
        keep(index, 500)
        keep(index, 1)
        index.flush()
        index.settle()
        assert found(index, range(471, 501)) == list(range(471, 501))
    with open_index(settings) as index:
        assert found(index, range(471, 501)) == list(range(471, 501))
