"""Sketched ranges: round trip, parts, other versions and parameters, and garbage."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.batches import SketchedRange
from streamdedup.columns import Blobs
from streamdedup.errors import IndexMismatch, TopicError
from streamdedup.formats import sketches
from streamdedup.model import Rejection, SourceRange
from tests.support.builders import TOPIC, columns, examples

FINGERPRINT = "0123456789abcdef"
NO_LIMIT = 2**40
REJECTION = Rejection("decode", "BadJson", "it is not JSON\nat all")


@st.composite
def sketched_ranges(draw: st.DrawFn) -> SketchedRange:
    """Generate ranges with gaps, refused records and blank texts."""
    start = draw(st.integers(0, 1000))
    kinds = draw(st.lists(st.sampled_from("dddrb-"), max_size=20))
    offsets = [start + row for row, kind in enumerate(kinds) if kind in "db"]
    documents = columns([[offset] * 9 for offset in offsets])
    documents.positions.offsets[:] = offsets
    if draw(st.booleans()):
        texts = Blobs.of([b"t" * (offset % 7) for offset in offsets])
        documents = replace(documents, texts=texts)
    kept = [kind for kind in kinds if kind in "db"]
    return SketchedRange(
        SourceRange(TOPIC, 0, start, start + len(kinds) + 1),
        documents,
        frozenset(row for row, kind in enumerate(kept) if kind == "b"),
        {start + row: REJECTION for row, kind in enumerate(kinds) if kind == "r"},
    )


def plain(sketched: SketchedRange) -> list[object]:
    """Return what a range says of each record, in a form that can be compared."""
    documents = sketched.documents
    rows: list[object] = [
        (
            position.offset,
            documents.ids[row],
            documents.sketches.signatures[row].tolist(),
            documents.sketches.band_keys[row].tolist(),
            documents.texts[row] if len(documents.texts) else None,
            row in sketched.blank,
        )
        for row, position in enumerate(documents.positions)
    ]
    return [*rows, *sorted(sketched.rejections.items())]


@given(sketched=sketched_ranges())
@examples(200)
def test_a_range_survives_the_round_trip(sketched: SketchedRange) -> None:
    """In one value if there is no limit."""
    [value] = sketches.encode(sketched, FINGERPRINT, NO_LIMIT)
    found = sketches.decode(value, FINGERPRINT)
    assert found.source == sketched.source
    assert plain(found) == plain(sketched)
    assert len(found) == len(sketched)


@given(sketched=sketched_ranges(), most_bytes=st.integers(1, 4000))
@examples(200)
def test_parts_cover_the_range(sketched: SketchedRange, most_bytes: int) -> None:
    """They follow one another without gaps, and each fits unless it has a single record."""
    values = sketches.encode(sketched, FINGERPRINT, most_bytes)
    parts = [sketches.decode(value, FINGERPRINT) for value in values]
    ends = [sketched.source.start, *(part.source.next_offset for part in parts)]
    assert [part.source.start for part in parts] == ends[:-1]
    assert ends[-1] == sketched.source.next_offset
    assert sorted(map(repr, (row for part in parts for row in plain(part)))) == sorted(
        map(repr, plain(sketched))
    )
    for value, part in zip(values, parts, strict=True):
        assert len(value) <= most_bytes or len(part) <= 1


@given(sketched=sketched_ranges(), cut=st.integers(0, 30))
@examples(100)
def test_two_parts_make_the_range(sketched: SketchedRange, cut: int) -> None:
    """Wherever it is cut."""
    _, _, start, stop = sketched.source
    middle = min(start + cut, stop)
    both = [*plain(sketched.part(start, middle)), *plain(sketched.part(middle, stop))]
    assert sorted(map(repr, both)) == sorted(map(repr, plain(sketched)))


def value_of(**changes: object) -> bytes:
    """Return a value with other fields."""
    sketched = SketchedRange(
        SourceRange(TOPIC, 0, 5, 9), columns([[1] * 9] * 3, 5), frozenset(), {8: REJECTION}
    )
    [value] = sketches.encode(sketched, FINGERPRINT, NO_LIMIT)
    return msgspec.msgpack.encode(msgspec.msgpack.decode(value) | changes)


def test_other_parameters_and_releases_are_refused() -> None:
    """The message says what to do."""
    with pytest.raises(IndexMismatch, match="give both the same settings"):
        sketches.decode(value_of(), "another")
    with pytest.raises(IndexMismatch, match="version 99, this release reads 1"):
        sketches.decode(value_of(version=99), FINGERPRINT)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"offsets": b"12345678"}, id="too few offsets"),
        pytest.param({"source": [TOPIC, 0, 6, 9]}, id="an offset before the range"),
        pytest.param({"source": [TOPIC, 0, 5, 7]}, id="an offset behind the range"),
        pytest.param({"offsets": np.array([5, 7, 6]).tobytes()}, id="offsets in disorder"),
        pytest.param({"source": [TOPIC, -1, 5, 9]}, id="no partition"),
        pytest.param({"blank": b"\x03\x00\x00\x00"}, id="a blank row that does not exist"),
        pytest.param({"rejections": {9: ["a", "b", "c"]}}, id="a rejection behind the range"),
        pytest.param({"texts": [b""]}, id="too few texts"),
        pytest.param({"id_ends": b"\xff\xff\xff\xff" * 3}, id="ids that do not fill their bytes"),
        pytest.param({"signatures": b"12345"}, id="signatures of no width"),
        pytest.param({"rejections": {8: ["decode"]}}, id="half a rejection"),
        pytest.param({"unknown": 1}, id="an unknown field"),
    ],
)
def test_damage_is_an_error_of_one_line(changes: dict[str, object]) -> None:
    """Nothing is judged from it."""
    with pytest.raises(TopicError) as caught:
        sketches.decode(value_of(**changes), FINGERPRINT)
    assert "\n" not in str(caught.value)


@given(data=st.binary(max_size=60))
@examples(200)
def test_garbage_is_an_error_of_one_line(data: bytes) -> None:
    """So are the bytes of another program."""
    with pytest.raises((TopicError, IndexMismatch)):
        sketches.decode(data, FINGERPRINT)
