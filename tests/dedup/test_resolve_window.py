"""Verdicts inside and outside the window by time."""

from __future__ import annotations

import datetime as dt
import random
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from streamdedup.dedup.clock import Clock
from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.model import NO_TIMESTAMP, Document
from tests.dedup.brute_force import HOUR, MILLISECOND, NOON, cut, judged
from tests.support.builders import (
    open_index,
    pass_through,
    sketched,
    small_settings,
)


def filler(number: int) -> str:
    """Return a text that resembles no other."""
    return "".join(random.Random(number).choices(string.ascii_letters, k=30))


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

    def test_an_undated_document_has_the_time_of_the_clock(self, tmp_path: Path) -> None:
        """Without an event time, a document is compared by the clock at its judgement."""
        hour = 3_600_000
        start = [Document(filler(number), event_time_ms=NOON) for number in range(16)]
        times = [NO_TIMESTAMP, NOON + hour - 1, NOON + hour]
        copies = [Document(self.TEXT, event_time_ms=time) for time in times]
        verdicts = judged([*start, *copies], small_settings(tmp_path, window=HOUR, threshold=1))
        assert [verdict.kept for verdict in verdicts[16:]] == [True, False, True]

    @pytest.mark.parametrize("cuts", [set(), {16}, {3, 17, 18, 20}], ids=str)
    def test_a_document_leaves_at_an_exact_time(self, cuts: set[int], tmp_path: Path) -> None:
        """It is out of reach once the clock has passed it by the window and the lateness."""
        hour = 3_600_000
        settings = small_settings(tmp_path, window=HOUR, allowed_lateness=2 * HOUR, threshold=1)
        first = [Document(filler(number), event_time_ms=NOON) for number in range(16)]
        late = Document(self.TEXT, event_time_ms=NOON)
        verdicts = []
        for passed_ms in (3 * hour - 1, 3 * hour):
            moved = [
                Document(filler(100 + number), event_time_ms=NOON + passed_ms)
                for number in range(14)
            ]
            documents = [*first, late, *moved, late]
            directory = settings.index.model_copy(update={"directory": tmp_path / str(passed_ms)})
            own = settings.model_copy(update={"index": directory})
            with open_index(own) as index:
                batches = cut(documents, cuts, own)
                verdicts.append(pass_through(index, batches, own)[-1].kept)
        assert verdicts == [False, True]

    def test_the_clock_advances_after_each_document(self, tmp_path: Path) -> None:
        """A document is judged before its own event time moves the clock, kept or duplicate."""
        settings = small_settings(tmp_path, window=HOUR, allowed_ahead=0 * HOUR, threshold=1)
        documents = [
            Document(filler(min(number, 20)), event_time_ms=NOON + number) for number in range(40)
        ]
        with open_index(settings) as index:
            batch = sketched(documents, settings)
            rule = Rule.from_settings(settings)
            judgement = resolve(batch, index.probe(batch.documents), rule, 0, index.clock)
        assert [verdict.kept for verdict in judgement.verdicts] == [True] * 21 + [False] * 19
        # The sixteenth document starts the clock at the third time; it trails by 14 documents.
        expected = [*range(NOON, NOON + 16), *range(NOON + 2, NOON + 7)]
        assert judgement.update.effective_times_ms.tolist() == expected
        assert Clock.from_state(judgement.update.clock).now_ms == NOON + 40 - 14

    def test_replays_do_not_move_the_clock(self, tmp_path: Path) -> None:
        """A position that was judged before does not count again."""
        settings = small_settings(tmp_path, window=HOUR)
        documents = [Document(filler(number), event_time_ms=NOON) for number in range(20)]
        with open_index(settings) as index:
            pass_through(index, [sketched(documents, settings)], settings)
            before = index.clock.state()
            again = [replace(document, event_time_ms=2 * NOON) for document in documents]
            pass_through(index, [sketched(again, settings)], settings)
            assert index.clock.state() == before

    def test_the_wall_clock_bounds_records(self, tmp_path: Path) -> None:
        """With a wall clock, later times count as now, and the clock of the stream bounds none."""
        settings = small_settings(tmp_path, window=HOUR, threshold=1)
        hour = 3_600_000
        times = [NOON - 9 * hour] * 16 + [NOON, NOON + hour, NOON + hour + 1, 2 * NOON]
        documents = [
            Document(filler(number), event_time_ms=time) for number, time in enumerate(times)
        ]
        with open_index(settings) as index:
            batch = sketched(documents, settings)
            rule = Rule.from_settings(settings)
            candidates = index.probe(batch.documents)
            update = resolve(batch, candidates, rule, 0, index.clock, latest_ms=NOON).update
        believed = [*times[:18], NOON, NOON]
        assert update.effective_times_ms.tolist() == believed
        assert update.documents.event_times_ms.tolist() == believed

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
            assert index.clock.state() == judgement.update.clock != before
        with open_index(settings) as index:
            assert index.clock.state() == judgement.update.clock
