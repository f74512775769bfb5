"""Dead letters read back, and the headers of replayed and reinstated records."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.formats.corrections import (
    REINSTATED,
    Copy,
    count_replays,
    read_dead_letter,
    reinstated_headers,
    replay_headers,
)
from streamdedup.formats.outputs import (
    ERROR_PREFIX,
    HEADER_PREFIX,
    OutputRule,
    clean_headers,
    dead_letter_headers,
)
from streamdedup.model import Outcome, Position, Record, Rejection, Verdict
from streamdedup.settings.sections import HeaderForm
from tests.support.builders import examples

SOURCE = Position("documents", 3, 42)
STORED = Position("dead-letters", 0, 7)
WHY = Rejection("decode", "MissingText", "there is no text: \ud800")
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["h", ERROR_PREFIX + "topic", ERROR_PREFIX + "value.omitted", HEADER_PREFIX + "replays"]
        ),
        st.none() | st.binary(max_size=4),
    ),
    max_size=6,
)


def dead_letter(original: Record, *, omitted: bool = False) -> Record:
    """Return the record of the dead-letter topic."""
    headers = tuple(dead_letter_headers(original, WHY, omitted=omitted))
    return Record(STORED, original.value, original.key, headers, original.timestamp_ms)


@examples(200)
@given(headers=HEADERS, omitted=st.booleans())
def test_a_dead_letter_gives_the_original_back(
    headers: list[tuple[str, bytes | None]], omitted: bool
) -> None:
    """Also if it has headers of the same names as ours."""
    original = Record(SOURCE, b"value", b"key", tuple(headers), 5)
    letter = read_dead_letter(dead_letter(original, omitted=omitted))
    assert letter is not None
    assert letter.original == original
    assert (letter.stage, letter.reason, letter.omitted) == ("decode", "MissingText", omitted)
    assert letter.message == "there is no text: \\ud800"


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("h", b"v"),),
        ((ERROR_PREFIX + "topic", b"t"),),
        ((ERROR_PREFIX + "topic", b"t"), (ERROR_PREFIX + "partition", b"x")),
        (*dead_letter_headers(Record(SOURCE, b""), WHY, omitted=False)[:4],),
    ],
)
def test_records_of_other_programs_are_ignored(
    headers: tuple[tuple[str, bytes | None], ...],
) -> None:
    """Other programs may write to the topic."""
    assert read_dead_letter(Record(STORED, b"value", headers=headers)) is None


def copies(*originals: Record) -> dict[Position, Copy]:
    """Return what the dead letters of these records show, the last one first."""
    found = {}
    for original in reversed(originals):
        letter = read_dead_letter(dead_letter(original))
        assert letter is not None
        found[original.position] = letter.copy
    return found


def at(offset: int, *headers: tuple[str, bytes | None], value: bytes = b"value") -> Record:
    """Return a source record."""
    return Record(SOURCE._replace(offset=offset), value, b"key", headers)


OWN = ("h", b"v")
CLAIM = (HEADER_PREFIX + "replayed-from", b"documents:3:42"), (HEADER_PREFIX + "replays", b"3")


def test_replays_are_counted() -> None:
    """Each replay replaces the headers of the one before it, and names the last position."""
    records = [at(42, OWN)]
    for number in range(3):
        counts = count_replays(copies(*records))
        assert list(counts.values()) == list(range(number + 1))
        headers = replay_headers(records[-1], number)
        assert headers == [
            OWN,
            (HEADER_PREFIX + "replayed-from", f"documents:3:{42 + number}".encode()),
            (HEADER_PREFIX + "replays", str(number + 1).encode()),
        ]
        records.append(at(43 + number, *headers))


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(at(43, OWN, *CLAIM, value=b"another"), id="another value"),
        pytest.param(at(43, *CLAIM), id="other headers"),
        pytest.param(at(43, *CLAIM, OWN), id="the headers are not the last ones"),
        pytest.param(at(43, OWN, *reversed(CLAIM)), id="the headers are in another order"),
        pytest.param(at(41, OWN, *CLAIM), id="an earlier record"),
        pytest.param(
            Record(Position("documents", 2, 43), b"value", b"key", (OWN, *CLAIM)),
            id="another partition",
        ),
        pytest.param(
            at(43, OWN, ("streamdedup-replayed-from", b"upstream:3:42"), CLAIM[1]),
            id="another streamdedup upstream",
        ),
        *(
            pytest.param(at(43, OWN, (CLAIM[0][0], name), CLAIM[1]), id=f"invalid: {name!r}")
            for name in (None, b"", b"x", b"\xff", b"documents:3:43", b"documents:3:9")
        ),
    ],
)
def test_only_a_copy_is_a_replay(forged: Record) -> None:
    """Any producer can send headers with our names; they hide no dead letter."""
    found = count_replays(copies(at(42, OWN), forged))
    assert found == {SOURCE: 0, forged.position: 0}
    assert replay_headers(forged, 0)[:-2] == list(forged.headers)


@pytest.mark.parametrize("form", get_args(HeaderForm))
def test_reinstated_records_have_the_headers_of_kept_ones(form: HeaderForm) -> None:
    """And the time after them, in each form."""
    record = Record(SOURCE, b"", None, (("h", b"v"),))
    rule = OutputRule(0.8, "f" * 16, include_value=False, headers=form)
    kept = [*record.headers, *clean_headers(Verdict(Outcome.KEPT, "id", SOURCE), rule)]
    headers = reinstated_headers(record, "id", "2026-01-01", rule)
    assert headers == [*kept, (REINSTATED, b"2026-01-01")]


def test_omitted_values_of_other_lengths_are_other_records() -> None:
    """Of a value that was too large, its length is all that a dead letter has."""
    contents = set()
    for length in (5, 6, 6):
        record = dead_letter(Record(SOURCE, b"x" * length, b"key", (), 5), omitted=True)
        letter = read_dead_letter(replace(record, value=None))
        assert letter is not None
        contents.add(letter.copy.content)
    assert len(contents) == 2
