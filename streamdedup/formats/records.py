"""*Pure.* Decodes source records into documents, or refuses them with a reason."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from streamdedup.formats.objects import Refusal, parse_json, parse_messagepack
from streamdedup.formats.schemas import NO_SCHEMAS, Schema, frame_of
from streamdedup.formats.written import SchemaParser
from streamdedup.model import NO_TIMESTAMP, Document, Record, format_position
from streamdedup.settings.sections import LimitSettings, RecordSettings

_EPOCH_UNITS = ((10**11, 1), (10**14, 10**3), (10**17, 10**6), (10**20, 10**9))
"""Numbers below the first value, which is in the year 5138, have so many units per second."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CONTINUES, _BEGINS = 0x80, 0xC0
"""In UTF-8 a byte from the first value to below the second one continues a character."""
_NAMED_FIELDS, _NAME_CHARACTERS = 10, 30
"""Bounds of a message that names the fields of a document: any producer can choose their names."""


class Decoder:
    """Decodes records with fixed settings; the schemas, by prefix, may grow."""

    def __init__(
        self,
        records: RecordSettings,
        limits: LimitSettings,
        schemas: Mapping[bytes, Schema] = NO_SCHEMAS,
    ) -> None:
        self._format = records.format
        self._parser = SchemaParser(schemas)
        self._limits = limits
        self._texts = [_Field(name) for name in records.text_fields]
        self._id_field = _Field(records.id_field) if records.id_field else None
        self._namespace_field = _Field(records.namespace_field) if records.namespace_field else None
        self._time_field = _Field(records.event_time_field) if records.event_time_field else None

    def decode(self, record: Record) -> Document:
        """Decode one record, or raise a Refusal."""
        frame = frame_of(record.headers)
        document = self.decode_value(record.value, record.key, record.timestamp_ms, frame)
        return document if document.id else replace(document, id=format_position(record.position))

    def portable(self, record: Record) -> bytes | None:
        """Return the value of a record in a form that can be decoded without its headers."""
        if record.value is None or self._format != "registry":
            return record.value
        return frame_of(record.headers) + record.value

    def decode_value(
        self, value: bytes | None, key: bytes | None, timestamp_ms: int, frame: bytes = b""
    ) -> Document:
        """Decode the parts of a record, or raise a Refusal; without id and key, the id is empty.

        The frame of the headers is that of :mod:`streamdedup.formats.schemas`.
        """
        if value is None:
            raise Refusal("NullValue", "the value is null (a tombstone) and contains no text")
        if len(value) > self._limits.value_bytes:
            raise Refusal(
                "ValueTooLarge",
                f"the value has {len(value)} bytes, limits.value_bytes is "
                f"{self._limits.value_bytes}",
            )
        match self._format:
            case "text":
                return self.check(Document(_utf8(value, "the value"), _as_id(key), timestamp_ms))
            case "json":
                content = parse_json(value)
            case "messagepack":
                content = parse_messagepack(value)
            case _:
                content = self._parser.parse(value, frame)
        document = self.read(content, timestamp_ms)
        if key and not document.id:
            document = replace(document, id=_as_id(key))
        return self.check(document)

    def decode_fields(
        self, text: bytes | memoryview, id_: bytes, namespace: bytes, time_ms: int
    ) -> Document:
        """Decode a row of a table, or raise a Refusal; without an id, the id is empty."""
        read, id_read, of_namespace = (_utf8(each, "the row") for each in (text, id_, namespace))
        return self.check(Document(read, id_read, time_ms, of_namespace))

    def check(self, document: Document) -> Document:
        """Return the document, cut if ``limits.long_text`` is ``cut``; a Refusal names a limit."""
        if self._limits.long_text == "cut":
            document = replace(document, text=_cut(document.text, self._limits.text_bytes))
        else:
            _limit("TextTooLarge", "text", document.text, self._limits.text_bytes)
        _limit("IdTooLarge", "id", document.id, self._limits.id_bytes)
        if not document.id.isascii() and any("\ud800" <= each <= "\udfff" for each in document.id):
            raise Refusal("IdNotUnicode", "the id contains a lone surrogate")
        return document

    def read(self, value: dict[str, Any], timestamp_ms: int = NO_TIMESTAMP) -> Document:
        """Return the document that an object describes, or raise a Refusal; ignore the limits.

        ``timestamp_ms`` replaces a missing event time.
        """
        return Document(
            text=self._text(value),
            id=_name(value, self._id_field, "IdNotString"),
            event_time_ms=self._event_time(value, timestamp_ms),
            namespace=_name(value, self._namespace_field, "NamespaceNotString"),
        )

    def _text(self, value: dict[str, Any]) -> str:
        parts = []
        for field in self._texts:
            part = field.find(value)
            if part is None:
                continue
            if not isinstance(part, str | bytes):
                kind = type(part).__name__
                message = f"field {field.name!r} is of type {kind}, not a string"
                raise Refusal("TextNotString", message)
            parts.append(part if isinstance(part, str) else _utf8(part, f"field {field.name!r}"))
        if not parts:
            names = ", ".join(repr(field.name) for field in self._texts)
            raise Refusal(
                "MissingText",
                f"the document has no text field {names}; it has {_field_names(value)}; set "
                "records.text_fields",
            )
        return "\n".join(parts)

    def _event_time(self, value: dict[str, Any], timestamp_ms: int) -> int:
        field = self._time_field
        time = field.find(value) if field else None
        if field is None or is_missing(time):
            return timestamp_ms
        try:
            return parse_time(time)
        except (TypeError, ValueError, OverflowError) as error:
            message = f"field {field.name!r} is not a valid time: {error}"
            raise Refusal("InvalidEventTime", message) from error


class _Field:
    """A dotted path into the objects of a document."""

    def __init__(self, name: str) -> None:
        self.name = name
        *self._outer, self._last = name.split(".")

    def find(self, value: dict[str, Any]) -> Any:
        """Return the value at the path; None if it is null or missing."""
        for name in self._outer:
            inner = value.get(name)
            if not isinstance(inner, dict):
                return None
            value = inner
        return value.get(self._last)


def _field_names(value: dict[str, Any]) -> str:
    """Return the names of the first fields of an object, and never a value."""
    names = [
        f"{str(name)[:_NAME_CHARACTERS]!r}{' (null)' * (content is None)}"
        for name, content in islice(value.items(), _NAMED_FIELDS)
    ]
    more = ["..."] if len(value) > _NAMED_FIELDS else []
    return f"the fields {', '.join(names + more)}" if names else "no fields"


def _utf8(data: bytes | memoryview, what: str) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise Refusal("InvalidUtf8", f"{what} is not valid UTF-8: {error}") from error


def _name(value: dict[str, Any], field: _Field | None, reason: str) -> str:
    """Return the string, whole number or UUID of a field as a string; "" if it is missing."""
    name = field.find(value) if field else None
    if field is None or is_missing(name):
        return ""
    if isinstance(name, str):
        return name
    if isinstance(name, bytes):
        return _as_id(name)
    if isinstance(name, uuid.UUID):
        return str(name)
    if isinstance(name, bool) or not isinstance(name, int):
        kind = type(name).__name__
        raise Refusal(reason, f"field {field.name!r} is of type {kind}, not a string")
    return str(name)


def is_missing(value: Any) -> bool:
    """Return whether an id, namespace or event time is missing: null, NaN, or empty."""
    if isinstance(value, str | bytes):
        return not value
    return value is None or (isinstance(value, float) and math.isnan(value))


def parse_time(value: Any) -> int:
    """Return a time in milliseconds since the epoch.

    It is ISO 8601 (a string or bytes in UTF-8), a date or datetime (UTC without a zone), or a
    number since the epoch. Other values raise a TypeError, ValueError or OverflowError.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    if isinstance(value, str | dt.date):
        time = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
        if time.tzinfo is None:
            time = time.replace(tzinfo=dt.UTC)
        milliseconds = (time - _EPOCH) // dt.timedelta(milliseconds=1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        # The unit follows from the magnitude.
        per_second = next((unit for end, unit in _EPOCH_UNITS if value < end), None)
        milliseconds = round(value * 1000 / per_second) if per_second else -1
    else:
        raise TypeError(f"expected a string or number, found {type(value).__name__}")
    if milliseconds < 0:
        raise ValueError(f"{value!r} is out of range")
    return milliseconds


def _as_id(key: bytes | None) -> str:
    return key.decode("utf-8", "backslashreplace") if key else ""


def _cut(text: str, most: int) -> str:
    """Return as many whole characters of the text's beginning as fit in ``most`` bytes."""
    if len(text) * 4 <= most:
        return text
    # A longer slice cannot fit, and would take time to encode.
    data = text[:most].encode("utf-8", "surrogatepass")
    if len(data) <= most:
        return text[:most]
    end = most
    while _CONTINUES <= data[end] < _BEGINS:
        end -= 1
    return data[:end].decode("utf-8", "surrogatepass")


def _limit(reason: str, what: str, value: str, most: int) -> None:
    # A character takes four bytes at most, so that most texts need not be encoded.
    if len(value) * 4 <= most:
        return
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > most:
        raise Refusal(reason, f"the {what} has {size} bytes, limits.{what}_bytes is {most}")
