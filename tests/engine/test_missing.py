"""A field that is missing, null or empty takes its default, in every kind of input."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import fastavro
import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from streamdedup.columns import Fields
from streamdedup.engine.arrow import TableFields, to_fields
from streamdedup.engine.documents import to_documents
from streamdedup.files.csv_rows import CsvFields, CsvRow
from streamdedup.formats.objects import Refusal
from streamdedup.formats.records import Decoder
from streamdedup.formats.schemas import Schema
from streamdedup.model import NO_TIMESTAMP, Document, Position, Record
from streamdedup.settings.sections import LimitSettings, RecordSettings

Row: TypeAlias = dict[str, Any]
"""The fields of a document, as far as it has them."""
Read: TypeAlias = Callable[[Row], Document]
NAMES: dict[str, Any] = {"id_field": "i", "namespace_field": "n", "event_time_field": "t"}
ID = b"\0\0\0\0\x07"
POSITION = Position("posts", 3, 42)
OF_RECORD = Document("a", "posts:3:42", 5)
OF_ROW = Document("a", "", NO_TIMESTAMP)
WHOLE: Row = {"i": "x", "n": "en", "t": "2024-01-01"}
WHOLE_MS = 1_704_067_200_000
AVRO = {
    "type": "record",
    "name": "Post",
    "fields": [
        {"name": "text", "type": "string"},
        *({"name": name, "type": ["null", "string", "bytes", "double"]} for name in WHOLE),
    ],
}
PROTO = "string text = 1; string i = 2; string n = 3; string t = 4;"
OPTIONAL = PROTO.replace(" string", " optional string")


def record(encode: Callable[[Row], bytes], records: str, schema: Schema | None = None) -> Read:
    """Return what reads the value of a record; its default time is that of the record."""

    def read(row: Row) -> Document:
        settings = RecordSettings(format=records, **NAMES)  # type: ignore[arg-type]
        decoder = Decoder(settings, LimitSettings(), {ID: schema} if schema else {})
        return decoder.decode(Record(POSITION, encode({"text": "a"} | row), timestamp_ms=5))

    return read


def avro(row: Row) -> bytes:
    """Encode a row in Avro, in which a missing field can only be null."""
    buffer = io.BytesIO(ID)
    buffer.seek(len(ID))
    content = dict.fromkeys(WHOLE) | row
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(dict(AVRO)), content)
    return buffer.getvalue()


def protobuf(row: Row) -> bytes:
    """Encode a row in Protobuf, in which a field that is null is left out."""
    fields = [(number, row.get(name)) for number, name in enumerate(("text", *WHOLE), 1)]
    return (
        ID
        + b"\0"
        + b"".join(
            bytes([number << 3 | 2, len(value)]) + value.encode()
            for number, value in fields
            if value is not None
        )
    )


def proto(fields: str) -> Schema:
    """Return the schema of a message."""
    return Schema("PROTOBUF", f'syntax = "proto3"; message Post {{ {fields} }}')


def only(fields: Fields) -> Document:
    """Return the document of a table of one row."""
    [namespace] = fields.namespaces.tolist() or [b""]
    [text], [id_], [time_ms] = fields.texts, fields.ids.tolist(), fields.event_times_ms.tolist()
    return Document(text.decode(), id_.decode(), time_ms, namespace.decode())


def table(arrow_type: pa.DataType) -> Read:
    """Return what reads a table of Parquet or Arrow, or of Spark, with columns of a type."""

    def read(row: Row) -> Document:
        content = {"text": "a"} | dict.fromkeys(WHOLE) | row
        schema = pa.schema([(name, arrow_type) for name in content])
        batch = pa.RecordBatch.from_pylist([content], schema)
        rows = TableFields(schema, RecordSettings(**NAMES), "x").read(batch)
        for rejection in rows.refused.values():
            raise Refusal(rejection.reason, rejection.message)
        return only(rows.fields)

    return read


def csv(row: Row) -> Document:
    """Read a row of CSV, in which null and missing are empty."""
    content = {"text": "a"} | {name: row.get(name) or "" for name in WHOLE}
    rows = CsvFields([*content], RecordSettings(**NAMES), "x").read(
        [CsvRow(1, b"", [*content.values()])]
    )
    for rejection in rows.refused.values():
        raise Refusal(rejection.reason, rejection.message)
    return only(rows.fields)


def python(make: Callable[[list[Row]], Any]) -> Read:
    """Return what reads what callers of the Python API pass."""

    def read(row: Row) -> Document:
        records, items = RecordSettings(**NAMES), make([{"text": "a"} | row])
        fields = to_fields(items, records)
        if fields is not None:
            return only(fields)
        [document] = to_documents(items, Decoder(records, LimitSettings()))
        return document

    return read


def columns(rows: list[Row]) -> dict[str, list[Any]]:
    """Return one row as columns; each field has one."""
    return {name: [row.get(name) for row in rows] for name in ("text", *WHOLE)}


READERS: dict[str, tuple[Read, Document]] = {
    "json": (record(msgspec.json.encode, "json"), OF_RECORD),
    "messagepack": (record(msgspec.msgpack.encode, "messagepack"), OF_RECORD),
    "avro": (record(avro, "registry", Schema("AVRO", json.dumps(AVRO))), OF_RECORD),
    "protobuf": (record(protobuf, "registry", proto(PROTO)), OF_RECORD),
    "protobuf optional": (record(protobuf, "registry", proto(OPTIONAL)), OF_RECORD),
    "csv": (csv, OF_ROW),
    **{
        f"table of {kind}": (table(kind), OF_ROW)
        for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary())
    },
    "table of dictionaries": (table(pa.dictionary(pa.int8(), pa.string())), OF_ROW),
    "dicts": (python(lambda rows: rows), OF_ROW),
    "pandas": (python(lambda rows: pd.DataFrame(columns(rows), dtype="str")), OF_ROW),
    "pandas objects": (python(lambda rows: pd.DataFrame(columns(rows), dtype=object)), OF_ROW),
    "polars": (
        python(lambda rows: pl.DataFrame(columns(rows), dict.fromkeys(columns(rows), pl.String))),
        OF_ROW,
    ),
}
MISSING: dict[str, Row] = {
    "missing": {},
    "null": dict.fromkeys(WHOLE),
    "empty": dict.fromkeys(WHOLE, ""),
}
each_reader = pytest.mark.parametrize(("read", "default"), READERS.values(), ids=READERS)


@each_reader
@pytest.mark.parametrize("row", MISSING.values(), ids=MISSING)
def test_the_defaults_apply(read: Read, default: Document, row: Row) -> None:
    """They are the record's key or position and its time, or no id and no time."""
    assert read(row) == default


@each_reader
def test_fields_that_are_there(read: Read, default: Document) -> None:
    """The kinds of input of the other tests read the fields at all."""
    assert read(WHOLE) == replace(default, id="x", event_time_ms=WHOLE_MS, namespace="en")


@each_reader
def test_white_space_is_not_empty(read: Read, default: Document) -> None:
    """It is an id, and is a namespace, and is not a time."""
    assert read({"i": " ", "n": "\t"}) == replace(default, id=" ", namespace="\t")
    with pytest.raises((Refusal, ValueError), match="is not a valid time"):
        read({"t": " "})


@pytest.mark.parametrize("name", ["messagepack", "avro", "dicts"])
@pytest.mark.parametrize("value", [float("nan"), b""], ids=["nan", "no bytes"])
def test_other_values_that_are_missing(name: str, value: Any) -> None:
    """Encodings that have them mean by NaN and by no bytes that there is no value."""
    read, default = READERS[name]
    assert read(dict.fromkeys(WHOLE, value)) == default


def test_numbers_of_a_table_that_are_missing() -> None:
    """A time that is NaN is missing, whoever has written the table."""
    schema = pa.schema([("text", pa.string()), ("t", pa.float64())])
    batch = pa.RecordBatch.from_pylist([{"text": "a", "t": float("nan")}], schema)
    rows = TableFields(schema, RecordSettings(event_time_field="t"), "x").read(batch)
    assert not rows.refused
    assert only(rows.fields) == OF_ROW
