"""*Blocking* (reads files of the package). Values that name the schema they were written with.

A value of a registry begins with its *prefix*, in Confluent's wire format: a zero byte and the
schema's id in four bytes, or a one byte and the schema's GUID in 16 bytes. The prefix may stand in
a header instead, which is called the *frame* here. The prefix of Avro's single-object encoding is
the bytes C3 01 and the schema's fingerprint in eight bytes.

Sources: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/,
https://avro.apache.org/docs/1.12.0/specification/#single-object-encoding.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Literal

from streamdedup.model import Headers

Kind = Literal["AVRO", "PROTOBUF", "JSON"]

FRAME_HEADER = "__value_schema_id"
"""The header with the prefix of a value."""
SINGLE_OBJECT = b"\xc3\x01"
"""The first bytes of Avro's single-object encoding."""
GUID_BYTES = 17
_SIZES = ((b"\0", 5), (b"\1", GUID_BYTES), (SINGLE_OBJECT, 10))
"""How prefixes begin, and their lengths."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema."""

    kind: Kind
    text: str
    # Names and texts of the schemas that it refers to, each after those that it refers to itself.
    references: tuple[tuple[str, str], ...] = ()


NO_SCHEMAS: Mapping[bytes, Schema] = MappingProxyType({})
"""No schemas."""


def frame_of(headers: Headers) -> bytes:
    """Return the prefix that the headers of a record hold; empty if it is in the value."""
    for name, content in headers:
        if name == FRAME_HEADER:
            return content or b""
    return b""


def prefix_of(value: bytes, frame: bytes) -> bytes:
    """Return the prefix of a value; empty if it has none.

    A frame may continue with the message indexes of Protobuf.
    """
    start = frame or value
    size = next((size for begin, size in _SIZES if start.startswith(begin)), 0)
    return start[:size] if len(start) >= size else b""


def prefixes(values: Sequence[bytes | None], headers: Sequence[Headers]) -> list[bytes]:
    """Return the prefix of each value; empty for a value without one."""
    if not any(headers):
        return [prefix_of(value, b"") if value else b"" for value in values]
    return [
        prefix_of(value, frame_of(of_value)) if value else b""
        for value, of_value in zip(values, headers, strict=True)
    ]


def describe_prefix(prefix: bytes) -> str:
    """Return the id, GUID or fingerprint in a prefix, in the form that people know."""
    if prefix.startswith(SINGLE_OBJECT):
        return f"fingerprint {prefix[:1:-1].hex()}"
    if prefix[:1] == b"\1":
        return f"GUID {uuid.UUID(bytes=prefix[1:])}"
    return f"id {int.from_bytes(prefix[1:], 'big')}"


def duplicates_schema(form: Literal["json", "avro"]) -> Schema:
    """Return the schema of duplicate records, for a registry."""
    name = "duplicate-record.avsc" if form == "avro" else "duplicate-record.schema.json"
    path = resources.files("streamdedup.formats") / "published" / name
    return Schema("AVRO" if form == "avro" else "JSON", path.read_text(encoding="utf-8"))
