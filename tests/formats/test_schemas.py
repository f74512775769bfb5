"""Values that name their schema: prefixes, Avro, Protobuf and JSON, and what cannot be decoded."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from streamdedup.formats.avro import single_object_prefix, write_duplicate
from streamdedup.formats.objects import Refusal
from streamdedup.formats.records import Decoder
from streamdedup.formats.schemas import (
    FRAME_HEADER,
    Schema,
    describe_prefix,
    duplicates_schema,
    frame_of,
    prefix_of,
    prefixes,
)
from streamdedup.model import Document, Position, Record
from streamdedup.settings.sections import LimitSettings, RecordSettings

ID = b"\0\0\0\0\x07"
GUID = b"\1" + uuid.UUID("0e8a2b6c-1d2e-4f30-8a9b-0c1d2e3f4a5b").bytes
NOON = dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
NOON_MS = 1_700_000_000_000


def decode(
    schema: Schema, value: bytes, frame: bytes = b"", prefix: bytes = ID, **records: Any
) -> Document:
    """Decode a value that was written with a schema."""
    settings = RecordSettings(**{"format": "registry", **records})
    decoder = Decoder(settings, LimitSettings(), {prefix: schema})
    headers = ((FRAME_HEADER, frame),) if frame else ()
    return decoder.decode(Record(Position("t", 0, 0), value, None, headers, 5))


def refusal(*arguments: Any, **records: Any) -> str:
    """Return the reason for which a value is refused."""
    with pytest.raises(Refusal) as refused:
        decode(*arguments, **records)
    return refused.value.rejection.reason


def test_prefixes() -> None:
    """They begin the value or stand in a header; a value without one has none."""
    avro = b"\xc3\x01" + bytes(8)
    headers = (("other", b"x"), (FRAME_HEADER, GUID + b"\0"))
    assert frame_of(headers) == GUID + b"\0"
    assert frame_of((("other", b"x"),)) == b""
    assert frame_of(((FRAME_HEADER, None),)) == b""
    assert [
        prefix_of(value, b"") for value in (ID + b"x", ID[:4], GUID, GUID[:9], avro, b"{}")
    ] == [
        ID,
        b"",
        GUID,
        b"",
        avro,
        b"",
    ]
    assert prefix_of(b"x", GUID + b"\2") == GUID
    assert prefixes([ID, None, b""], ()) == [ID, b"", b""]
    assert prefixes([b"x", None, ID], (headers, headers, ())) == [GUID, b"", ID]


def test_prefixes_in_words() -> None:
    """In the forms that registries and Avro use."""
    assert describe_prefix(ID) == "id 7"
    assert describe_prefix(GUID) == "GUID 0e8a2b6c-1d2e-4f30-8a9b-0c1d2e3f4a5b"
    # The fingerprint of "null" in Avro's own tests is 7195948357588979594.
    null = b"\xc3\x01" + (7195948357588979594).to_bytes(8, "little")
    assert describe_prefix(null) == f"fingerprint {7195948357588979594:x}"


AUTHOR = {
    "type": "record",
    "name": "Author",
    "namespace": "x",
    "fields": [
        {"name": "name", "type": ["null", "string"]},
        {"name": "number", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
POST: dict[str, Any] = {
    "type": "record",
    "name": "Post",
    "namespace": "x",
    "fields": [
        {"name": "id", "type": ["null", "string", "long", "bytes"], "default": None},
        {"name": "body", "type": ["null", "string", "bytes", "double"]},
        {"name": "author", "type": ["null", "x.Author"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEWS", "POST"]}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
AVRO = Schema("AVRO", json.dumps(POST), (("x.Author", json.dumps(AUTHOR)),))
WHOLE = {
    "id": "one",
    "body": "a text",
    "author": {"name": "ann", "number": str(uuid.UUID(int=5))},
    "at": NOON,
    "kind": "POST",
    "tags": {"site": "b", "title": "T"},
}


def avro(**changes: Any) -> bytes:
    """Return a post in Avro, without a prefix."""
    named: dict[str, Any] = {}
    fastavro.parse_schema(AUTHOR, named_schemas=named)
    buffer = io.BytesIO()
    fastavro.schemaless_writer(
        buffer, fastavro.parse_schema(POST, named_schemas=named), WHOLE | changes
    )
    return buffer.getvalue()


FIELDS: dict[str, Any] = {
    "text_fields": ("tags.title", "body"),
    "namespace_field": "kind",
    "event_time_field": "at",
}


def test_avro() -> None:
    """Unions, logical types, maps, enums and references have the same paths as JSON."""
    document = decode(AVRO, ID + avro(), **FIELDS)
    assert document == Document("T\na text", "one", NOON_MS, "POST")


@pytest.mark.parametrize(
    ("changes", "records", "expected"),
    [
        pytest.param({"body": "\u00fc".encode()}, {}, Document("\u00fc", "one", 5), id="bytes"),
        pytest.param({"id": 12}, {}, Document("a text", "12", 5), id="a number as id"),
        pytest.param({"id": b"\xff"}, {}, Document("a text", "\\xff", 5), id="bytes as id"),
        pytest.param({"id": None}, {}, Document("a text", "t:0:0", 5), id="no id"),
        pytest.param(
            {},
            {"id_field": "author.number"},
            Document("a text", str(uuid.UUID(int=5)), 5),
            id="a UUID as id",
        ),
        pytest.param(
            {},
            {"text_fields": ("body", "author.name", "later.added")},
            Document("a text\nann", "one", 5),
            id="a field that only later schemas have",
        ),
    ],
)
def test_avro_of_many_kinds(
    changes: dict[str, Any], records: dict[str, Any], expected: Document
) -> None:
    """Bytes are texts and ids, and what is missing has the usual default."""
    assert decode(AVRO, ID + avro(**changes), **{"text_fields": ("body",)} | records) == expected


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b"\xff", "InvalidUtf8"), (2.5, "TextNotString"), (None, "MissingText")],
)
def test_avro_that_is_no_text(body: Any, reason: str) -> None:
    """The reasons are those of JSON."""
    assert refusal(AVRO, ID + avro(body=body), text_fields=("body",)) == reason


@pytest.mark.parametrize("content", [b"", b"\x02", b"\x06\x02a", b"\xff" * 30, avro()[:-3]])
def test_avro_that_is_damaged(content: bytes) -> None:
    """It becomes a dead letter."""
    assert refusal(AVRO, ID + content) == "InvalidAvro"
    assert refusal(Schema("AVRO", '"long"'), ID + b"\x02") == "NotAnObject"


def test_the_schema_in_a_header() -> None:
    """The value is then as Avro writes it; a GUID is another name for the same."""
    assert decode(AVRO, avro(), ID, text_fields=("body",)).text == "a text"
    assert decode(AVRO, avro(), GUID, GUID, text_fields=("body",)).text == "a text"
    assert decode(AVRO, GUID + avro(), b"", GUID, text_fields=("body",)).text == "a text"


def test_a_value_that_needs_no_headers() -> None:
    """The page decodes it later, without them."""
    decoder = Decoder(RecordSettings(format="registry", **FIELDS), LimitSettings(), {ID: AVRO})
    records = [
        Record(Position("t", 0, 0), value, None, headers, 5)
        for value, headers in ((ID + avro(), ()), (avro(), ((FRAME_HEADER, ID),)))
    ]
    assert {decoder.portable(record) for record in records} == {ID + avro()}
    assert decoder.portable(Record(Position("t", 0, 0), None)) is None
    plain = Decoder(RecordSettings(), LimitSettings())
    assert plain.portable(records[1]) == avro()


def test_values_without_a_usable_schema() -> None:
    """No prefix, an unknown one, and a schema that is none: again and again."""
    decoder = Decoder(RecordSettings(format="registry"), LimitSettings(), {ID: Schema("AVRO", "{")})
    for value, reason in ((b"{}", "NoSchema"), (GUID, "UnknownSchema"), (ID, "UnusableSchema")):
        for _ in range(2):
            with pytest.raises(Refusal) as refused:
                decoder.decode_value(value, None, 0)
            assert refused.value.rejection.reason == reason
            assert "\n" not in str(refused.value)


def test_a_missing_library_is_no_fault_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start has checked that it is there; a record must not become a dead letter."""
    monkeypatch.setitem(sys.modules, "streamdedup.formats.avro", None)
    with pytest.raises(ImportError):
        decode(AVRO, ID)


def test_json() -> None:
    """The schema says only that the value is JSON."""
    schema = Schema("JSON", "{}")
    assert decode(schema, ID + b'{"text": "a", "id": "b"}') == Document("a", "b", 5)
    assert refusal(schema, ID + b"[]") == "NotAnObject"


def test_the_limit_of_a_value_counts_no_header() -> None:
    """A value as large as the limit is decoded."""
    value = avro()
    decoder = Decoder(
        RecordSettings(format="registry", text_fields=("body",)),
        LimitSettings(value_bytes=len(value)),
        {ID: AVRO},
    )
    assert decoder.decode_value(value, None, 0, ID).text == "a text"
    with pytest.raises(Refusal):
        decoder.decode_value(ID + value, None, 0)


def test_single_object_encoding() -> None:
    """The prefix is the fingerprint of the schema in its canonical form."""
    schema = {"type": "record", "name": "D", "fields": [{"name": "text", "type": "string"}]}
    prefix = single_object_prefix(json.dumps(schema, indent=2))
    assert prefix == single_object_prefix(json.dumps(schema | {"doc": "no part of it"}))
    value = prefix + b"\x06abc"
    settings = {"format": "avro", "schema_files": (Path("d.avsc"),)}
    assert decode(Schema("AVRO", json.dumps(schema)), value, b"", prefix, **settings).text == "abc"


PROTO = """
syntax = "proto3";
package x;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "common/author.proto";

enum Kind { NONE = 0; NEWS = 1; }

message Other { string text = 1; }

message Post {
  message Part { string text = 1; }
  string id = 1;
  string text = 2;
  c.Author author = 3;
  google.protobuf.Timestamp at = 4;
  google.protobuf.StringValue title = 5;
  Kind kind = 6;
  map<string, Part> parts = 7;
  repeated string tags = 8;
  oneof body { string html = 9; bytes raw = 10; }
  int64 seconds = 11;
  google.protobuf.Struct free = 12;
  optional string lead = 13;
}
"""
AUTHOR_PROTO = 'syntax = "proto3"; package c; message Author { string name = 1; bytes key = 2; }'
PROTOBUF = Schema("PROTOBUF", PROTO, (("common/author.proto", AUTHOR_PROTO),))
SECOND = b"\2\2"
"""The message indexes of the second message of a file."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the descriptors of the files, by name."""
    folder = tmp_path_factory.mktemp("proto")
    (folder / "common").mkdir()
    (folder / "common/author.proto").write_text(AUTHOR_PROTO)
    (folder / "post.proto").write_text(PROTO)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports"]
    subprocess.run([*command, f"-o{folder}/out", "post.proto"], check=True)
    found = FileDescriptorSet.FromString((folder / "out").read_bytes())
    return {file.name: file.SerializeToString() for file in found.file}


def field(number: int, content: bytes | int) -> bytes:
    """Return a field of a message in Protobuf."""
    if isinstance(content, int):
        return bytes([number << 3, content])
    return bytes([number << 3 | 2, len(content)]) + content


TIMESTAMP = b"\x08" + b"\x80\xe2\xcf\xaa\x06"
MESSAGE = b"".join(
    [
        field(1, b"one"),
        field(2, b"a text"),
        field(3, field(1, b"ann") + field(2, b"\xff")),
        field(4, TIMESTAMP),
        field(5, field(1, b"T")),
        field(6, 1),
        field(7, field(1, b"first") + field(2, field(1, b"P"))),
        field(8, b"ignored"),
        field(10, b"raw"),
        field(12, field(1, field(1, b"k") + field(2, field(3, b"v")))),
    ]
)
PROTO_FIELDS: dict[str, Any] = {
    "text_fields": ("title", "text", "parts.first.text", "raw", "free.k", "tags.none"),
    "id_field": "author.name",
    "namespace_field": "kind",
    "event_time_field": "at",
}
EXPECTED = Document("T\na text\nP\nraw\nv", "ann", NOON_MS, "NEWS")


def test_protobuf() -> None:
    """Nested messages, maps, enums, oneofs, wrappers and times have the same paths as JSON."""
    assert decode(PROTOBUF, ID + SECOND + MESSAGE, **PROTO_FIELDS) == EXPECTED
    assert decode(PROTOBUF, MESSAGE, ID + SECOND, **PROTO_FIELDS) == EXPECTED


def test_protobuf_in_base64(files: dict[str, bytes]) -> None:
    """As Confluent's client for Python registers it, whole or beside texts."""
    main, author = (
        base64.b64encode(files[name]).decode() for name in ("post.proto", "common/author.proto")
    )
    for schema in (
        Schema("PROTOBUF", main, (("common/author.proto", author),)),
        Schema("PROTOBUF", main, (("common/author.proto", AUTHOR_PROTO),)),
        Schema("PROTOBUF", PROTO, (("common/author.proto", author),)),
    ):
        assert decode(schema, ID + SECOND + MESSAGE, **PROTO_FIELDS) == EXPECTED


def test_files_that_are_imported_twice() -> None:
    """Two references import a third."""
    base = 'syntax = "proto3"; package x; message Base { string text = 1; }'
    between = 'syntax = "proto3"; package x; import "base.proto"; message %s { Base base = 1; }'
    main = (
        'syntax = "proto3"; package x; import "a.proto"; import "b.proto"; message M { A a = 1; }'
    )
    references = (("base.proto", base), ("a.proto", between % "A"), ("b.proto", between % "B"))
    value = ID + b"\0" + field(1, field(1, field(1, b"deep")))
    schema = Schema("PROTOBUF", main, references)
    decoder = Decoder(
        RecordSettings(format="registry", text_fields=("a.base.text",)),
        LimitSettings(),
        {ID: schema},
    )
    assert {decoder.decode_value(value, None, 0).text for _ in range(2)} == {"deep"}


def test_the_message_of_a_file() -> None:
    """A zero is the first message; others are named by their place, nested ones too."""
    text = field(1, b"other")
    assert decode(PROTOBUF, ID + b"\0" + text).text == "other"
    assert decode(PROTOBUF, ID + b"\2\0" + text).text == "other"
    # In descriptors the entries of maps are nested messages too, behind those of the source.
    assert decode(PROTOBUF, ID + b"\4\2\0" + text).text == "other"


def test_what_protobuf_leaves_out() -> None:
    """An empty text is a text; other fields without a value are missing."""
    empty = decode(PROTOBUF, ID + SECOND, event_time_field="seconds")
    assert empty == Document("", "t:0:0", 5)
    assert refusal(PROTOBUF, ID + SECOND, text_fields=("lead",)) == "MissingText"
    unknown = decode(PROTOBUF, ID + SECOND + field(6, 9), namespace_field="kind")
    assert unknown.namespace == "9"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\2", id="indexes that end early"),
        pytest.param(b"\2\x0a", id="a message that the file does not have"),
        pytest.param(b"\1", id="a negative number"),
        pytest.param(b"\xff" * 11, id="a number that is too large"),
        pytest.param(SECOND + b"\x0a\x7f", id="a field that ends early"),
        pytest.param(SECOND + field(1, b"\xff"), id="a text that is not UTF-8"),
    ],
)
def test_protobuf_that_is_damaged(content: bytes) -> None:
    """It becomes a dead letter."""
    assert refusal(PROTOBUF, ID + content) == "InvalidProtobuf"


@pytest.mark.parametrize(
    ("text", "references"),
    [
        pytest.param("message", (), id="no Protobuf"),
        pytest.param(PROTO, (), id="a missing reference"),
        pytest.param(PROTO, (("../common/author.proto", AUTHOR_PROTO),), id="another folder"),
        pytest.param("AAAA", (), id="no descriptor"),
    ],
)
def test_protobuf_schemas_that_cannot_be_used(
    text: str, references: tuple[tuple[str, str], ...]
) -> None:
    """The compiler's message is in the reason."""
    assert refusal(Schema("PROTOBUF", text, references), ID + SECOND) == "UnusableSchema"


def test_messagepack() -> None:
    """Texts may be strings or bytes, and times MessagePack's own."""
    value = b"\x83\xa4text\xc4\x01a\xa2id\x07\xa2at\xd6\xff" + struct.pack(">I", NOON_MS // 1000)
    decoder = Decoder(RecordSettings(format="messagepack", event_time_field="at"), LimitSettings())
    assert decoder.decode_value(value, None, 0) == Document("a", "7", NOON_MS)
    for damaged, reason in (
        (b"", "InvalidMessagePack"),
        (b"\xc1", "InvalidMessagePack"),
        (b"\x91" * 5000, "InvalidMessagePack"),
        (b"\x01", "NotAnObject"),
    ):
        with pytest.raises(Refusal) as refused:
            decoder.decode_value(damaged, None, 0)
        assert refused.value.rejection.reason == reason


def test_duplicate_records_fit_their_avro_schema() -> None:
    """What a reader decodes is what was written; Avro's JSON form of the schema is published."""
    schema = json.loads(duplicates_schema("avro").text)
    content = {
        "schema_version": 1,
        "id": "a",
        "position": {"topic": "t", "partition": 1, "offset": 2**40},
        "event_time": NOON_MS,
        "original": "b",
        "matches": [
            {
                "id": "b",
                "position": {"topic": "t", "partition": 0, "offset": 3},
                "jaccard_estimate": 0.9,
                "age_s": None,
            }
        ],
        "threshold": 0.8,
        "fingerprint": "f" * 16,
        "value": b"\xff",
    }
    written = write_duplicate(content, 7)
    assert written[:5] == ID
    read = fastavro.schemaless_reader(io.BytesIO(written[5:]), fastavro.parse_schema(schema), None)
    content["event_time"] = NOON
    content["matches"][0]["jaccard"] = None  # type: ignore[index]
    assert read == content
