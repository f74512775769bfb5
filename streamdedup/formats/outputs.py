"""*Pure.* Headers of clean records, duplicate records, and dead letters.

docs/format.md describes all three for their readers.
"""

from __future__ import annotations

import base64
import datetime as dt
from dataclasses import dataclass
from typing import Any

import msgspec

from streamdedup.columns import Positions
from streamdedup.model import NO_TIMESTAMP, Record, Rejection, Verdict
from streamdedup.settings.sections import HeaderForm, Settings

SCHEMA_VERSION = 1
HEADER_PREFIX = "streamdedup-"
SOURCE_HEADER = "sd"
"""Compact header: partition and offset of the source record, ``PARTITION:OFFSET``."""
ORIGINAL_HEADER = "sd-original"
"""Compact header of a duplicate: the id of the best match."""
JACCARD_HEADER = "sd-jaccard"
"""Compact header of a duplicate: its similarity, computed or else estimated."""
ERROR_PREFIX = "__streamdedup.errors."
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class OutputRule:
    """What every output record contains of the settings."""

    threshold: float
    fingerprint: str
    include_value: bool
    headers: HeaderForm = "compact"
    schema_id: int | None = None

    @classmethod
    def from_settings(cls, settings: Settings, schema_id: int | None = None) -> OutputRule:
        """Return the rule of these settings; without the id of an Avro schema, that of JSON."""
        output, fingerprint = settings.output, settings.fingerprint
        return cls(
            settings.dedup.threshold, fingerprint, output.include_value, output.headers, schema_id
        )


def clean_headers(verdict: Verdict, rule: OutputRule) -> Headers:
    """Return the headers that are added to a record, in the form of the rule."""
    if rule.headers == "none":
        return []
    return _full_headers(verdict, rule) if rule.headers == "full" else _compact_headers(verdict)


def kept_headers(positions: Positions, rule: OutputRule) -> list[Headers]:
    """Return :func:`clean_headers` of kept records, unless the rule has the full form."""
    if rule.headers == "none":
        return [[]] * len(positions)
    places = zip(positions.partitions.tolist(), positions.offsets.tolist(), strict=True)
    return [[(SOURCE_HEADER, b"%d:%d" % place)] for place in places]


def _compact_headers(verdict: Verdict) -> Headers:
    _, partition, offset = verdict.position
    headers: Headers = [(SOURCE_HEADER, b"%d:%d" % (partition, offset))]
    original = verdict.original
    if original is not None:
        jaccard = original.jaccard_estimate if original.jaccard is None else original.jaccard
        headers.append((ORIGINAL_HEADER, original.id.encode()))
        headers.append((JACCARD_HEADER, b"%.6f" % jaccard))
    return headers


def _full_headers(verdict: Verdict, rule: OutputRule) -> Headers:
    position = verdict.position
    ours = {
        "verdict": verdict.outcome.value,
        "id": verdict.id,
        "topic": position.topic,
        "partition": str(position.partition),
        "offset": str(position.offset),
        "fingerprint": rule.fingerprint,
    }
    original = verdict.original
    if original is not None:
        ours["original"] = original.id
        ours["jaccard-estimate"] = f"{original.jaccard_estimate:.6f}"
        if original.jaccard is not None:
            ours["jaccard"] = f"{original.jaccard:.6f}"
        ours["matches"] = msgspec.json.encode(_matches(verdict)).decode()
    return [(HEADER_PREFIX + name, text.encode("utf-8")) for name, text in ours.items()]


def duplicate_record(value: bytes | None, verdict: Verdict, rule: OutputRule) -> bytes:
    """Return a duplicate record, which names the kept documents that it repeats.

    It is JSON, or Avro in the wire format of a registry. The rule may include the source's value.
    """
    original = verdict.original
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "id": verdict.id,
        "position": verdict.position._asdict(),
        "original": original.id if original else None,
        "matches": _matches(verdict),
        "threshold": rule.threshold,
        "fingerprint": rule.fingerprint,
    }
    if rule.schema_id is not None:
        known = verdict.event_time_ms != NO_TIMESTAMP
        content["event_time"] = verdict.event_time_ms if known else None
        content["value"] = value if rule.include_value else None
        from streamdedup.formats.avro import write_duplicate

        return write_duplicate(content, rule.schema_id)
    content["event_time"] = _time(verdict.event_time_ms)
    if rule.include_value:
        content |= _value(value)
    return msgspec.json.encode(content)


def dead_letter_headers(record: Record, rejection: Rejection, *, omitted: bool) -> Headers:
    """Return the original headers of a record, followed by the reason, as Kafka Connect does.

    With ``omitted``, the value is too large for the dead-letter topic.
    """
    position = record.position
    ours = {
        "topic": position.topic,
        "partition": str(position.partition),
        "offset": str(position.offset),
        "stage": rejection.stage,
        "exception.class.name": rejection.reason,
        "exception.message": rejection.message,
    }
    if omitted:
        ours["value.omitted"] = str(len(record.value or b""))
    return [
        *record.headers,
        *(
            (ERROR_PREFIX + name, text.encode("utf-8", "backslashreplace"))
            for name, text in ours.items()
        ),
    ]


def rejected_record(record: Record, rejection: Rejection) -> bytes:
    """Return the JSON line that the embedded mode writes for a rejected line."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "position": record.position._asdict(),
        "stage": rejection.stage,
        "reason": rejection.reason,
        "message": rejection.message.encode("utf-8", "backslashreplace").decode(),
    }
    return msgspec.json.encode(content | _value(record.value))


def _matches(verdict: Verdict) -> list[dict[str, Any]]:
    return [
        {
            "id": match.id,
            "position": match.position._asdict(),
            "jaccard_estimate": round(match.jaccard_estimate, 6),
            "age_s": match.age_s,
        }
        | ({} if match.jaccard is None else {"jaccard": round(match.jaccard, 6)})
        for match in verdict.matches
    ]


def _time(event_time_ms: int) -> str | None:
    if event_time_ms == NO_TIMESTAMP:
        return None
    try:
        time = _EPOCH + dt.timedelta(milliseconds=event_time_ms)
    except OverflowError:
        # A producer can send any number; the year 60000 has no ISO 8601 form.
        return None
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _value(value: bytes | None) -> dict[str, str | None]:
    """Return the value as text if it is UTF-8, else in base64."""
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode("utf-8")}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode("ascii")}
