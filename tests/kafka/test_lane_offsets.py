"""Where an edge continues to read verdicts."""

from __future__ import annotations

import pytest

from streamdedup.kafka.dead_letter_limit import Tally
from streamdedup.kafka.lane_offsets import lane_note, next_verdict, read_verdict_offset


@pytest.mark.parametrize("offset", [0, 7, 2**40])
def test_a_note_holds_the_verdict_offset(offset: int) -> None:
    """The tally of dead letters, which is in the same note, does not change it."""
    assert read_verdict_offset(lane_note(Tally(), offset)) == offset


@pytest.mark.parametrize(
    "note", ["", "verdicts-1", "verdicts-1 ", "verdicts-1 -3", "verdicts-1 x", Tally().note()]
)
def test_a_note_without_a_verdict_offset(note: str) -> None:
    """Mode single writes such notes, and another program may write any."""
    assert read_verdict_offset(note) is None


@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        pytest.param(5, 5, id="inside the topic"),
        pytest.param(3, 3, id="first record"),
        pytest.param(9, 9, id="everything was read"),
        pytest.param(10, 3, id="beyond the end: the topic was recreated"),
        pytest.param(2, 3, id="the record has expired"),
    ],
)
def test_the_verdict_offset_to_continue_at(committed: int, expected: int) -> None:
    """A topic that was recreated is read from its start, and nothing is skipped otherwise."""
    assert next_verdict(lane_note(Tally(), committed), first=3, end=9) == expected


def test_without_a_verdict_offset_the_topic_is_read_from_its_start() -> None:
    """The mode was single before."""
    assert next_verdict(Tally().note(), first=3, end=9) == 3
