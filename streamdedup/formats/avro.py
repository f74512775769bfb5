"""*Blocking* (reads a file of the package once). Avro values, with fastavro."""

from __future__ import annotations

import functools
import io
import json
import struct
from collections.abc import Callable
from typing import Any

import fastavro
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from streamdedup.formats.objects import Refusal, as_object
from streamdedup.formats.schemas import SINGLE_OBJECT, Schema, duplicates_schema


def avro_parser(schema: Schema) -> Callable[[bytes], dict[str, Any]]:
    """Return the parser of values that were written with a schema; ValueError if it is invalid."""
    named: dict[str, Any] = {}
    for _, text in schema.references:
        parse_schema(json.loads(text), named_schemas=named)
    parsed = parse_schema(json.loads(schema.text), named_schemas=named)

    def parse(value: bytes) -> dict[str, Any]:
        try:
            content = fastavro.schemaless_reader(io.BytesIO(value), parsed, None)
        except Exception as error:
            # fastavro raises errors of many kinds about damaged values.
            message = f"the value does not fit its Avro schema: {type(error).__name__}: {error}"
            raise Refusal("InvalidAvro", message) from error
        return as_object(content, "Avro")

    return parse


def single_object_prefix(text: str) -> bytes:
    """Return how values of a schema begin in Avro's single-object encoding; it must be valid."""
    canonical = to_parsing_canonical_form(json.loads(text))
    return SINGLE_OBJECT + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))


def write_duplicate(content: dict[str, Any], schema_id: int) -> bytes:
    """Return a duplicate record in the wire format of a registry, with the id of its schema."""
    buffer = io.BytesIO()
    buffer.write(struct.pack(">bI", 0, schema_id))
    fastavro.schemaless_writer(buffer, _duplicates(), content)
    return buffer.getvalue()


@functools.cache
def _duplicates() -> Any:
    return parse_schema(json.loads(duplicates_schema("avro").text))
