"""Limits on dead letters: runs, ratios, the tally between batches, and the message."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.columns import Positions
from streamdedup.errors import TooManyDeadLetters
from streamdedup.kafka.dead_letter_limit import WINDOW, DeadLetterLimit, OutcomeTally, latest_tally
from streamdedup.model import Position, Rejection
from streamdedup.settings.sections import LimitSettings
from tests.support.builders import examples

UNLIMITED = DeadLetterLimit(0, 0.0)


def batch_of(outcomes: str, reason: str = "MissingText") -> tuple[Positions, dict[int, Rejection]]:
    """Return a record for each letter: ``d`` is a dead letter, ``k`` a kept document."""
    rejection = Rejection("decode", reason, "secret")
    return (
        Positions.of([Position("documents", 1, offset) for offset in range(len(outcomes))]),
        {row: rejection for row, outcome in enumerate(outcomes) if outcome == "d"},
    )


@pytest.mark.parametrize(
    ("run", "ratio", "before", "batch", "stops"),
    [
        pytest.param(3, 0, "", "ddkdd", False, id="shorter runs"),
        pytest.param(3, 0, "", "kddd", True, id="a run"),
        pytest.param(3, 0, "dd", "d", True, id="a run over two batches"),
        pytest.param(3, 0, "dd", "kd", False, id="a run that ends with the batch"),
        pytest.param(3, 0, "", "dddk", True, id="a run that ends within the batch"),
        pytest.param(0, 0, "", "d" * 3 * WINDOW, False, id="no limit"),
        pytest.param(0, 0.5, "", "d" * (WINDOW - 1), False, id="too few records for a ratio"),
        pytest.param(0, 0.5, "", "kd" * (WINDOW // 2), True, id="the ratio"),
        pytest.param(0, 0.5, "d" * 499, "k" * 501, False, id="below the ratio"),
        pytest.param(0, 0.5, "d" * 499 + "k" * 501, "d", False, id="an old one leaves"),
        pytest.param(0, 0.5, "k" * 501 + "d" * 499, "d", True, id="a good one leaves"),
        pytest.param(0, 0.07, "k" * 930, "d" * 70, True, id="a ratio that has no exact float"),
        pytest.param(0, 1.0, "k", "d" * (WINDOW - 1), False, id="all but one"),
        pytest.param(0, 1.0, "k", "d" * WINDOW, True, id="all"),
    ],
)
def test_a_limit_stops_the_batch_that_reaches_it(
    run: int, ratio: float, before: str, batch: str, stops: bool
) -> None:
    """Runs and windows continue from one batch to the next."""
    limit = DeadLetterLimit(run, ratio)
    tally = limit.after(OutcomeTally(), *batch_of(before))
    if stops:
        with pytest.raises(TooManyDeadLetters):
            limit.after(tally, *batch_of(batch))
    else:
        assert limit.after(tally, *batch_of(batch)).judged == len(before) + len(batch)


def test_tombstones_do_not_count() -> None:
    """A compacted source topic may hold any number of them."""
    limit = DeadLetterLimit(3, 0.5)
    tally = limit.after(OutcomeTally(), *batch_of("d" * 2 * WINDOW, reason="NullValue"))
    assert tally == OutcomeTally()


@examples(200)
@given(
    outcomes=st.text("dk", max_size=60),
    cuts=st.lists(st.integers(0, 60)),
    run=st.integers(0, 6),
)
def test_batches_do_not_matter(outcomes: str, cuts: list[int], run: int) -> None:
    """Every split into batches has the same tally, and stops if the whole does."""
    limit = DeadLetterLimit(run, 0.5)
    bounds = sorted({0, len(outcomes), *(cut for cut in cuts if cut < len(outcomes))})
    parts = [outcomes[start:end] for start, end in pairwise(bounds)]
    if run and "d" * run in outcomes:
        with pytest.raises(TooManyDeadLetters):
            _in_parts(limit, parts)
    else:
        tally = _in_parts(limit, parts)
        assert tally == UNLIMITED.after(OutcomeTally(), *batch_of(outcomes))
        assert tally.run == len(outcomes) - len(outcomes.rstrip("d"))
        assert tally.window == int("0" + outcomes.replace("d", "1").replace("k", "0"), 2)


def _in_parts(limit: DeadLetterLimit, parts: list[str]) -> OutcomeTally:
    tally = OutcomeTally()
    for part in parts:
        # As after a restart in between.
        tally = latest_tally(["", limit.after(tally, *batch_of(part)).note()])
    return tally


def test_the_message_explains_the_stop() -> None:
    """It has the setting, the counts, three examples and the fix, and no contents of records."""
    with pytest.raises(TooManyDeadLetters) as caught:
        DeadLetterLimit(4, 0.5).after(OutcomeTally(), *batch_of("kdkdddd"))
    message = str(caught.value)
    assert message == (
        "4 records in a row became dead letters (limits.dead_letter_run 4); in the last batch of "
        "7: MissingText 5; first: documents:1:1 MissingText, documents:1:3 MissingText, "
        "documents:1:4 MissingText; this batch is not committed; fix the settings records.* and "
        "limits.*, or the producer, or accept the dead letters: raise the limit, or set it to 0"
    )
    with pytest.raises(TooManyDeadLetters, match="compare the clock of this machine"):
        DeadLetterLimit(2, 0).after(OutcomeTally(), *batch_of("dd", "TimestampInFuture"))
    with pytest.raises(TooManyDeadLetters, match=r"600 of the last 1000 .*dead_letter_ratio 0\.6"):
        DeadLetterLimit(0, 0.6).after(OutcomeTally(), *batch_of("kkddd" * 200))


def test_both_limits_are_on_by_default() -> None:
    """A worker does not need to be told."""
    limit = DeadLetterLimit.from_settings(LimitSettings())
    assert limit.run > 0
    assert limit.ratio > 0


@pytest.mark.parametrize("note", ["", "text", "dead-letters-1 1 x 0", "dead-letters-2 9 9 1"])
def test_other_notes_are_ignored(note: str) -> None:
    """Other programs may commit offsets with metadata of their own."""
    tally = UNLIMITED.after(OutcomeTally(), *batch_of("kdd"))
    assert latest_tally([note]) == OutcomeTally()
    assert latest_tally([OutcomeTally().note(), tally.note(), note]) == tally
    assert latest_tally([]) == OutcomeTally()


def test_a_note_is_shorter_than_brokers_allow() -> None:
    """Brokers accept 4,096 bytes by default (offset.metadata.max.bytes)."""
    assert len(OutcomeTally(2**63, 2**63, (1 << WINDOW) - 1).note()) < 400
