"""The scrub reads everything at its pace, and damage ends the use of the index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamdedup.errors import IndexDamaged
from streamdedup.index import chores
from streamdedup.index.chores import Scrub
from streamdedup.index.segment import Mapped, Segment
from streamdedup.index.store import Index
from tests.index.damage import build_sound_index, entries, update
from tests.support.builders import open_index, small_settings
from tests.support.clock import Clock
from tests.support.patience import wait_until


def reopened(directory: Path) -> Index:
    """Open the index, and let its background finish."""
    index = open_index(small_settings(directory, delta_documents=16, window_documents=200))
    index.settle()
    return index


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """An index of several segments."""
    opened = reopened(build_sound_index(tmp_path / "index"))
    yield opened
    opened.close()


def held(index: Index) -> list[Segment]:
    """Return the segments, newest first."""
    return index._layers._segments.held  # noqa: SLF001 - what the scrub watches


def size_of(index: Index) -> int:
    """Return the bytes of all values."""
    return sum(int(file.sizes.sum()) for segment in held(index) for file in segment.files)


def flip(file: Mapped, number: int) -> None:
    """Flip a bit of a value of a mapped file."""
    place = int(file._offsets[number])  # noqa: SLF001 - values may be equal
    with file.path.open("r+b") as raw:
        os.pwrite(raw.fileno(), bytes([file.value(number)[0] ^ 1]), place)


class Watcher:
    """A scrub of an index, with a clock that stands still until it is asked to sleep.

    Attributes:
        noted: the damage that it has noted.
        scrub: the scrub.
    """

    def __init__(self, index: Index) -> None:
        self.clock = Clock()
        self.noted: list[tuple[str, list[int]]] = []
        self.scrub = Scrub(lambda *damage: self.noted.append(damage), self.clock)
        self.scrub.set_segments(held(index))

    def pause(self) -> float:
        """Return the time until the next step."""
        pause = self.scrub.due_in()
        assert pause is not None
        return pause

    def sleep_and_step(self) -> float:
        """Sleep until the next step, perform it, and return for how long it has slept."""
        pause = self.pause()
        self.clock.time += pause
        self.scrub.step()
        return pause


def test_pace(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass reads every value once, at the pace, and the next one begins a day later."""
    monkeypatch.setattr(chores, "SCRUB_BYTES", 2000)
    watcher, size = Watcher(index), size_of(index)
    began = watcher.sleep_and_step()
    while watcher.pause() < chores.PASS_SECONDS / 2:
        watcher.sleep_and_step()
    assert watcher.scrub.bytes_read == size
    busy = watcher.clock.time - began
    assert size - 4000 <= busy * chores.BYTES_PER_SECOND <= size
    assert watcher.sleep_and_step() == pytest.approx(chores.PASS_SECONDS - busy)
    assert watcher.scrub.bytes_read > size


def test_no_segments(tmp_path: Path) -> None:
    """An index without segments is looked at again after a while."""
    with open_index(small_settings(tmp_path)) as empty:
        watcher = Watcher(empty)
        watcher.sleep_and_step()
        assert 0 < watcher.sleep_and_step() < chores.PASS_SECONDS
        assert watcher.scrub.bytes_read == 0


def test_segment_that_is_gone(index: Index) -> None:
    """A segment that was closed since the pass began is left out."""
    watcher = Watcher(index)
    gone = open_index_of_copy(index)
    watcher.scrub.set_segments([*gone, *held(index)])
    for segment in gone:
        segment.close()
    while watcher.scrub.bytes_read < size_of(index):
        watcher.sleep_and_step()
    assert watcher.scrub.bytes_read == size_of(index)


def open_index_of_copy(index: Index) -> list[Segment]:
    """Return the same segments, opened once more."""
    columns = len(held(index)[0].subs) // 256
    return [Segment(index.directory, segment.entry, columns) for segment in held(index)]


@pytest.mark.damages_index
def test_damage_is_counted_noted_and_raised(index: Index) -> None:
    """All damaged values of a file are found before the error, and the scrub ends with it."""
    shard = held(index)[-1].shards[0].file
    for number in (1, 2):
        flip(shard, number)
    watcher = Watcher(index)
    with pytest.raises(IndexDamaged, match=r"shard-000.mdb is damaged: .*, and 1 more, is not"):
        watcher.sleep_and_step()
    assert watcher.noted == [(shard.name, [1, 2])]
    assert watcher.scrub.damaged == 2
    assert watcher.scrub.due_in() is None


def test_the_background_scrubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The background finds damage; that ends the index, and every start until it is repaired."""
    directory = build_sound_index(tmp_path / "index")
    reopened(directory).close()
    shard = unchecked_shard(directory)
    content = shard.path.read_bytes()
    flip(shard, 2)
    shard.close()
    settings = small_settings(directory, delta_documents=16, window_documents=200)
    with monkeypatch.context() as patch:
        patch.setattr(chores, "_FIRST_SECONDS", 0.0)
        index = open_index(settings)
        wait_until(lambda: index.stats().damaged_blocks == 1, "the scrub")
        wait_until(lambda: index._layers._background.pending == 1, "its outcome")  # noqa: SLF001
        with pytest.raises(IndexDamaged, match="remove the index directory"):
            index.apply(update(143, 1), 17)
        index.close()
    for _ in range(2):
        with pytest.raises(IndexDamaged, match=r"shard-000\.mdb is damaged"):
            open_index(settings)
    shard.path.write_bytes(content)
    reopened(directory).close()


def unchecked_shard(directory: Path) -> Mapped:
    """Return a shard with stored filters, whose postings are not read by a start."""
    entry = next(entry for entry in entries(directory) if entry.stores_filter)
    file = entry.shards[0].file
    return Mapped(directory / "segments" / entry.name / file.name, file, fresh=False)
