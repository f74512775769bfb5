"""*Pure.* Which source record a record of an output topic belongs to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from aiokafka import ConsumerRecord


def _clean_position(record: ConsumerRecord) -> tuple[int, int]:
    """Return the position from the compact or the full headers, whichever the worker writes."""
    headers = dict(record.headers)
    if "sd" in headers:
        partition, _, offset = headers["sd"].decode().partition(":")
        return int(partition), int(offset)
    return int(headers["streamdedup-partition"]), int(headers["streamdedup-offset"])


def _duplicate_position(record: ConsumerRecord) -> tuple[int, int]:
    position = json.loads(record.value)["position"]
    return position["partition"], position["offset"]


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
