"""Verdicts of the judge: an edge reads what was decided, whole or in parts."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.batches import SketchedRange
from streamdedup.columns import Positions
from streamdedup.errors import TopicError
from streamdedup.formats import verdicts
from streamdedup.formats.verdicts import JudgedRange, ReadVerdicts, VerdictEncoder
from streamdedup.model import (
    NO_TIMESTAMP,
    Match,
    Outcome,
    Position,
    Rejection,
    SourceRange,
    Verdict,
)
from tests.support.builders import TOPIC, examples, verdicts_of

NO_LIMIT = 2**40
REJECTION = Rejection("sketch", "EmptyText", "the text is empty")
TIMES = st.sampled_from([NO_TIMESTAMP, 0, 1_700_000_000_000])
SIMILARITIES = st.floats(0, 1)


@st.composite
def judged(draw: st.DrawFn) -> list[Verdict]:
    """Generate verdicts on records of one partition, with gaps."""
    offsets = sorted(draw(st.sets(st.integers(0, 60), max_size=20)))
    found = []
    for offset in offsets:
        position = Position(TOPIC, 0, offset)
        outcome = draw(st.sampled_from(Outcome))
        if outcome is Outcome.REJECTED:
            found.append(Verdict(outcome, "", position, rejection=REJECTION))
            continue
        time_ms = draw(TIMES)
        matches = tuple(
            Match(
                f"m\u00e4tch-{offset}-{number}",
                Position(draw(st.sampled_from(["old", TOPIC])), number, offset),
                draw(SIMILARITIES),
                None if time_ms == NO_TIMESTAMP else float(number),
                draw(st.none() | SIMILARITIES),
            )
            for number in range(draw(st.integers(1, 4)) if outcome is Outcome.DUPLICATE else 0)
        )
        found.append(Verdict(outcome, f"id-{offset}", position, time_ms, matches))
    return found


def encoded(found: list[Verdict], most_bytes: int, *, keeps_ids: bool) -> list[bytes]:
    """Return the values that a judge writes."""
    column = verdicts_of([one for one in found if one.rejection is None])
    sketched = SketchedRange(
        SourceRange(TOPIC, 0, 0, 100),
        column.documents,
        frozenset(),
        {one.position.offset: one.rejection for one in found if one.rejection is not None},
    )
    return VerdictEncoder(column, most_bytes, keeps_ids=keeps_ids).encode(sketched, 0)


def seen(verdict: Verdict, *, keeps_ids: bool) -> Verdict:
    """Return what an edge knows of a verdict: of a kept document its id, if at all."""
    if verdict.kept:
        return Verdict(Outcome.KEPT, verdict.id if keeps_ids else "", verdict.position)
    return verdict


@given(found=judged(), most_bytes=st.integers(1, 3000) | st.just(NO_LIMIT), keeps_ids=st.booleans())
@examples(300)
def test_an_edge_reads_what_was_decided(
    found: list[Verdict], most_bytes: int, keeps_ids: bool
) -> None:
    """All matches with their figures, whatever the size of a value."""
    values = encoded(found, most_bytes, keeps_ids=keeps_ids)
    ranges = [verdicts.decode(value) for value in values]
    assert [one.source.start for one in ranges] == [0, *(one.source.next_offset for one in ranges)][
        :-1
    ]
    assert ranges[-1].source.next_offset == 100
    read = ReadVerdicts(Positions.of([one.position for one in found]), ranges)
    assert list(read) == [seen(one, keeps_ids=keeps_ids) for one in found]
    assert list(read) == list(read)
    assert read.tally() == {
        outcome: sum(one.outcome is outcome for one in found) for outcome in Outcome
    }
    assert set(read.rejections.values()) <= {REJECTION}


@pytest.mark.parametrize("count", [2, 3])
def test_a_value_holds_one_record_if_more_are_too_large(count: int) -> None:
    """So its size is bounded, whatever the number of records."""
    found = [
        Verdict(Outcome.KEPT, f"id-{offset}", Position(TOPIC, 0, offset)) for offset in range(count)
    ]
    values = encoded(found, 1, keeps_ids=True)
    assert [list(verdicts.decode(value).kept_ids) for value in values] == [
        [offset] for offset in range(count)
    ]


def value_of(**changes: object) -> bytes:
    """Return a value with other fields."""
    match = Match("a", Position(TOPIC, 0, 1), 0.9, None)
    verdict = Verdict(Outcome.DUPLICATE, "b", Position(TOPIC, 0, 2), 0, (match,))
    [value] = encoded([verdict], NO_LIMIT, keeps_ids=False)
    return msgspec.msgpack.encode(msgspec.msgpack.decode(value) | changes)


def test_the_value_of_the_examples_is_read() -> None:
    """The changes of the next test are what makes the difference."""
    assert isinstance(verdicts.decode(value_of()), JudgedRange)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"version": 99}, id="another release"),
        pytest.param({"offsets": b""}, id="no offsets"),
        pytest.param({"match_counts": np.array([2], "<u2").tobytes()}, id="too few matches"),
        pytest.param({"match_topics": []}, id="no topic"),
        pytest.param({"estimates": b"1234"}, id="half an estimate"),
        pytest.param({"kept_offsets": b"12345678"}, id="an offset without an id"),
        pytest.param({"rejections": {1: "text"}}, id="half a rejection"),
        pytest.param({"unknown": 1}, id="an unknown field"),
    ],
)
def test_damage_is_an_error_of_one_line(changes: dict[str, object]) -> None:
    """Nothing is written from it."""
    with pytest.raises(TopicError) as caught:
        verdicts.decode(value_of(**changes))
    assert "\n" not in str(caught.value)


@given(data=st.binary(max_size=60))
@examples(200)
def test_garbage_is_an_error_of_one_line(data: bytes) -> None:
    """So are the bytes of another program."""
    with pytest.raises(TopicError):
        verdicts.decode(data)
