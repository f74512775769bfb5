"""Where an edge continues, and the metadata of the offsets that it commits."""

from __future__ import annotations

import pytest

from streamdedup.kafka.dead_letter_limit import OutcomeTally, latest_tally
from streamdedup.kafka.offsets import Metadata, next_verdict

TALLY = OutcomeTally(7, 2, 3)


def test_metadata_is_read_as_it_was_written() -> None:
    """It has the tally, which a single worker reads too, and where to go on."""
    text = Metadata(TALLY, 42, 12).encoded()
    assert text == "dead-letters-1 7 2 3 verdicts-1 42 partitions-1 12"
    assert Metadata.read(text) == Metadata(TALLY, 42, 12)
    assert latest_tally([text]) == TALLY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Metadata()),
        ("another program", Metadata()),
        (TALLY.note(), Metadata(TALLY)),
        (f"{TALLY.note()} verdicts-1 42", Metadata(TALLY, 42)),
        ("verdicts-1", Metadata()),
        ("verdicts-1 x partitions-1 -1", Metadata()),
        ("verdicts-2 42 partitions-2 3", Metadata()),
        ("verdicts-1 5 partitions-1", Metadata(verdicts=5)),
    ],
)
def test_metadata_of_others_has_fewer_parts(text: str, expected: Metadata) -> None:
    """A single worker writes only the tally; other programs and versions write anything."""
    assert Metadata.read(text) == expected


@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        pytest.param(5, 5, id="inside the topic"),
        pytest.param(3, 3, id="first record"),
        pytest.param(9, 9, id="everything was read"),
        pytest.param(10, 3, id="beyond the end: the topic was recreated"),
        pytest.param(2, 3, id="the record has expired"),
        pytest.param(None, 3, id="the mode was single before"),
    ],
)
def test_the_verdict_offset_to_continue_at(committed: int | None, expected: int) -> None:
    """A topic that was recreated is read from its start, and nothing is skipped otherwise."""
    assert next_verdict(committed, first=3, end=9) == expected
