"""*Pure.* Avro values, with fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from streamdedup.formats.objects import Refusal, as_object
from streamdedup.formats.schemas import SINGLE_OBJECT, Schema


def avro_parser(schema: Schema) -> Callable[[bytes], dict[str, Any]]:
    """Return the parser of values that were written with a schema.

    Raises:
        ValueError: the schema is not valid.
    """
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
    """Return how values that were written with a schema begin in Avro's single-object encoding.

    Raises:
        ValueError: the schema is not valid.
    """
    canonical = to_parsing_canonical_form(json.loads(text))
    return SINGLE_OBJECT + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
