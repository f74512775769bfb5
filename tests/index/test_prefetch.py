"""Pages that a look-up will read are asked for together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.page_cache import drop_from_cache, resident_share
from streamdedup.index import prefetch
from streamdedup.index.postings import places_of
from streamdedup.index.prefetch import Prefetch
from streamdedup.index.segment import Segment
from streamdedup.index.store import Index
from tests.index.damage import build_sound_index
from tests.support.builders import COLUMNS, open_index, small_settings
from tests.support.patience import wait_until


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """An index of several segments."""
    directory = build_sound_index(tmp_path / "index")
    with open_index(small_settings(directory, delta_documents=16, window_documents=200)) as opened:
        opened.settle()
        yield opened


def held(index: Index) -> list[Segment]:
    """Return the segments, newest first."""
    return index._layers._segments.held  # noqa: SLF001 - what is mapped


def test_places_lie_in_the_files(index: Index) -> None:
    """Whatever is looked up, only pages of the files are asked for, and each search has some."""
    segments = held(index)
    subs = np.stack([segment.subs for segment in segments])
    slots = np.array([segment.slot for segment in segments])
    keys = np.random.default_rng(1).integers(0, 2**64, (50, COLUMNS), dtype=np.uint64)
    keys[0], keys[1] = 0, 2**64 - 1
    masks = np.full(keys.shape, 2**64 - 1, dtype=np.uint64)
    out = np.empty(4 * keys.size * len(segments), dtype=np.int64)
    count = places_of(keys, masks, slots, subs, out)
    assert count > 0
    starts = {
        file.start: file.start + file.path.stat().st_size for s in segments for file in s.files
    }
    for place in out[:count].tolist():
        assert any(start <= place < end for start, end in starts.items())
    pages = Prefetch()
    pages.show([file for segment in segments for file in segment.files])
    pages.pages(out[:count])
    assert places_of(keys, masks, slots, subs, out[:9]) == 8
    assert places_of(keys, np.zeros_like(masks), slots, subs, out) == 0


def test_pages_are_read(index: Index) -> None:
    """Asking for a page brings it into memory."""
    file = held(index)[-1].documents
    drop_from_cache(file.path)
    pages = Prefetch()
    pages.show([file])
    pages.pages(file.start + np.arange(0, file.path.stat().st_size, 4096))
    wait_until(lambda: resident_share([file.path]) == 1, "the pages")


def test_only_who_waited_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on at first, and while more than every tenth look-up reads a page."""
    read = iter([100, 100 + 8 * 11, 600, 600 + 8 * 10, 2000, 3000])
    monkeypatch.setattr(prefetch, "_blocks_read", lambda: next(read))
    pages = Prefetch()
    states = [pages.is_on]
    for _ in range(3):
        with pages.watch(100):
            pass
        states.append(pages.is_on)
    assert states == [True, True, False, True]


def test_blocks_of_this_thread() -> None:
    """The system counts what this thread reads from disks, and never counts down."""
    before = prefetch._blocks_read()  # noqa: SLF001
    assert prefetch._blocks_read() >= before >= 0  # noqa: SLF001


def test_the_same_is_found(index: Index) -> None:
    """A look-up finds the same, whether it asks or not."""
    numbers = np.arange(index.oldest_number, index.next_number)
    numbers = numbers[~np.isin(numbers, (5, 120))]
    lookup = index._layers.lookup  # noqa: SLF001
    answers = []
    for is_on in (True, False):
        lookup._prefetch.is_on = is_on  # noqa: SLF001
        answers.append(index.documents(numbers)[1].ids)
    assert answers[0] == answers[1]
