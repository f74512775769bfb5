"""The clock of the stream: against its definition, after restarts, with wrong times."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.dedup.clock import (
    UNLIMITED,
    Allowances,
    Clock,
    believed_ms,
    bounded_ms,
    compared_ms,
    effective_ms,
)
from streamdedup.errors import IndexDamaged
from streamdedup.model import NO_TIMESTAMP
from streamdedup.settings.sections import IndexSettings
from tests.dedup.brute_force import clock_after, effective
from tests.support.builders import examples

NOON = 1_700_000_000_000
LATENESS, AHEAD = 3000, 1000
ALLOWANCES = Allowances(LATENESS, AHEAD)
SETTINGS = IndexSettings(
    window=dt.timedelta(seconds=9),
    allowed_lateness=dt.timedelta(milliseconds=LATENESS),
    allowed_ahead=dt.timedelta(milliseconds=AHEAD),
)
TIMES = st.one_of(
    st.integers(NOON - 9000, NOON + 9000),
    st.integers(NOON - 9000, NOON + 9000),
    st.sampled_from([NO_TIMESTAMP, 0, 2**62, -(2**62)]),
)


def running(event_times_ms: Sequence[int]) -> Clock:
    """Return a clock after documents with these event times."""
    clock = Clock()
    clock.advance(np.array(event_times_ms, dtype=np.int64))
    return clock


def effective_at(clock: Clock, event_time_ms: int, allowances: Allowances) -> int:
    """Return the effective time of a document that is judged now."""
    times_ms, now_ms = np.array([event_time_ms]), np.array([clock.now_ms])
    return int(effective_ms(times_ms, now_ms, allowances)[0])


@given(times=st.lists(TIMES, max_size=60), cut=st.integers(0, 60))
@examples(300)
def test_definition(times: list[int], cut: int) -> None:
    """The clock and the effective times match their definitions, wherever the stream is cut."""
    clock, stream = Clock(), np.array(times, dtype=np.int64)
    now_ms = np.concatenate([clock.advance(stream[:cut]), clock.advance(stream[cut:])])
    told = [clock_after(times[:number]) for number in range(len(times) + 1)]
    assert [*now_ms.tolist(), clock.now_ms] == told
    found = effective_ms(stream, now_ms, ALLOWANCES).tolist()
    assert found == [effective(*each, SETTINGS) for each in zip(times, told, strict=False)]


@given(times=st.lists(TIMES, max_size=40), more=st.lists(TIMES, max_size=20))
@examples(100)
def test_restart(times: list[int], more: list[int]) -> None:
    """A restored clock and a copy continue like the original."""
    clock = running(times)
    restored, copied = Clock.from_state(clock.state()), clock.copy()
    before = clock.state()
    for time in more:
        restored.advance(np.array([time]))
        copied.advance(np.array([time]))
    assert clock.state() == before
    clock.advance(np.array(more, dtype=np.int64))
    assert restored.state() == copied.state() == clock.state()
    assert restored.now_ms == copied.now_ms == clock.now_ms


def test_no_state_is_a_new_clock() -> None:
    """An index without documents has stored no clock."""
    assert Clock.from_state(b"").state() == Clock().state()


def test_it_trails_by_thirteen_documents() -> None:
    """In a stream in order, the clock shows the time of the fourteenth document from the end."""
    for count in range(16, 60):
        assert running(range(NOON, NOON + count)).now_ms == NOON + count - 14


def test_fourteen_must_agree() -> None:
    """Thirteen documents with a wrong time do not move the clock, a fourteenth does."""
    clock = running([NOON] * 100 + [2 * NOON] * 13)
    assert clock.now_ms == NOON
    clock.advance(np.array([2 * NOON]))
    assert clock.now_ms == 2 * NOON


@pytest.mark.parametrize("wrong", [0, 2 * NOON], ids=["early", "late"])
def test_one_of_ten_does_not_matter(wrong: int) -> None:
    """With a wrong time in ten, the clock follows the others."""
    draw = random.Random(1)
    right = NOON + np.arange(20_000)
    times = [wrong if draw.random() < 0.1 else time for time in right.tolist()]
    behind_ms = (right - Clock().advance(np.array(times)))[100:]
    assert behind_ms.min() > 0
    assert behind_ms.max() <= 60


def test_it_never_goes_back() -> None:
    """Late documents do not move the clock, however many there are."""
    assert running([NOON] * 16 + [NOON - 9000] * 5000).now_ms == NOON


def test_times_around_the_clock() -> None:
    """The range of effective times is closed: clock minus lateness to clock plus ahead."""
    clock = running([NOON] * 16)
    for event_time_ms, expected in [
        (NO_TIMESTAMP, NOON),
        (NOON - LATENESS - 1, NOON - LATENESS),
        (NOON - LATENESS, NOON - LATENESS),
        (NOON + AHEAD, NOON + AHEAD),
        (NOON + AHEAD + 1, NOON + AHEAD),
        (2**62, NOON + AHEAD),
    ]:
        assert effective_at(clock, event_time_ms, ALLOWANCES) == expected
    assert effective_at(clock, 2**62, UNLIMITED) == 2**62
    assert effective_at(clock, 5, UNLIMITED) == 5


def test_times_before_the_clock_starts() -> None:
    """Before the sixteenth document every event time stands, also one before the epoch."""
    clock = running([NOON] * 15)
    for event_time_ms in (NO_TIMESTAMP, 0, -5000, 2**62):
        assert effective_at(clock, event_time_ms, ALLOWANCES) == event_time_ms
    assert clock.now_ms == NO_TIMESTAMP


def test_compared_times() -> None:
    """A document is compared by its event time, without one by its effective time."""
    found = compared_ms(np.array([NOON, NO_TIMESTAMP]), np.array([5, 5]))
    assert found.tolist() == [NOON, 5]


@pytest.mark.parametrize(
    ("event_ms", "allowances", "expected"),
    [
        (NOON - LATENESS, ALLOWANCES, NOON - LATENESS),
        (NOON - LATENESS - 1, ALLOWANCES, NOON),
        (NOON + AHEAD, ALLOWANCES, NOON + AHEAD),
        (NOON + AHEAD + 1, ALLOWANCES, NOON),
        (NO_TIMESTAMP, ALLOWANCES, NOON),
        (0, UNLIMITED, 0),
        (2**62, UNLIMITED, 2**62),
    ],
)
def test_belief(event_ms: int, allowances: Allowances, expected: int) -> None:
    """An event time outside the allowances around the record's timestamp is replaced by it."""
    assert believed_ms(np.array([event_ms]), np.array([NOON]), allowances).tolist() == [expected]


def test_belief_without_a_timestamp() -> None:
    """A record without a timestamp keeps its event time, if it has one."""
    events_ms = np.array([NO_TIMESTAMP, -5000, 0, 2**62])
    found = believed_ms(events_ms, np.full(4, NO_TIMESTAMP), ALLOWANCES)
    assert found.tolist() == events_ms.tolist()


def test_the_wall_clock() -> None:
    """A time later than the wall clock and the allowance counts as the wall clock."""
    times = np.array([NO_TIMESTAMP, 0, NOON, NOON + AHEAD, NOON + AHEAD + 1, 2**62])
    expected = [NO_TIMESTAMP, 0, NOON, NOON + AHEAD, NOON, NOON]
    assert bounded_ms(times, NOON, ALLOWANCES).tolist() == expected
    assert bounded_ms(times, NOON, UNLIMITED).tolist() == times.tolist()


def test_allowances_follow_the_window() -> None:
    """An allowance that is not set is as long as the window; without a window it has no limit."""
    hour = dt.timedelta(hours=1)
    for settings, expected in [
        (IndexSettings(window=hour), (3_600_000, 3_600_000)),
        (IndexSettings(window=hour, allowed_lateness=0 * hour), (0, 3_600_000)),
        (IndexSettings(window=hour, allowed_ahead=hour / 2), (3_600_000, 1_800_000)),
        (IndexSettings(), (None, None)),
        (IndexSettings(allowed_ahead=hour), (None, 3_600_000)),
    ]:
        assert Allowances.from_settings(settings) == expected
    assert IndexSettings(window=hour).reach() == 2 * hour
    assert IndexSettings(allowed_lateness=hour).reach() is None


@pytest.mark.parametrize(
    "state",
    [
        b"\xc1",
        Clock().state()[:-1],
        msgspec.msgpack.encode([NOON]),
        msgspec.msgpack.encode([NOON, [NOON] * 17]),
        msgspec.msgpack.encode([NOON, [NOON], 1]),
        msgspec.msgpack.encode([NOON, [2**63]]),
        msgspec.msgpack.encode([2**64 - 1, [NOON]]),
        b"\x91" * 100_000,
    ],
    ids=[
        *("garbage", "cut", "no-times", "too-many", "another-field"),
        *("time-too-large", "clock-too-large", "nested-too-deeply"),
    ],
)
def test_damaged_states(state: bytes) -> None:
    """Bytes that are not a clock are refused, with what to do."""
    with pytest.raises(IndexDamaged, match=r"clock.*remove the index directory"):
        Clock.from_state(state)
