"""Decoding records: which are accepted, and which are refused with which reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from streamdedup.formats.objects import Refusal
from streamdedup.formats.records import Decoder, parse_time
from streamdedup.model import NO_TIMESTAMP, Document, Position, Record
from streamdedup.settings.sections import LimitSettings, RecordSettings

POSITION = Position("posts", 3, 42)
JSON: dict[str, Any] = {}
TEXT: dict[str, Any] = {"format": "text"}
TIMES: dict[str, Any] = {"event_time_field": "date"}
NAMES: dict[str, Any] = {"namespace_field": "site"}


def decode(
    value: bytes | None, records: dict[str, Any], key: bytes | None = None, **limits: Any
) -> Document:
    """Decode one record under the given settings."""
    decoder = Decoder(RecordSettings(**records), LimitSettings(**limits))
    return decoder.decode(Record(POSITION, value, key, timestamp_ms=1_600_000_000_000))


DEEP = b"[" * 100_000 + b"]" * 100_000
BAD = [
    pytest.param(None, JSON, "NullValue", id="null-value"),
    pytest.param(b"", JSON, "InvalidJson", id="empty-value"),
    pytest.param(b'{"text":"\xff"}', JSON, "InvalidUtf8", id="invalid-utf-8"),
    pytest.param(b"\xff\xfe{\x00}\x00", JSON, "InvalidUtf8", id="utf-16"),
    pytest.param(b'{"text":"\xed\xa0\x80"}', JSON, "InvalidUtf8", id="encoded-surrogate"),
    pytest.param(b'{"text":', JSON, "InvalidJson", id="cut-json"),
    pytest.param(b'{"text":"a"} {}', JSON, "InvalidJson", id="two-values"),
    pytest.param(b"{'text':'a'}", JSON, "InvalidJson", id="python-quotes"),
    pytest.param(b'\xef\xbb\xbf{"text":"a"}', JSON, "InvalidJson", id="byte-order-mark"),
    pytest.param(b'{"text":"a","n":NaN}', JSON, "InvalidJson", id="nan"),
    pytest.param(b'{"text":"a","n":-Infinity}', JSON, "InvalidJson", id="infinity"),
    pytest.param(b'{"text":"a\x00b"}', JSON, "InvalidJson", id="raw-nul"),
    pytest.param(DEEP, JSON, "InvalidJson", id="deep-array"),
    pytest.param(b'{"text":"a","d":' + DEEP + b"}", JSON, "InvalidJson", id="deep-field"),
    pytest.param(b'{"text":"\\ud800","d":' + DEEP + b"}", JSON, "InvalidJson", id="deep-behind"),
    pytest.param(b'{"text":"a","n":' + b"9" * 5000 + b"}", JSON, "InvalidJson", id="long-number"),
    pytest.param(b'[{"text":"a"}]', JSON, "NotAnObject", id="array"),
    pytest.param(b'"text"', JSON, "NotAnObject", id="string"),
    pytest.param(b"null", JSON, "NotAnObject", id="null"),
    pytest.param(b"{}", JSON, "MissingText", id="no-text"),
    pytest.param(b'{"text":null}', JSON, "MissingText", id="null-text"),
    pytest.param(b'{"Text":"a"}', JSON, "MissingText", id="other-case"),
    pytest.param(b'{"a":{"b":1}}', {"text_fields": ("a.c",)}, "MissingText", id="no-such-path"),
    pytest.param(b'{"a":"b"}', {"text_fields": ("a.b",)}, "MissingText", id="path-into-string"),
    pytest.param(b'{"text":1}', JSON, "TextNotString", id="number-text"),
    pytest.param(b'{"text":["a"]}', JSON, "TextNotString", id="array-text"),
    pytest.param(
        b'{"a":"x","b":{}}', {"text_fields": ("a", "b")}, "TextNotString", id="one-of-two"
    ),
    pytest.param(b'{"text":"a","id":1.5}', JSON, "IdNotString", id="fraction-id"),
    pytest.param(b'{"text":"a","id":true}', JSON, "IdNotString", id="boolean-id"),
    pytest.param(b'{"text":"a","id":{}}', JSON, "IdNotString", id="object-id"),
    pytest.param(b'{"text":"a","id":"\\ud800"}', JSON, "IdNotUnicode", id="surrogate-id"),
    pytest.param(b'{"text":"a","id":"' + b"x" * 101 + b'"}', JSON, "IdTooLarge", id="long-id"),
    pytest.param(b'{"text":"' + b"x" * 201 + b'"}', JSON, "TextTooLarge", id="long-text"),
    pytest.param(b'{"text":"%s"}' % ("é" * 101).encode(), JSON, "TextTooLarge", id="bytes"),
    pytest.param(b" " * 500_001, JSON, "ValueTooLarge", id="long-value"),
    pytest.param(b'{"text":"a","site":[]}', NAMES, "NamespaceNotString", id="array-namespace"),
    pytest.param(b'{"text":"a","date":"soon"}', TIMES, "InvalidEventTime", id="no-time"),
    pytest.param(b'{"text":"a","date":"\\ud800"}', TIMES, "InvalidEventTime", id="surrogate-time"),
    pytest.param(b'{"text":"a","date":{}}', TIMES, "InvalidEventTime", id="object-time"),
    pytest.param(b'{"text":"a","date":true}', TIMES, "InvalidEventTime", id="boolean-time"),
    pytest.param(b'{"text":"a","date":1e400}', TIMES, "InvalidEventTime", id="infinite-time"),
    pytest.param(b'{"text":"a","date":-1}', TIMES, "InvalidEventTime", id="before-the-epoch"),
    pytest.param(b'{"text":"a","date":1e30}', TIMES, "InvalidEventTime", id="far-future"),
    pytest.param(None, TEXT, "NullValue", id="text-null"),
    pytest.param(b"caf\xe9", TEXT, "InvalidUtf8", id="text-latin-1"),
    pytest.param(b"x" * 201, TEXT, "TextTooLarge", id="text-too-large"),
]


@pytest.mark.parametrize(("value", "records", "reason"), BAD)
def test_refused(value: bytes | None, records: dict[str, Any], reason: str) -> None:
    """An invalid record is refused with a stable reason and a short message."""
    with pytest.raises(Refusal) as caught:
        decode(value, records, value_bytes=500_000, text_bytes=200, id_bytes=100)
    rejection = caught.value.rejection
    assert (rejection.stage, rejection.reason) == ("decode", reason)
    assert 0 < len(rejection.message) <= 500


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a" * 10, "a" * 10),
        ("a" * 11, "a" * 10),
        ("é" * 6, "é" * 5),
        ("aé€😀b", "aé€😀"),
        ("aaé€😀b", "aaé€"),
        ("a" * 8 + "€", "a" * 8),
        ("a" * 7 + "\ud800" + "b", "a" * 7 + "\ud800"),
        ("a" * 9 + "\ud800", "a" * 9),
        ("", ""),
    ],
)
def test_long_text_is_cut_where_that_is_wanted(text: str, expected: str) -> None:
    """A text that is too large is cut to as many whole characters as fit."""
    value = json.dumps({"text": text}).encode()
    assert decode(value, JSON, text_bytes=10, long_text="cut").text == expected


def test_a_text_at_the_limit_is_accepted() -> None:
    """The limit itself is allowed, and one byte less is refused."""
    text = "\u00e9" * 50
    value = json.dumps({"text": text}).encode()
    assert decode(value, JSON, text_bytes=100).text == text
    with pytest.raises(Refusal, match=r"limits\.text_bytes is 99"):
        decode(value, JSON, text_bytes=99)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b'{"id": 7, "body": "secret", "text": null}', "the fields 'id', 'body', 'text' (null)"),
        (b"{}", "no fields"),
        (b'{"line\\nfeed\\ud800": 1}', r"the fields 'line\nfeed\ud800'"),
        (json.dumps(dict.fromkeys(range(99), 1)).encode(), ", '9', ..."),
        (b'{"%b": 1}' % (b"x" * 10**5), f"the fields '{'x' * 30}'"),
    ],
    ids=["names", "no names", "escapes", "many names", "a long name"],
)
def test_a_document_without_text_names_its_fields(value: bytes, found: str) -> None:
    """The message has some names of fields, and never a value."""
    with pytest.raises(Refusal) as refused:
        decode(value, JSON)
    message = refused.value.rejection.message
    assert message.startswith("the document has no text field 'text'; it has ")
    assert message.endswith(f"{found}; set records.text_fields")
    assert "secret" not in message
    assert len(message) < 500


def test_message_does_not_grow_with_the_value() -> None:
    """A message that quotes the value is short for any size of the value."""
    with pytest.raises(Refusal) as caught:
        decode(b'{"text":"a","date":"' + b"x" * 100_000 + b'"}', TIMES)
    assert len(caught.value.rejection.message) <= 500


def document(text: str = "a", **changes: Any) -> Document:
    """Return the document of a plain record, with changes."""
    plain = Document(text, "posts:3:42", 1_600_000_000_000)
    return replace(plain, **changes)


AT_MS = 1_709_210_096_789
GOOD = [
    pytest.param(b'{"text":"a"}', JSON, document(), id="position-as-id"),
    pytest.param(b'{"text":""}', JSON, document(""), id="empty-text"),
    pytest.param(b'{"text":"a","id":"x"}', JSON, document(id="x"), id="id"),
    pytest.param(b'{"text":"a","id":7}', JSON, document(id="7"), id="number-id"),
    pytest.param(b'{"text":"a","id":0}', JSON, document(id="0"), id="zero-id"),
    pytest.param(
        b'{"text":"a","id":123456789012345678901234567890}',
        JSON,
        document(id="123456789012345678901234567890"),
        id="large-number-id",
    ),
    pytest.param(b'{"text":"a","id":""}', JSON, document(), id="empty-id"),
    pytest.param(b'{"text":"a","id":null}', JSON, document(), id="null-id"),
    pytest.param(b'{"text":"a","id":"x"}', {"id_field": None}, document(), id="no-id-field"),
    pytest.param(b'{"text":"a\\u0000b"}', JSON, document("a\x00b"), id="escaped-nul"),
    pytest.param(b'{"text":"\\ud800"}', JSON, document("\ud800"), id="surrogate-text"),
    pytest.param(b'{"text":"\\ud83d\\ude00"}', JSON, document("\U0001f600"), id="pair"),
    pytest.param(b'{"text":"a","text":"b"}', JSON, document("b"), id="last-of-two-fields"),
    pytest.param(b' \n{"text":"a","n":1e400}\n', JSON, document(), id="huge-number-elsewhere"),
    pytest.param(
        b'{"a":{"b":{"c":"deep"}}}', {"text_fields": ("a.b.c",)}, document("deep"), id="path"
    ),
    pytest.param(
        b'{"title":"A","body":"B"}',
        {"text_fields": ("title", "body")},
        document("A\nB"),
        id="two-fields",
    ),
    pytest.param(
        b'{"title":null,"body":"B"}',
        {"text_fields": ("title", "body")},
        document("B"),
        id="one-of-two-fields",
    ),
    pytest.param(b'{"text":"a","site":"en"}', NAMES, document(namespace="en"), id="namespace"),
    pytest.param(b'{"text":"a","site":5}', NAMES, document(namespace="5"), id="number-namespace"),
    pytest.param(b'{"text":"a"}', NAMES, document(), id="no-namespace"),
    pytest.param(b'{"text":"a"}', TIMES, document(), id="record-time"),
    pytest.param(b'{"text":"a","date":null}', TIMES, document(), id="null-time"),
    pytest.param(
        b'{"text":"a","date":"2024-02-29T12:34:56.789Z"}',
        TIMES,
        document(event_time_ms=AT_MS),
        id="iso-utc",
    ),
    pytest.param(
        b'{"text":"a","date":"2024-02-29T14:34:56.789+02:00"}',
        TIMES,
        document(event_time_ms=AT_MS),
        id="iso-offset",
    ),
    pytest.param(
        b'{"text":"a","date":"2024-02-29 12:34:56.789"}',
        TIMES,
        document(event_time_ms=AT_MS),
        id="iso-without-zone",
    ),
    pytest.param(
        b'{"text":"a","date":"1970-01-02"}', TIMES, document(event_time_ms=86_400_000), id="date"
    ),
    pytest.param(
        b'{"text":"a","date":1709210096.789}', TIMES, document(event_time_ms=AT_MS), id="seconds"
    ),
    pytest.param(
        b'{"text":"a","date":1709210096789}', TIMES, document(event_time_ms=AT_MS), id="ms"
    ),
    pytest.param(
        b'{"text":"a","date":1709210096789123}', TIMES, document(event_time_ms=AT_MS), id="us"
    ),
    pytest.param(
        b'{"text":"a","date":1709210096789123456}', TIMES, document(event_time_ms=AT_MS), id="ns"
    ),
    pytest.param(
        b'{"text":"a","date":1.709210096789123e15}',
        TIMES,
        document(event_time_ms=AT_MS),
        id="us-as-a-float",
    ),
    pytest.param(b'{"text":"a","date":0}', TIMES, document(event_time_ms=0), id="epoch"),
    pytest.param(
        b'{"text":"a","date":"1987-03-26T17:49:55.795Z"}',
        TIMES,
        document(event_time_ms=543_779_395_795),
        id="no-millisecond-lost",
    ),
    pytest.param("äöü".encode(), TEXT, document("äöü"), id="text"),
    pytest.param(b"", TEXT, document(""), id="text-empty"),
    pytest.param(b'{"text":"a"}', TEXT, document('{"text":"a"}'), id="text-is-not-parsed"),
]


@pytest.mark.parametrize(("value", "records", "expected"), GOOD)
def test_decoded(value: bytes, records: dict[str, Any], expected: Document) -> None:
    """A valid record gives its document."""
    assert decode(value, records) == expected


@pytest.mark.parametrize(
    ("milliseconds"), [1_709_210_096_789, 1_000_000_000_001, 543_824_159_795, 1_999_999_999_999]
)
def test_times_are_exact(milliseconds: int) -> None:
    """No form of a time loses a millisecond to rounding."""
    second, fraction = divmod(milliseconds, 1000)
    value = f'{{"text":"a","date":{second}.{fraction:03}}}'.encode()
    assert decode(value, TIMES).event_time_ms == milliseconds


def test_a_time_in_utf8() -> None:
    """Values in binary formats may hold a time as bytes."""
    assert parse_time(b"2024-02-29T12:34:56.789Z") == parse_time("2024-02-29T12:34:56.789Z")
    with pytest.raises(ValueError, match="utf-8"):
        parse_time(b"\xff")


@pytest.mark.parametrize(
    ("key", "identity"),
    [
        pytest.param(b"k1", "k1", id="key"),
        pytest.param(b"", "posts:3:42", id="empty-key"),
        pytest.param(None, "posts:3:42", id="no-key"),
        pytest.param(b"\xff\x00", "\\xff\x00", id="binary-key"),
    ],
)
@pytest.mark.parametrize("records", [JSON, TEXT], ids=["json", "text"])
def test_key_as_id(key: bytes | None, identity: str, records: dict[str, Any]) -> None:
    """A document without an id has the key as its id, or without a key the position."""
    assert decode(b'{"text":"a"}', records, key).id == identity


def test_no_timestamp() -> None:
    """A record without a time gives a document without a time."""
    decoder = Decoder(RecordSettings(), LimitSettings())
    found = decoder.decode(Record(POSITION, b'{"text":"a"}'))
    assert found.event_time_ms == NO_TIMESTAMP


def test_fields_of_a_table_become_a_document() -> None:
    """Texts are bytes or views of them; limits and UTF-8 are checked like those of a value."""
    decode = Decoder(RecordSettings(), LimitSettings(text_bytes=8)).decode_fields
    document = Document("w\u00f6rds", "a", 5, "site")
    assert decode("w\u00f6rds".encode(), b"a", b"site", 5) == document
    assert decode(memoryview("w\u00f6rds".encode()), b"a", b"site", 5) == document
    for text, id_, reason in ((b"\xff", b"", "InvalidUtf8"), (b"x" * 9, b"", "TextTooLarge")):
        with pytest.raises(Refusal) as refused:
            decode(text, id_, b"", -1)
        assert refused.value.rejection.reason == reason


def test_the_unit_of_a_number_follows_from_its_size() -> None:
    """Seconds, milli-, micro- and nanoseconds until 5138; a larger number is refused."""
    for per_second in (1, 10**3, 10**6, 10**9):
        assert parse_time(10**11 * per_second - per_second) == (10**11 - 1) * 1000
    with pytest.raises(ValueError, match="out of range"):
        parse_time(10**20)


def test_another_value_of_messagepack_is_named() -> None:
    """The message says what was expected, and what was found."""
    with pytest.raises(Refusal, match="the value is MessagePack map of type list"):
        decode(b"\x90", {"format": "messagepack"})
