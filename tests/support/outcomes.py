"""*Pure.* Which source record a record of an output topic belongs to."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
from aiokafka import ConsumerRecord

from streamdedup.formats.schemas import duplicates_schema


def _clean_position(record: ConsumerRecord) -> tuple[int, int]:
    """Return the position from the compact or the full headers, whichever the worker writes."""
    headers = dict(record.headers)
    if "sd" in headers:
        partition, _, offset = headers["sd"].decode().partition(":")
        return int(partition), int(offset)
    return int(headers["streamdedup-partition"]), int(headers["streamdedup-offset"])


def _duplicate_position(record: ConsumerRecord) -> tuple[int, int]:
    position = _duplicate(record.value)["position"]
    return position["partition"], position["offset"]


def _duplicate(value: bytes) -> Any:
    """Decode a duplicate record: JSON, or Avro in the wire format."""
    if value[:1] != b"\0":
        return json.loads(value)
    schema = fastavro.parse_schema(json.loads(duplicates_schema("avro").text))
    return fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)


def _dead_letter_position(record: ConsumerRecord) -> tuple[int, int]:
    headers = dict(record.headers)
    prefix = "__streamdedup.errors."
    return int(headers[prefix + "partition"]), int(headers[prefix + "offset"])


POSITION_IN: Mapping[str, Callable[[ConsumerRecord], tuple[int, int]]] = {
    "clean": _clean_position,
    "duplicates": _duplicate_position,
    "dead_letter": _dead_letter_position,
}
"""Functions from a record to the partition and offset of its source record, by the topic's role."""
