"""*Pure.* Values that name their schema, and MessagePack."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import fastavro
import msgspec

from streamdedup.formats.objects import Refusal
from streamdedup.formats.records import Decoder
from streamdedup.formats.schemas import Schema
from streamdedup.settings.sections import LimitSettings, RecordSettings
from tests.fuzz.cases import Block, each, expect, mutated

_CASES = 256
_LIMITS = LimitSettings(value_bytes=4096, text_bytes=64, id_bytes=16)
_FIELDS = {"text_fields": ("text", "a.b"), "namespace_field": "kind", "event_time_field": "time"}
_AVRO = {
    "type": "record",
    "name": "Document",
    "fields": [
        {"name": "text", "type": ["null", "string", "bytes"]},
        {"name": "id", "type": ["long", {"type": "string", "logicalType": "uuid"}, "string"]},
        {"name": "time", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "a", "type": {"type": "map", "values": ["string", "int", "double"]}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
    ],
}
_PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
enum Kind { NONE = 0; A = 1; }
message A { string b = 1; }
message Document {
  string text = 1; A a = 2; string id = 3; google.protobuf.Timestamp time = 4; Kind kind = 5;
  map<string, A> more = 6;
}
"""
_AVRO_PREFIX, _PROTO_PREFIX, _JSON_PREFIX = (bytes([0, 0, 0, 0, number]) for number in (1, 2, 3))
_DECODERS = (
    Decoder(
        RecordSettings(format="registry", **_FIELDS),  # type: ignore[arg-type]
        _LIMITS,
        {
            _AVRO_PREFIX: Schema("AVRO", json.dumps(_AVRO)),
            _PROTO_PREFIX: Schema("PROTOBUF", _PROTO),
            _JSON_PREFIX: Schema("JSON", "{}"),
        },
    ),
    Decoder(RecordSettings(format="messagepack", **_FIELDS), _LIMITS),  # type: ignore[arg-type]
)


def _avro() -> bytes:
    buffer = io.BytesIO()
    content = {"text": "a short story", "id": 7, "time": 10**15, "kind": "B", "a": {"b": "nested"}}
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(_AVRO), content | {"d": b"\1"})
    return buffer.getvalue()


_EXAMPLES = (
    (0, _AVRO_PREFIX + _avro()),
    (
        0,
        _PROTO_PREFIX
        + b"\2\2"
        + b"\x0a\x05a tex\x12\x03\x0a\x01b\x1a\x02id\x22\x02\x08\x05\x28\x01",
    ),
    (0, _JSON_PREFIX + b'{"text": "a text", "id": "one"}'),
    (
        1,
        msgspec.msgpack.encode(
            {"text": b"a text", "id": 7, "time": 1e9, "kind": "A", "a": {"b": "nested", 3: [None]}}
        ),
    ),
)
_TOKENS = (
    *(_AVRO_PREFIX, _PROTO_PREFIX, _JSON_PREFIX, b"\0", b"\1", b"\2\2", b"\x80", b"\xff", b"\x01"),
    *(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 9 + b"\x01", b"\xc3\x01", b"\xff" * 5),
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 40),
    *(b"\xd6\xff\xff\xff\xff\xff", b"\xc7\x0c\xff" + b"\xff" * 12, b"\x0a\x02", b"\x12\x7f"),
)

Case = tuple[int, bytes, bytes]


@contextmanager
def values() -> Iterator[Block]:
    """Any bytes become a document within the limits, or are refused with a reason."""

    def block(random: Random) -> int:
        return each([_case(random) for _ in range(_CASES)], _check)

    yield block


def _case(random: Random) -> Case:
    which, value = random.choice(_EXAMPLES)
    value = mutated(random, value, _TOKENS)
    if which == 0 and random.random() < 0.2:
        size = 5 + int(random.random() * 3)
        return which, value[size:], value[:size]
    return which, value, b""


def _check(case: Case) -> None:
    which, value, frame = case
    try:
        document = _DECODERS[which].decode_value(value, None, 5, frame)
    except Refusal as refusal:
        refused = refusal.rejection
        expect(refused.stage == "decode" and refused.reason.isidentifier(), case, "odd reason")
        expect(0 < len(refused.message) <= 500, case, "odd message")
        return
    expect(len(document.text.encode("utf-8", "surrogatepass")) <= _LIMITS.text_bytes, case, "long")
    expect(len(document.id.encode()) <= _LIMITS.id_bytes, case, "long id")
    expect(document.event_time_ms == 5 or 0 <= document.event_time_ms < 2**63, case, "odd time")
