"""Verdicts inside and outside the window by time."""

from __future__ import annotations

import datetime as dt
import random
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from streamdedup.dedup import clock as clocks
from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.model import (
    NO_TIMESTAMP,
    Document,
)
from tests.dedup.brute_force import HOUR, MILLISECOND, NOON, cut, judged
from tests.support.builders import (
    open_index,
    pass_through,
    sketched,
    small_settings,
)


class TestWindow:
    """The window by time."""

    TEXT = "the very same text"

    def outcomes(self, tmp_path: Path, times: Sequence[int], window: dt.timedelta) -> list[bool]:
        """Tell which copies of one text are kept, by their event times."""
        settings = small_settings(tmp_path, window=window)
        documents = [Document(self.TEXT, event_time_ms=time) for time in times]
        return [verdict.kept for verdict in judged(documents, settings)]

    @pytest.mark.parametrize("sign", [1, -1], ids=["later", "earlier"])
    def test_it_ends_exactly(self, sign: int, tmp_path: Path) -> None:
        """A copy is a duplicate up to one millisecond before the window ends."""
        hour = 3_600_000
        times = [NOON, NOON + sign * (hour - 1), NOON + sign * hour]
        assert self.outcomes(tmp_path, times, HOUR) == [True, False, True]

    def test_the_newest_kept_one_counts(self, tmp_path: Path) -> None:
        """A text that is repeated all the time is kept once in each window."""
        times = [NOON + minute * 60_000 for minute in range(0, 300, 20)]
        kept = self.outcomes(tmp_path, times, HOUR)
        assert kept == [minute % 60 == 0 for minute in range(0, 300, 20)]

    def test_stored_and_fresh_alike(self, tmp_path: Path) -> None:
        """The verdict is the same for an original in this batch and in the index."""
        settings = small_settings(tmp_path, window=HOUR)
        times = [NOON, NOON + 3_600_000, NOON + 3_600_001]
        documents = [Document(self.TEXT, event_time_ms=time) for time in times]
        with open_index(settings) as index:
            verdicts = pass_through(index, cut(documents, {1, 2}, settings), settings)
        assert [verdict.kept for verdict in verdicts] == [True, True, False]
        [match] = verdicts[2].matches
        assert match.position.offset == 1

    def test_without_times_only_numbers_count(self, tmp_path: Path) -> None:
        """Documents without an event time are inside the window by time."""
        kept = self.outcomes(tmp_path, [NO_TIMESTAMP] * 3, MILLISECOND)
        assert kept == [True, False, False]

    def test_wild_times_are_believed_so_far(self, tmp_path: Path) -> None:
        """With a settled clock, a wrong event time is limited to the allowed range."""
        settings = small_settings(tmp_path, window=HOUR, allowed_ahead=HOUR / 2)
        draw = random.Random(5)
        fillers = [
            Document("".join(draw.choices(string.ascii_letters, k=30)), event_time_ms=NOON)
            for _ in range(1001)
        ]
        times = [2**62, NOON, NOON - 1, NO_TIMESTAMP, NOON - 2_000_000]
        copies = [Document(self.TEXT, event_time_ms=time) for time in times]
        with open_index(settings) as index:
            rule = replace(Rule.from_settings(settings), threshold=1.0)
            batch = sketched([*fillers, *copies], settings)
            candidates = index.probe(batch.documents)
            judgement = resolve(batch, candidates, rule, 0, index.clock)
        kept = [verdict.kept for verdict in judgement.verdicts]
        assert kept == [True] * 1002 + [False, False, False, True]
        assert judgement.update.effective_times_ms.tolist() == [NOON] * 1001 + [
            NOON + 1_800_000,
            NOON - 2_000_000,
        ]

    @pytest.mark.parametrize("cuts", [set(), {1}, {1, 3}], ids=str)
    def test_time_is_told_before_a_document_counts(
        self, cuts: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The effective time of a document is computed before it moves the clock."""
        monkeypatch.setattr(clocks, "RING", 1)
        monkeypatch.setattr(clocks, "EVERY", 2)
        settings = small_settings(tmp_path, allowed_ahead=0 * HOUR)
        documents = [
            Document(text * 5, event_time_ms=NOON + hours * 3_600_000)
            for hours, text in enumerate(["alpha", "bravo", "ketch", "jumpy"])
        ]
        told_ms: list[int] = []
        rule = Rule.from_settings(settings)
        with open_index(settings) as index:
            for batch in cut(documents, cuts, settings):
                candidates = index.probe(batch.documents)
                judgement = resolve(batch, candidates, rule, index.next_number, index.clock)
                index.apply(judgement.update, index.applied + 1)
                told_ms += judgement.update.effective_times_ms.tolist()
        assert told_ms == [NOON, NOON, NOON, NOON + 2 * 3_600_000]

    def test_the_callers_clock_stays(self, tmp_path: Path) -> None:
        """Judging does not change the clock of the index; applying the update does."""
        settings = small_settings(tmp_path)
        with open_index(settings) as index:
            batch = sketched([Document(self.TEXT, event_time_ms=NOON)], settings)
            candidates = index.probe(batch.documents)
            before = index.clock.state()
            rule = Rule.from_settings(settings)
            judgement = resolve(batch, candidates, rule, 0, index.clock)
            assert index.clock.state() == before
            index.apply(judgement.update, 1)
            assert (judgement.update.clock_ms, index.clock.now_ms) == (NO_TIMESTAMP, NOON)
        with open_index(settings) as index:
            assert index.clock.now_ms == NOON
