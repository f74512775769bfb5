"""The clock of the stream: against its definition, in batches, after restarts, with wrong times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.dedup import clock as clocks
from streamdedup.dedup.clock import Clock
from streamdedup.errors import IndexDamaged
from streamdedup.formats import changelog
from streamdedup.model import NO_TIMESTAMP
from tests.dedup.brute_force import clock_after, effective
from tests.support.builders import COLUMNS, columns, examples, small_settings, update_of

LATENESS, AHEAD = 1000, 100
SETTINGS = small_settings(Path()).index
NOON = 1_700_000_000_000
TIMES = st.lists(
    st.one_of(st.integers(0, 5000), st.sampled_from([NO_TIMESTAMP, 10**9, -(10**9)])), max_size=60
)
RINGS = st.sampled_from([1, 3, 5, 1001])


def running(event_times_ms: Sequence[int]) -> Clock:
    """Return a clock after the kept documents 0, 1, ..."""
    clock = Clock(LATENESS, AHEAD)
    clock.advance(0, np.array(event_times_ms, dtype=np.int64))
    return clock


@given(times=TIMES, cuts=st.sets(st.integers(1, 59)), ring=RINGS, every=st.sampled_from([1, 2, 7]))
@examples(300)
def test_against_its_definition(times: list[int], cuts: set[int], ring: int, every: int) -> None:
    """One by one and in any batches, the clock and the effective times match the definition."""
    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(clocks, "RING", ring)
        changes.setattr(clocks, "EVERY", every)
        clock = Clock.from_settings(SETTINGS)
        for number, time in enumerate(times):
            told = clock_after(times[:number])
            assert clock.now_ms == told.now_ms
            assert clock.effective_ms(time) == effective(time, told, SETTINGS)
            clock.keep(number, time)
        assert clock.now_ms == clock_after(times).now_ms
        batched = Clock.from_settings(SETTINGS)
        edges = [0, *sorted(at for at in cuts if at < len(times)), len(times)]
        for start, stop in pairwise(edges):
            batched.advance(start, np.array(times[start:stop], dtype=np.int64))
        assert batched.state() == clock.state()


def test_as_it_is_used() -> None:
    """With the real ring size, the clock matches the definition over thousands of documents."""
    draw = random.Random(3)
    times = [NOON + 1000 * number + draw.randrange(-60_000, 60_000) for number in range(6000)]
    for count in (1, 1000, 1001, 1002, 1007, 1008, 1009, 6000):
        clock = running(times[:count])
        told = clock_after(times[:count])
        assert clock.now_ms == told.now_ms
        assert (clock.oldest_ms is not None) == told.settled == (count >= 1001)


def test_it_goes_back_only_before_the_ring_is_full() -> None:
    """A stream that jumps back moves an unsettled clock, but not a settled one."""
    young = running([NOON] * 400 + [NOON - 9000] * 600)
    assert young.now_ms == NOON - 9000
    settled = running([NOON] * 1001 + [NOON - 9000] * 50_000)
    assert settled.now_ms == NOON


@pytest.mark.parametrize("wild", [NOON * 2, 0], ids=["ahead", "behind"])
def test_a_wild_producer_moves_nothing(wild: int) -> None:
    """If 40 % of the times are wrong, the clock and effective times follow the others."""
    draw = random.Random(7)
    good = NOON
    clock = Clock(LATENESS, AHEAD)
    for number in range(40_000):
        is_wild = draw.random() < 0.4
        good += 0 if is_wild else 1
        time = wild if is_wild else good
        if number > 1001:
            assert good - 40_000 <= clock.now_ms <= good
            assert -LATENESS <= clock.effective_ms(time) - clock.now_ms <= AHEAD
        clock.keep(number, time)
    assert clock.now_ms > NOON + 20_000 - 16_016


def test_documents_without_time_are_no_samples() -> None:
    """They do not move the clock; their effective time is that of the clock, if it has one."""
    clock = running([NO_TIMESTAMP] * 3000)
    assert clock.now_ms == clock.effective_ms(NO_TIMESTAMP) == NO_TIMESTAMP
    clock.keep(3000, NOON)
    assert clock.now_ms == clock.effective_ms(NO_TIMESTAMP) == NOON
    clock.advance(3001, np.full(9000, NO_TIMESTAMP))
    assert clock.now_ms == NOON
    assert clock.oldest_ms is None


def test_effective_times_of_a_settled_clock() -> None:
    """The range is closed: clock minus lateness to clock plus ahead."""
    clock = running([NOON] * 1001)
    assert clock.oldest_ms == NOON - LATENESS
    for event_time_ms, expected in (
        (NOON - LATENESS, NOON - LATENESS),
        (NOON - LATENESS - 1, NOON - LATENESS),
        (-(2**63), NOON - LATENESS),
        (NOON + AHEAD, NOON + AHEAD),
        (NOON + AHEAD + 1, NOON + AHEAD),
        (2**63 - 1, NOON + AHEAD),
        (NO_TIMESTAMP, NOON),
    ):
        assert clock.effective_ms(event_time_ms) == expected


def test_a_copy_goes_its_own_way() -> None:
    """Advancing a copy does not change the original clock."""
    clock = running(range(2000))
    before = clock.state()
    copied = clock.copy()
    assert copied.state() == before
    copied.advance(2000, np.arange(10_000, 40_000))
    assert clock.state() == before
    assert copied.now_ms > clock.now_ms
    assert copied.effective_ms(0) == copied.now_ms - LATENESS


@given(times=TIMES, more=TIMES, ring=RINGS)
@examples(100)
def test_it_is_stored(times: list[int], more: list[int], ring: int) -> None:
    """A restored clock continues like the original."""
    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(clocks, "RING", ring)
        clock = Clock.from_settings(SETTINGS)
        clock.advance(0, np.array(times, dtype=np.int64))
        again = Clock.from_state(clock.state(), SETTINGS)
        for each in (clock, again):
            each.advance(len(times), np.array(more, dtype=np.int64))
        assert again.now_ms == clock.now_ms
        assert again.state() == clock.state()


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1, True]),
        msgspec.msgpack.encode([1, True, ["x"]]),
        msgspec.msgpack.encode([1, True, [1] * 1002, [0, 0, 0]]),
        msgspec.msgpack.encode([1, False, [1] * 1001, [0, 0, 0]]),
    ],
    ids=["empty", "garbage", "cut", "no-times", "too-many", "full-and-not-settled"],
)
def test_a_damaged_one_is_refused(state: bytes) -> None:
    """Bytes that are not a valid state are damage, with a remedy."""
    with pytest.raises(IndexDamaged, match=r"clock.*remove the index directory"):
        Clock.from_state(state, SETTINGS)


class TestAdvanceTo:
    """Advancing the clock, as in a rebuild from a changelog without its beginning."""

    def test_what_it_says_already_changes_nothing(self) -> None:
        """Advancing to its own or an earlier time does not settle it."""
        clock = running([NOON, NOON + 10, NOON + 20])
        before = clock.state()
        for now_ms in (NO_TIMESTAMP, NOON - 1, clock.now_ms):
            clock.advance_to(now_ms)
            assert clock.state() == before

    def test_no_sample_moves_it_until_the_ring_is_full(self) -> None:
        """A wrong or old first document after a rebuild does not move the clock."""
        clock = Clock(LATENESS, AHEAD)
        clock.advance_to(NOON)
        clock.advance(5000, np.array([2 * NOON, 5]))
        assert clock.now_ms == NOON
        assert clock.effective_ms(2 * NOON) == NOON + AHEAD
        clock.advance(5002, np.full(998, NOON + 50))
        assert clock.now_ms == NOON
        clock.keep(6000, NOON + 50)
        assert clock.now_ms == NOON + 50

    def test_a_time_before_1970(self) -> None:
        """A clock without a time can be advanced to any time, also one before NO_TIMESTAMP."""
        clock = Clock(LATENESS, AHEAD)
        clock.advance_to(-5000)
        assert clock.now_ms == -5000

    @pytest.mark.parametrize("lost", [0, 1, 20], ids=["whole", "first-entry-lost", "half-lost"])
    def test_rebuilt_from_the_changelog(self, lost: int) -> None:
        """A changelog gives the clock back, in whatever pieces.

        A whole one does so exactly, one that has lost its beginning once the ring is another.
        """
        draw = random.Random(11)
        clock = Clock(LATENESS, AHEAD)
        entries: list[bytes] = []
        number = 0
        for _ in range(40):
            documents = columns([[0] * COLUMNS] * draw.randrange(1200, 1500), number)
            times = [NOON + number + draw.randrange(-2000, 2000) for _ in range(len(documents))]
            documents.event_times_ms[:] = times
            update = replace(update_of(documents, number), clock_ms=clock.now_ms)
            entries += changelog.encode(update, "f", 100_000)
            clock.advance(number, documents.event_times_ms)
            number += len(documents)
        assert len(entries) > 60
        rebuilt = Clock(LATENESS, AHEAD)
        for entry in entries[len(entries) * lost // 40 :]:
            update = changelog.decode(entry, "f")
            rebuilt.advance_to(update.clock_ms)
            rebuilt.advance(update.first_number, update.documents.event_times_ms)
        # When it settled, one that has lost the beginning cannot know.
        told, expected = (msgspec.msgpack.decode(each.state()) for each in (rebuilt, clock))
        assert told[:3] == expected[:3]
        assert lost or told == expected
