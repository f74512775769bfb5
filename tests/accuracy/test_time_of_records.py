"""The window by time for records of Kafka, which have timestamps, and after a rebuild."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.engine.prepare import Preparer
from streamdedup.formats import changelog
from streamdedup.index.store import Index
from streamdedup.model import Position, Record
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from tests.accuracy.test_time import PACES, wrong
from tests.support.builders import open_index
from tests.support.paces import DAY, START, WILD, Event, stream, text, times, wild_time, with_wild

NOW = START + 400 * DAY


def settings(directory: Path, **index: Any) -> Settings:
    """Return settings of a worker with a window of seven days and small sketches."""
    given = {"window": "7d", "delta_documents": 512, "sync": False, "directory": str(directory)}
    return load_settings(
        dedup={"num_perm": 32, "bands": 8, "rows": 4},
        index=given | index,
        records={"event_time_field": "at"},
    )


def record(offset: int, event: Event, timestamp_ms: int) -> Record:
    """Return the record of a document."""
    value = json.dumps({"text": event.text, "at": event.time_ms})
    return Record(Position("t", 0, offset), value.encode(), timestamp_ms=timestamp_ms)


def as_sent(events: Sequence[Event]) -> list[Record]:
    """Return records that brokers stamped with the true time, whatever their event time is."""
    now_ms, records = START, []
    for offset, event in enumerate(events):
        now_ms = now_ms if event.wild else event.time_ms
        records.append(record(offset, event, now_ms))
    return records


class Worker:
    """Judges records as the worker does, and keeps the changelog.

    Args:
        settings: all settings.
        index: an open index.
    """

    def __init__(self, settings: Settings, index: Index) -> None:
        self._preparer, self._rule = Preparer(settings), Rule.from_settings(settings)
        self._latest_ms = NOW if settings.index.clock == "record" else None
        self._index = index
        self.entries: list[bytes] = []

    def judge(self, records: Sequence[Record], size: int = 100) -> list[bool]:
        """Tell which records are kept."""
        found = []
        for start in range(0, len(records), size):
            batch = self._preparer.prepare_records(records[start : start + size])
            index, probed = self._index, self._index.probe(batch.documents)
            judgement = resolve(
                batch, probed, self._rule, index.next_number, index.clock, self._latest_ms
            )
            entries = changelog.encode(judgement.update, "f", 20_000)
            self.entries += entries
            for entry in entries:
                index.apply(changelog.decode(entry, "f"), index.applied + 1)
            found += [verdict.kept for verdict in judgement.verdicts]
        return found


def kept(directory: Path, records: Sequence[Record], size: int = 100, **index: Any) -> list[bool]:
    """Tell which records a worker with a new index keeps."""
    own = settings(directory, **index)
    with open_index(own, "changelog") as opened:
        return Worker(own, opened).judge(records, size)


@pytest.mark.parametrize("pace", ["20 a day", "200 a day", "silence of 30 days"])
def test_any_pace(pace: str, tmp_path: Path) -> None:
    """One hour before the window ends a repeated text is a duplicate, one hour after it is kept."""
    events = stream(PACES[pace])
    assert wrong(events, kept(tmp_path, as_sent(events))) == []


def test_first_documents_after_a_silence(tmp_path: Path) -> None:
    """Records that come after a silence are in the window at once."""
    rng, back = random.Random(6), START + 90 * DAY
    events = [Event(time_ms, text(rng)) for time_ms in times([20] * 8)]
    after = [Event(time_ms, text(rng)) for time_ms in times([50], back)]
    copies = [Event(event.time_ms + 6 * DAY, event.text) for event in after]
    found = kept(tmp_path, as_sent([*events, *after, *copies]))
    assert found == [True] * (len(events) + len(after)) + [False] * len(copies)


@pytest.mark.parametrize("clock", WILD)
@pytest.mark.parametrize("one_in", [10, 2])
def test_wild_event_times(clock: str, one_in: int, tmp_path: Path) -> None:
    """A producer of wrong event times changes no verdict on the others: brokers stamp its records.

    Half of the records may be its own.
    """
    events = stream([100] * 25)
    mixed = with_wild(events, clock, one_in)
    found = kept(tmp_path / "mixed", as_sent(mixed))
    of_others = [is_kept for event, is_kept in zip(mixed, found, strict=True) if not event.wild]
    assert of_others == kept(tmp_path / "alone", as_sent(events))
    assert wrong(events, of_others) == []


@pytest.mark.parametrize("clock", WILD)
def test_wild_timestamps(clock: str, tmp_path: Path) -> None:
    """One producer of ten with wrong timestamps changes no verdict on the others."""
    events = stream(PACES["20 a day"])
    mixed = with_wild(events, clock, one_in=10)
    records = [record(offset, event, event.time_ms) for offset, event in enumerate(mixed)]
    found = kept(tmp_path, records)
    of_others = [is_kept for event, is_kept in zip(mixed, found, strict=True) if not event.wild]
    assert wrong(events, of_others) == []


def test_timestamps_ahead_of_the_wall_clock(tmp_path: Path) -> None:
    """However many records are stamped in the future, the current ones are compared as before."""
    rng = random.Random(8)
    events = stream([200] * 25, start_ms=NOW - 25 * DAY)
    mixed = []
    for event in events:
        mixed.append(event)
        if event.time_ms > NOW - DAY:
            ahead = wild_time("ten years ahead", event.time_ms, rng)
            mixed += [Event(ahead, str(rng.random()), wild=True) for _ in range(5)]
    records = [record(offset, event, event.time_ms) for offset, event in enumerate(mixed)]
    found = kept(tmp_path, records)
    of_others = [is_kept for event, is_kept in zip(mixed, found, strict=True) if not event.wild]
    assert wrong(events, of_others) == []


def test_a_partition_that_lags_behind(tmp_path: Path) -> None:
    """A partition that is read after the others finds the originals of its own time."""
    ahead, behind = stream([50] * 90, seed=1), stream([50] * 30, seed=2)
    found = kept(tmp_path, as_sent([*ahead, *behind]))
    assert wrong(behind, found[len(ahead) :]) == []


def test_a_backfill(tmp_path: Path) -> None:
    """Old documents in a topic that stamps today are judged by event time, if it is set so."""
    events = stream([50] * 40)
    records = [record(offset, event, NOW) for offset, event in enumerate(events)]
    assert wrong(events, kept(tmp_path / "event", records, clock="event")) == []
    assert len(wrong(events, kept(tmp_path / "record", records, clock="record"))) == 30


@pytest.mark.parametrize("clock", ["record", "event"])
def test_batches_replays_and_rebuilds(clock: str, tmp_path: Path) -> None:
    """Any batches, a replay and a rebuilt index give the same verdicts and the same clock."""
    events = with_wild(stream([40] * 30), "random", one_in=5)
    records = as_sent(events)
    middle = len(records) * 2 // 3
    whole = kept(tmp_path / "whole", records, 10_000, clock=clock)
    first, second = (settings(tmp_path / name, clock=clock) for name in ("first", "second"))
    with open_index(first, "changelog") as index:
        worker = Worker(first, index)
        found = worker.judge(records[:middle], 7)
        assert worker.judge(records[middle - 100 : middle]) == found[-100:]
        state = index.clock.state()
    with open_index(second, "changelog") as index:
        for entry in worker.entries:
            index.apply(changelog.decode(entry, "f"), index.applied + 1)
        assert index.clock.state() == state
        found += Worker(second, index).judge(records[middle:], 31)
    assert found == whole


def test_a_changelog_without_its_beginning(tmp_path: Path) -> None:
    """An index that is rebuilt from the rest of the changelog has the same clock."""
    events = stream([40] * 40)
    records = as_sent(events)
    middle = len(records) // 2
    own, rest = settings(tmp_path / "own"), settings(tmp_path / "rest")
    with open_index(own, "changelog") as index:
        worker = Worker(own, index)
        worker.judge(records[:middle])
        state = index.clock.state()
    with open_index(rest, "changelog") as index:
        for entry in worker.entries[-2:]:
            index.apply(changelog.decode(entry, "f"), index.applied + 1)
        assert index.clock.state() == state
