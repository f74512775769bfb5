"""The progress of a lane as a record."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from streamdedup.kafka.dead_letter_limit import OutcomeTally, is_by_worker
from streamdedup.kafka.offsets import LaneProgress, Metadata, is_by_edge

METADATA = Metadata(OutcomeTally(judged=70, run=2, window=3), verdicts=91, first_partitions=4)


def test_progress_is_read_as_it_was_written() -> None:
    """It goes to the partition of the lane, without a key."""
    progress = LaneProgress(123, b"0123456789abcdef", METADATA)
    written = progress.messages("verdicts", 5)
    assert (written.topic, written.keys, written.source_partitions.tolist()) == (
        "verdicts",
        [None],
        [5],
    )
    message = SimpleNamespace(headers=written.headers[0], value=written.values[0])
    assert LaneProgress.read(message) == progress


@pytest.mark.parametrize(
    "headers",
    [[], [("other", b"1")], [("streamdedup-progress", None)], [("streamdedup-progress", b"-1")]],
)
def test_other_records_are_not_progress(headers: list[tuple[str, bytes | None]]) -> None:
    """Verdicts have no such header; those of another program are not trusted."""
    assert LaneProgress.read(SimpleNamespace(headers=headers, value=None)) is None


@pytest.mark.parametrize(
    ("text", "by_worker", "by_edge"),
    [
        (METADATA.tally.note(), True, False),
        (METADATA.encoded(), False, True),
        ("", False, False),
        ("of another program", False, False),
    ],
)
def test_who_has_committed(text: str, by_worker: bool, by_edge: bool) -> None:
    """An edge adds to the metadata of a worker; an operator has none."""
    assert (is_by_worker(text), is_by_edge(text)) == (by_worker, by_edge)
