"""Records to a sketched batch: rows, rejections, blank texts and ranges."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.engine.prepare import Preparer, source_ranges
from streamdedup.model import NO_TIMESTAMP, Document, Position, Record, Rejection, SourceRange
from streamdedup.settings.load import load_settings
from streamdedup.sketch.texts import NOT_STORED, unpack_text
from tests.support.builders import examples

UNSEEN = Rejection("sketch", "ProcessDied", "a process died")


def records(*values: bytes | None) -> list[Record]:
    """Return records at consecutive offsets."""
    return [Record(Position("t", 0, offset), value) for offset, value in enumerate(values)]


def test_rows() -> None:
    """Each document has the row of its record, and every other record has its rejection."""
    batch = Preparer(load_settings()).prepare_records(
        records(b'{"text":"a","id":"x"}', b"{}", None, b'{"text":"b"}', b'{"text":"c"}'),
        {4: UNSEEN},
    )
    assert batch.rows.tolist() == [0, 3]
    assert batch.documents.ids == ["x", "t:0:3"]
    assert [position.offset for position in batch.documents.positions] == [0, 3]
    assert {row: rejection.reason for row, rejection in batch.rejections.items()} == {
        1: "MissingText",
        2: "NullValue",
        4: "ProcessDied",
    }
    assert batch.ranges == (SourceRange("t", 0, 0, 5),)
    assert [position.offset for position in batch.positions] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("policy", "rows"), [("keep", [0, 1, 2]), ("reject", [1])])
def test_empty_text(policy: str, rows: list[int]) -> None:
    """Documents without text are blank or rejected, according to the settings."""
    preparer = Preparer(load_settings(dedup={"empty_text": policy}))
    batch = preparer.prepare_records(
        records(b'{"text":""}', b'{"text":"a"}', b'{"text":" \\u200b"}')
    )
    assert batch.rows.tolist() == rows
    assert batch.documents.sketches.signatures.shape[0] == len(rows)
    assert batch.blank == ({0, 2} if policy == "keep" else frozenset())
    reasons = [rejection.reason for rejection in batch.rejections.values()]
    assert reasons == ([] if policy == "keep" else ["EmptyText"] * 2)


def test_texts_are_packed_only_for_exact_verification() -> None:
    """Without it the columns have no texts."""
    lines = records(b'{"text":"One  STORY"}', b"{}", b'{"text":""}')
    assert Preparer(load_settings()).prepare_records(lines).documents.texts == ()
    exact = load_settings(dedup={"verify": "exact"})
    texts = Preparer(exact).prepare_records(lines).documents.texts
    assert [unpack_text(text) for text in texts] == ["one story", ""]


def test_a_text_without_room_in_a_changelog_entry_is_not_stored() -> None:
    """The document is still judged."""
    digits = random.Random(1)
    text = "".join(str(digits.randrange(10)) for _ in range(5000))
    settings = load_settings(dedup={"verify": "exact"}, batch={"changelog_entry_bytes": 4000})
    line = msgspec.json.encode({"text": text})
    batch = Preparer(settings).prepare_records(records(b'{"text":"short"}', line))
    assert [text == NOT_STORED for text in batch.documents.texts] == [False, True]


def test_empty_batches() -> None:
    """A batch without records, and one without documents, have empty columns."""
    preparer = Preparer(load_settings())
    assert len(preparer.prepare_records([]).documents) == 0
    refused = preparer.prepare_records(records(b"[]"))
    assert len(refused.documents) == 0
    assert refused.documents.take([]).sketches.band_keys.shape[1] > 1


def test_documents_keep_the_limits() -> None:
    """Documents from the Python API are checked like decoded records."""
    preparer = Preparer(load_settings(limits={"text_bytes": 10, "id_bytes": 5}))
    documents = [
        Document("fits", "id"),
        Document("x" * 11),
        Document("a", "123456"),
        Document("a", "\ud800"),
    ]
    positions = [Position("t", 0, offset) for offset in range(4)]
    batch = preparer.prepare_documents(documents, positions)
    assert batch.rows.tolist() == [0]
    reasons = [batch.rejections[row].reason for row in (1, 2, 3)]
    assert reasons == ["TextTooLarge", "IdTooLarge", "IdNotUnicode"]


RANGES = [
    pytest.param([], [], id="nothing"),
    pytest.param([("t", 0, 5)], [("t", 0, 5, 6)], id="one"),
    pytest.param([("t", 0, 5), ("t", 0, 9)], [("t", 0, 5, 10)], id="gap"),
    pytest.param(
        [("t", 0, 1), ("t", 1, 1), ("t", 0, 2)],
        [("t", 0, 1, 2), ("t", 1, 1, 2), ("t", 0, 2, 3)],
        id="interleaved",
    ),
    pytest.param([("t", 0, 5), ("t", 0, 3)], [("t", 0, 5, 6), ("t", 0, 3, 4)], id="backwards"),
    pytest.param([("t", 0, 5), ("t", 0, 5)], [("t", 0, 5, 6), ("t", 0, 5, 6)], id="again"),
    pytest.param([("t", 0, 5), ("u", 0, 6)], [("t", 0, 5, 6), ("u", 0, 6, 7)], id="topics"),
]


@pytest.mark.parametrize(("positions", "ranges"), RANGES)
def test_source_ranges(
    positions: list[tuple[str, int, int]], ranges: list[tuple[str, int, int, int]]
) -> None:
    """Runs of ascending offsets of one partition become one range each."""
    expected = tuple(SourceRange(*fields) for fields in ranges)
    assert source_ranges([Position(*fields) for fields in positions]) == expected


@given(
    positions=st.lists(
        st.builds(Position, st.just("t"), st.integers(0, 1), st.integers(0, 9)), max_size=12
    )
)
@examples(100)
def test_ranges_cover_every_position(positions: list[Position]) -> None:
    """Every position is in a range, and the last range ends after the last position."""
    ranges = source_ranges(positions)
    for topic, partition, offset in positions:
        same = [one for one in ranges if one[:2] == (topic, partition)]
        assert any(one.start <= offset < one.next_offset for one in same)
    for partition in (0, 1):
        offsets = [position.offset for position in positions if position.partition == partition]
        ends = [one.next_offset for one in ranges if one.partition == partition]
        assert max(ends, default=0) == max((offset + 1 for offset in offsets), default=0)


@given(values=st.lists(st.binary(max_size=30), max_size=8))
@examples(100)
def test_any_bytes(values: list[bytes]) -> None:
    """For any bytes, every record becomes a document or a rejection, never both (L2)."""
    batch = _PREPARER.prepare_records(records(*values))
    assert sorted([*batch.rows, *batch.rejections]) == list(range(len(values)))


_PREPARER = Preparer(load_settings(records={"format": "text"}))


@pytest.mark.parametrize(
    ("index", "believed"),
    [
        ({"window": "7d"}, [-7, 7, 0, 0, 0]),
        ({"window": "7d", "allowed_lateness": "1h", "allowed_ahead": "8d"}, [0, 7, 0, 8, 0]),
        ({"window": "7d", "clock": "event"}, [-7, 7, -8, 8, 0]),
        ({}, [-7, 7, -8, 8, 0]),
    ],
    ids=["as-the-window", "own-allowances", "by-event", "no-window"],
)
def test_event_times_are_compared_with_the_timestamp(
    index: dict[str, str], believed: list[int]
) -> None:
    """An event time that is too far from the record's timestamp is replaced by it."""
    noon, day = 1_700_000_000_000, 86_400_000
    values = [b'{"text":"a","at":%d}' % (noon + days * day) for days in (-7, 7, -8, 8)]
    dated = [
        Record(Position("t", 0, offset), value, timestamp_ms=noon)
        for offset, value in enumerate([*values, b'{"text":"a"}'])
    ]
    settings = load_settings(index=index, records={"event_time_field": "at"})
    found = Preparer(settings).prepare_records(dated).documents.event_times_ms
    assert ((found - noon) / day).tolist() == believed


def test_lines_of_files_keep_their_event_time() -> None:
    """A record without a timestamp has the time of its field."""
    settings = load_settings(index={"window": "7d"}, records={"event_time_field": "at"})
    found = Preparer(settings).prepare_records(records(b'{"text":"a","at":5}', b'{"text":"a"}'))
    assert found.documents.event_times_ms.tolist() == [5000, NO_TIMESTAMP]
