"""The window by time in files: exact at any pace, and not moved by wrong clocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from streamdedup import Deduplicator
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from tests.support.paces import (
    DAY,
    HOUR,
    START,
    WILD,
    WINDOW,
    Event,
    stream,
    text,
    times,
    with_wild,
)

PACES = {
    "20 a day": [20] * 60,
    "200 a day": [200] * 30,
    "5,000 a day": [5000] * 8,
    "falling tenfold": [400] * 12 + [40] * 20,
    "rising tenfold": [40] * 20 + [400] * 12,
    "silence of 30 days": [40] * 20 + [0] * 30 + [40] * 20,
    "2 a day": [2] * 120,
}


def settings(**index: Any) -> Settings:
    """Return settings with a window of seven days and small sketches."""
    return load_settings(
        dedup={"num_perm": 32, "bands": 8, "rows": 4},
        index={"window": "7d", "delta_documents": 512, "sync": False} | index,
    )


def kept(events: Sequence[Event], sizes: Sequence[int] = (1000,), **index: Any) -> list[bool]:
    """Tell which documents are kept; batches have the given sizes, in turn."""
    verdicts = []
    with Deduplicator(settings(**index)) as deduplicator:
        start = number = 0
        while start < len(events):
            stop = start + sizes[number % len(sizes)]
            batch = [event.document() for event in events[start:stop]]
            verdicts += [verdict.kept for verdict in deduplicator.process(batch)]
            start, number = stop, number + 1
    return verdicts


def wrong(events: Sequence[Event], found: Sequence[bool]) -> list[tuple[float, bool]]:
    """Return the day of each wrong verdict, and whether the document was kept."""
    return [
        ((event.time_ms - events[0].time_ms) / DAY, is_kept)
        for event, is_kept in zip(events, found, strict=True)
        if event.kept is not None and event.kept != is_kept
    ]


@pytest.mark.parametrize("pace", PACES)
def test_any_pace(pace: str) -> None:
    """One hour before the window ends a repeated text is a duplicate, one hour after it is kept."""
    events = stream(PACES[pace])
    assert wrong(events, kept(events)) == []


def test_an_archive() -> None:
    """The window of an archive is by its own time, 30 years ago."""
    events = stream([200] * 25, start_ms=START - 30 * 365 * DAY)
    assert wrong(events, kept(events)) == []


def test_an_unsorted_archive() -> None:
    """Documents in any order are compared by their own times, within the allowed lateness."""
    events = stream([20] * 100)
    random.Random(3).shuffle(events)
    found = kept(events, allowed_lateness="100d")
    original = {}
    for event, is_kept in zip(events, found, strict=True):
        if event.kept is None:
            continue
        if event.text not in original:
            assert is_kept
            original[event.text] = event.time_ms
        else:
            assert is_kept == (abs(event.time_ms - original[event.text]) >= WINDOW)


@pytest.mark.parametrize("clock", WILD)
@pytest.mark.parametrize("pace", ["20 a day", "silence of 30 days"])
def test_wild_clocks(clock: str, pace: str) -> None:
    """One producer of ten with a wrong clock changes no verdict on the others."""
    events = stream(PACES[pace])
    mixed = with_wild(events, clock, one_in=10)
    of_others = [
        is_kept for event, is_kept in zip(mixed, kept(mixed), strict=True) if not event.wild
    ]
    assert of_others == kept(events)
    assert wrong(events, of_others) == []


@pytest.mark.parametrize("sizes", [(1,), (7, 300), (100_000,)], ids=str)
def test_any_batches(sizes: Sequence[int]) -> None:
    """The verdicts do not depend on the batches."""
    events = with_wild(stream([20] * 30 + [0] * 20 + [20] * 8), "random", one_in=5)
    assert kept(events, sizes) == kept(events, (64,))


@pytest.mark.parametrize(("days", "excepted"), [(13, 0), (30, 14)])
def test_first_documents_after_a_silence(days: int, excepted: int) -> None:
    """After a silence of more than both allowances, copies of the first 14 documents are kept."""
    rng = random.Random(4)
    before = [Event(time_ms, text(rng)) for time_ms in times([50] * 8)]
    back = START + (8 + days) * DAY
    after = [Event(time_ms, text(rng)) for time_ms in times([50], back)]
    copies = [Event(event.time_ms + 12 * HOUR, event.text) for event in after]
    later = sorted([*after, *copies], key=lambda event: event.time_ms)
    events = before + later
    outcome = dict(zip([(e.text, e.time_ms) for e in events], kept(events), strict=True))
    copies_kept = [outcome[copy.text, copy.time_ms] for copy in copies]
    assert copies_kept == [True] * excepted + [False] * (len(copies) - excepted)


def test_a_burst_of_wrong_times_is_forgotten() -> None:
    """After 100 documents in a row with a wrong time, new documents are compared as before."""
    rng = random.Random(5)
    events = stream([100] * 20)
    middle = len(events) // 2
    burst = [Event(START + 3650 * DAY + number, text(rng)) for number in range(100)]
    later = stream([100] * 20, seed=9, start_ms=START + 20 * DAY)
    found = kept([*events[:middle], *burst, *events[middle:], *later])
    assert wrong(later, found[-len(later) :]) == []
