"""Records to a sketched batch: places, rejections, blanks and ranges."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.engine.prepare import Preparer, source_ranges
from streamdedup.model import Document, Position, Record, Rejection, SourceRange
from streamdedup.settings.load import load_settings
from streamdedup.sketch.texts import NOT_STORED, unpack_text
from tests.support.builders import examples

UNSEEN = Rejection("sketch", "ProcessDied", "a process died")


def records(*values: bytes | None) -> list[Record]:
    """Return records at following offsets."""
    return [Record(Position("t", 0, at), value) for at, value in enumerate(values)]


def test_places() -> None:
    """Documents know their records, and every other record has its rejection."""
    batch = Preparer(load_settings()).prepare_records(
        records(b'{"text":"a","id":"x"}', b"{}", None, b'{"text":"b"}', b'{"text":"c"}'),
        {4: UNSEEN},
    )
    assert batch.rows == [0, 3]
    assert batch.documents.ids == ["x", "t:0:3"]
    assert [at.offset for at in batch.documents.positions] == [0, 3]
    assert {place: each.reason for place, each in batch.rejections.items()} == {
        1: "MissingText",
        2: "NullValue",
        4: "ProcessDied",
    }
    assert batch.ranges == (SourceRange("t", 0, 0, 5),)
    assert [at.offset for at in batch.positions] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("policy", "rows"), [("keep", [0, 1, 2]), ("reject", [1])])
def test_empty_text(policy: str, rows: list[int]) -> None:
    """Documents without text are marked as blank, or rejected, as the settings say."""
    preparer = Preparer(load_settings(dedup={"empty_text": policy}))
    batch = preparer.prepare_records(
        records(b'{"text":""}', b'{"text":"a"}', b'{"text":" \\u200b"}')
    )
    assert batch.rows == rows
    assert batch.documents.sketches.signatures.shape[0] == len(rows)
    assert batch.blank == ({0, 2} if policy == "keep" else frozenset())
    reasons = [each.reason for each in batch.rejections.values()]
    assert reasons == ([] if policy == "keep" else ["EmptyText"] * 2)


def test_texts_come_only_where_they_are_wanted() -> None:
    """Exact verification has the normalised texts, packed; without it there is nothing to carry."""
    lines = records(b'{"text":"One  STORY"}', b"{}", b'{"text":""}')
    assert Preparer(load_settings()).prepare_records(lines).documents.texts == ()
    exact = load_settings(dedup={"verify": "exact"})
    texts = Preparer(exact).prepare_records(lines).documents.texts
    assert [unpack_text(text) for text in texts] == ["one story", ""]


def test_a_text_without_room_in_a_changelog_entry_is_not_stored() -> None:
    """The document is judged all the same."""
    digits = random.Random(1)
    text = "".join(str(digits.randrange(10)) for _ in range(5000))
    settings = load_settings(dedup={"verify": "exact"}, batch={"changelog_entry_bytes": 4000})
    line = msgspec.json.encode({"text": text})
    batch = Preparer(settings).prepare_records(records(b'{"text":"short"}', line))
    assert [text == NOT_STORED for text in batch.documents.texts] == [False, True]


def test_nothing_at_all() -> None:
    """A batch without records, and one without documents, have empty columns."""
    preparer = Preparer(load_settings())
    assert len(preparer.prepare_records([]).documents) == 0
    refused = preparer.prepare_records(records(b"[]"))
    assert len(refused.documents) == 0
    assert refused.documents.take([]).sketches.band_keys.shape[1] > 1


def test_documents_keep_the_limits() -> None:
    """Documents from the Python API are checked like those of records."""
    preparer = Preparer(load_settings(limits={"text_bytes": 10, "id_bytes": 5}))
    documents = [
        Document("fits", "id"),
        Document("x" * 11),
        Document("a", "123456"),
        Document("a", "\ud800"),
    ]
    positions = [Position("t", 0, at) for at in range(4)]
    batch = preparer.prepare_documents(documents, positions)
    assert batch.rows == [0]
    reasons = [batch.rejections[place].reason for place in (1, 2, 3)]
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
    found = source_ranges([Position(*each) for each in positions])
    assert found == tuple(SourceRange(*each) for each in ranges)


@given(
    positions=st.lists(
        st.builds(Position, st.just("t"), st.integers(0, 1), st.integers(0, 9)), max_size=12
    )
)
@examples(100)
def test_ranges_cover_every_position(positions: list[Position]) -> None:
    """Every position lies in a range, and the furthest range ends behind the furthest position."""
    ranges = source_ranges(positions)
    for topic, partition, offset in positions:
        inside = [each for each in ranges if each[:2] == (topic, partition)]
        assert any(each.start <= offset < each.next_offset for each in inside)
    for partition in (0, 1):
        offsets = [at.offset for at in positions if at.partition == partition]
        ends = [each.next_offset for each in ranges if each.partition == partition]
        assert max(ends, default=0) == max((at + 1 for at in offsets), default=0)


@given(values=st.lists(st.binary(max_size=30), max_size=8))
@examples(100)
def test_any_bytes(values: list[bytes]) -> None:
    """Whatever the bytes, every record becomes a document or has a rejection, never both (L2)."""
    batch = _PREPARER.prepare_records(records(*values))
    assert sorted([*batch.rows, *batch.rejections]) == list(range(len(values)))


_PREPARER = Preparer(load_settings(records={"format": "text"}))
