"""Changelog entries: round trip, several entries per update, other versions, and garbage."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.batches import DocumentColumns, IndexUpdate, Sketches
from streamdedup.columns import Blobs, Positions, Strings
from streamdedup.errors import IndexDamaged, IndexMismatch
from streamdedup.formats import changelog
from streamdedup.formats.arrays import has_version
from streamdedup.model import Position, SourceRange
from tests.support.builders import columns, examples, update_of

FINGERPRINT = "0123456789abcdef"
NO_LIMIT = 2**40
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
POSITIONS = st.builds(Position, NAMES, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
RANGES = st.builds(
    SourceRange, NAMES, st.integers(0, 2**31 - 1), st.integers(0, 2**40), st.integers(0, 2**40)
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", False),
        (b"hello", False),
        (msgspec.msgpack.encode({"other": 1}), False),
        (msgspec.msgpack.encode({"version": 99}), True),
        (b"\x82\xa7version\x04\xa1x" + b"\x91" * 100_000 + b"\x01", False),
        (changelog.encode(IndexUpdate.empty(7), FINGERPRINT, NO_LIMIT)[0], True),
    ],
)
def test_a_record_of_another_program_is_not_an_entry(data: bytes, expected: bool) -> None:
    """An entry is a map with a version, which may be another release's."""
    assert has_version(data) is expected


@st.composite
def updates(draw: st.DrawFn) -> IndexUpdate:
    """Generate updates."""
    positions = draw(st.lists(POSITIONS, max_size=8))
    count = len(positions)
    seed = np.random.default_rng(draw(st.integers(0, 100)))
    documents = DocumentColumns(
        ids=Strings.of([draw(NAMES) for _ in positions]),
        positions=Positions.of(positions),
        event_times_ms=seed.integers(-(2**63), 2**63 - 1, count, dtype=np.int64),
        namespaces=seed.integers(0, 2**64 - 1, count, dtype=np.uint64),
        sketches=Sketches(
            seed.integers(0, 255, (count, 16), dtype=np.uint8),
            seed.integers(0, 2**64 - 1, (count, 4), dtype=np.uint64),
        ),
        texts=Blobs.of([seed.bytes(at) for at in range(count)] if draw(st.booleans()) else []),
    )
    return IndexUpdate(
        draw(st.integers(0, 2**62 - 1000)),
        documents,
        ranges=tuple(draw(st.lists(RANGES, max_size=4))),
        effective_times_ms=seed.integers(-(2**63), 2**63 - 1, count, dtype=np.int64),
        clock=draw(st.sampled_from([b"", b"clock"])),
        deleted=tuple(draw(st.lists(st.integers(0, 2**62), max_size=3))),
        is_ahead=draw(st.booleans()),
    )


def plain(update: IndexUpdate) -> tuple[object, ...]:
    """Return an update in a form that can be compared."""
    documents = update.documents
    return (
        update.ranges,
        documents.ids,
        documents.positions,
        documents.event_times_ms.tolist(),
        update.effective_times_ms.tolist(),
        update.clock,
        update.deleted,
        update.is_ahead,
        documents.namespaces.tolist(),
        documents.sketches.signatures.tolist(),
        documents.sketches.band_keys.tolist(),
        list(documents.texts),
    )


@given(update=updates())
@examples(150)
def test_there_and_back(update: IndexUpdate) -> None:
    """Decoding an entry gives the encoded update."""
    [entry] = changelog.encode(update, FINGERPRINT, NO_LIMIT)
    found = changelog.decode(entry, FINGERPRINT)
    assert found.first_number == update.first_number
    assert plain(found) == plain(update)


@given(update=updates(), most=st.integers(700, 1500))
@examples(150)
def test_pieces(update: IndexUpdate, most: int) -> None:
    """Entries stay below the limit, with consecutive numbers.

    Only the last one says what was judged and deleted, and what time it is.
    """
    pieces = [
        (entry, changelog.decode(entry, FINGERPRINT))
        for entry in changelog.encode(update, FINGERPRINT, most)
    ]
    number = update.first_number
    for entry, piece in pieces:
        assert len(entry) <= most
        assert piece.first_number == number
        number += len(piece.documents)
    assert number == update.first_number + len(update.documents)
    assert [piece.ranges for _, piece in pieces[:-1]] == [()] * (len(pieces) - 1)
    assert pieces[-1][1].ranges == update.ranges
    assert [piece.deleted for _, piece in pieces[:-1]] == [()] * (len(pieces) - 1)
    assert pieces[-1][1].deleted == update.deleted
    assert [piece.clock for _, piece in pieces] == [b""] * (len(pieces) - 1) + [update.clock]
    times = [each for _, piece in pieces for each in piece.effective_times_ms.tolist()]
    assert times == update.effective_times_ms.tolist()
    ids = [each for _, piece in pieces for each in piece.documents.ids]
    assert ids == update.documents.ids
    texts = [each for _, piece in pieces for each in piece.documents.texts]
    assert texts == list(update.documents.texts)


def test_texts_are_named_only_where_they_are() -> None:
    """An entry without texts has no field for them."""
    documents = columns([[1] * 9, [2] * 9])
    for texts in ([], [b"one", b""]):
        update = update_of(replace(documents, texts=Blobs.of(texts)), 0)
        [entry] = changelog.encode(update, FINGERPRINT, NO_LIMIT)
        fields = msgspec.msgpack.decode(entry)
        assert fields.get("texts", []) == list(texts)
        assert ("texts" in fields) == bool(texts)


def test_what_is_empty_is_left_out() -> None:
    """An entry has fields for deletions and a clock only if it has them."""
    update = update_of(columns([[1] * 9]), 0)
    for extra in ({}, {"clock": b"clock"}, {"is_ahead": True}, {"deleted": (7, 2**40)}):
        [entry] = changelog.encode(replace(update, **extra), FINGERPRINT, NO_LIMIT)
        fields = msgspec.msgpack.decode(entry)
        assert {"clock", "deleted", "is_ahead"} & fields.keys() == extra.keys()
    assert fields["deleted"] == (7).to_bytes(8, "little") + (2**40).to_bytes(8, "little")


def test_really_in_pieces() -> None:
    """A batch over the limit becomes several entries."""
    update = update_of(columns([[row] * 9 for row in range(100)]), 50)
    assert len(changelog.encode(update, FINGERPRINT, 4000)) >= 4


def test_one_document_too_large() -> None:
    """A single document over the limit is an error that names the setting."""
    update = update_of(columns([[1] * 9], ids=["x" * 5000]), 0)
    with pytest.raises(ValueError, match="changelog_entry_bytes is 4000"):
        changelog.encode(update, FINGERPRINT, 4000)


def test_other_parameters() -> None:
    """An entry with other parameters is refused; the message has both fingerprints."""
    [entry] = changelog.encode(update_of(columns([[1] * 9]), 0), "feed", NO_LIMIT)
    with pytest.raises(IndexMismatch, match=f"feed.*{FINGERPRINT}"):
        changelog.decode(entry, FINGERPRINT)


def test_other_version() -> None:
    """An entry of a later version is refused by its version, with any other fields."""
    entry = msgspec.msgpack.encode({"version": 5, "news": True})
    with pytest.raises(IndexMismatch, match="version 5, this release reads 4"):
        changelog.decode(entry, FINGERPRINT)


def entry_with(**changes: object) -> bytes:
    """Return an entry of two documents with wrong fields."""
    [entry] = changelog.encode(update_of(columns([[1] * 9, [2] * 9]), 0), FINGERPRINT, NO_LIMIT)
    return msgspec.msgpack.encode(msgspec.msgpack.decode(entry) | changes)


NESTED = b"\x82\xa7version\x04\xa1x" + b"\x91" * 100_000 + b"\x01"
"""A map that is nested more deeply than the decoder reads."""
GARBAGE = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\xc1", id="no-messagepack"),
    pytest.param(b'{"version":4}', id="json"),
    pytest.param(msgspec.msgpack.encode([1, 2]), id="array"),
    pytest.param(msgspec.msgpack.encode({"version": 4}), id="fields-missing"),
    pytest.param(msgspec.msgpack.encode({"version": "3"}), id="version-a-string"),
    pytest.param(entry_with(more=1), id="unknown-field"),
    pytest.param(entry_with(offsets=b"1234567"), id="half-a-number"),
    pytest.param(entry_with(offsets=bytes(8)), id="numbers-missing"),
    pytest.param(entry_with(effective_times_ms=bytes(8)), id="an-effective-time-missing"),
    pytest.param(entry_with(deleted=b"1234567"), id="half-a-deletion"),
    pytest.param(entry_with(topics=[]), id="topics-missing"),
    pytest.param(entry_with(signatures=bytes(3)), id="ragged-signatures"),
    pytest.param(entry_with(ids=["one"]), id="an-id-missing"),
    pytest.param(entry_with(texts=[b"one"]), id="a-text-missing"),
    pytest.param(entry_with(texts=["one", "two"]), id="texts-no-bytes"),
    pytest.param(entry_with(ids=[]), id="all-ids-missing"),
    pytest.param(entry_with().replace(b"id-0", b"\xff\xff\xff\xff"), id="id-no-utf-8"),
    pytest.param(entry_with(first_number=-1), id="number-negative"),
    pytest.param(entry_with(first_number=2**63), id="number-too-large"),
    pytest.param(entry_with(fingerprint="a\nb"), id="fingerprint-of-two-lines"),
    pytest.param(NESTED, id="nested-too-deeply"),
    pytest.param(entry_with()[:-1], id="cut"),
    pytest.param(entry_with() + b"\x00", id="too-long"),
]


@pytest.mark.parametrize("data", GARBAGE)
def test_garbage(data: bytes) -> None:
    """Bytes that are not an entry are damage; no other error escapes."""
    with pytest.raises(IndexDamaged):
        changelog.decode(data, FINGERPRINT)


def test_damage_is_one_line() -> None:
    """The message about an unknown field is one line, whatever its name is."""
    with pytest.raises(IndexDamaged) as caught:
        changelog.decode(entry_with(**{"two\nlines": 1}), FINGERPRINT)
    assert "\n" not in str(caught.value)


@given(data=st.binary(max_size=60))
@examples(150)
def test_random_bytes(data: bytes) -> None:
    """Random bytes are refused with one of our errors."""
    with pytest.raises((IndexDamaged, IndexMismatch)):
        changelog.decode(data, FINGERPRINT)
