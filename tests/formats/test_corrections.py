"""Dead letters read back, and the headers of replayed and reinstated records."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.formats.corrections import (
    REINSTATED,
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


def test_replays_are_counted() -> None:
    """Each replay replaces the headers of the one before it, and names the last position."""
    original = Record(SOURCE, b"value", b"key", (("h", b"v"),))
    for number in range(3):
        letter = read_dead_letter(dead_letter(original))
        assert letter is not None
        assert letter.replays == number
        assert (letter.replayed_from is None) == (number == 0)
        headers = replay_headers(letter.original, letter.replays)
        assert headers == [
            ("h", b"v"),
            (HEADER_PREFIX + "replayed-from", f"documents:3:{42 + number}".encode()),
            (HEADER_PREFIX + "replays", str(number + 1).encode()),
        ]
        original = Record(Position("documents", 3, 43 + number), b"value", b"key", tuple(headers))


@pytest.mark.parametrize("value", [None, b"", b"x", b"\xff"])
def test_invalid_counts_of_replays_are_ignored(value: bytes | None) -> None:
    """A producer may have sent headers with our names."""
    for name in ("replays", "replayed-from"):
        good = {"replays": b"2", "replayed-from": b"t:0:1"} | {name: value}
        headers = tuple((HEADER_PREFIX + key, content) for key, content in good.items())
        letter = read_dead_letter(dead_letter(Record(SOURCE, b"", None, headers)))
        assert letter is not None
        assert (letter.replays, letter.replayed_from) == (0, None)


@pytest.mark.parametrize("form", get_args(HeaderForm))
def test_reinstated_records_have_the_headers_of_kept_ones(form: HeaderForm) -> None:
    """And the time after them, in each form."""
    record = Record(SOURCE, b"", None, (("h", b"v"),))
    rule = OutputRule(0.8, "f" * 16, include_value=False, headers=form)
    kept = [*record.headers, *clean_headers(Verdict(Outcome.KEPT, "id", SOURCE), rule)]
    headers = reinstated_headers(record, "id", "2026-01-01", rule)
    assert headers == [*kept, (REINSTATED, b"2026-01-01")]
