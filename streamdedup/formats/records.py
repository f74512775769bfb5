"""*Pure.* Records to documents: what a source value means, and why some mean nothing."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import Any

import msgspec

from streamdedup.model import Document, Record, Rejection
from streamdedup.settings.sections import LimitSettings, RecordSettings

_SECONDS_END = 100_000_000_000
"""Numbers below are seconds since the epoch (until the year 5138), from there on milliseconds."""
_quick_parse = msgspec.json.Decoder().decode
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CONTINUES, _BEGINS = 0x80, 0xC0
"""In UTF-8 a byte from the first to below the second goes on with a character."""
_MESSAGE_CHARACTERS = 500
"""Longest message of a refusal: some quote the value, which may have megabytes."""


class Refusal(Exception):  # noqa: N818 - not an error of ours: the record's
    """A record that cannot become a document."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.rejection = Rejection("decode", reason, message[:_MESSAGE_CHARACTERS])


class Decoder:
    """Turns records into documents, under fixed settings."""

    def __init__(self, records: RecordSettings, limits: LimitSettings) -> None:
        self._records = records
        self._limits = limits
        self._texts = [_Field(name) for name in records.text_fields]
        self._id_field = _Field(records.id_field) if records.id_field else None
        self._namespace_field = _Field(records.namespace_field) if records.namespace_field else None
        self._time_field = _Field(records.event_time_field) if records.event_time_field else None

    def decode(self, record: Record) -> Document:
        """Decode one record.

        Raises:
            Refusal: the record cannot become a document.
        """
        value = record.value
        if value is None:
            raise Refusal("NullValue", "the value is null (a tombstone); there is no text")
        if len(value) > self._limits.value_bytes:
            raise Refusal(
                "ValueTooLarge",
                f"the value has {len(value)} bytes, limits.value_bytes is "
                f"{self._limits.value_bytes}",
            )
        if self._records.format == "text":
            return self._from_text(record, value)
        return self._from_json(record, _parse_object(value))

    def check(self, document: Document) -> Document:
        """Return the document if it keeps the limits, with its text cut where that is wanted.

        Raises:
            Refusal: it does not.
        """
        if self._limits.long_text == "cut":
            document = replace(document, text=_cut(document.text, self._limits.text_bytes))
        else:
            _limit("TextTooLarge", "text", document.text, self._limits.text_bytes)
        _limit("IdTooLarge", "id", document.id, self._limits.id_bytes)
        if not document.id.isascii() and _has_surrogates(document.id):
            raise Refusal("IdNotUnicode", "the id holds a lone surrogate")
        return document

    def _from_text(self, record: Record, value: bytes) -> Document:
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refusal("InvalidUtf8", f"the value is no UTF-8: {error}") from error
        return self.check(Document(text, _key_or_position(record), record.timestamp_ms))

    def _from_json(self, record: Record, value: dict[str, Any]) -> Document:
        return self.check(
            Document(
                text=self._text(value),
                id=self._id(record, value),
                event_time_ms=self._event_time(record, value),
                namespace=self._namespace(value),
            )
        )

    def _text(self, value: dict[str, Any]) -> str:
        parts = []
        for field in self._texts:
            part = field.find(value)
            if part is None:
                continue
            if not isinstance(part, str):
                kind = type(part).__name__
                raise Refusal(
                    "TextNotString", f"field {field.name!r} is of type {kind}, not a string"
                )
            parts.append(part)
        if not parts:
            names = ", ".join(repr(field.name) for field in self._texts)
            raise Refusal("MissingText", f"the document has no text field {names}")
        return "\n".join(parts)

    def _id(self, record: Record, value: dict[str, Any]) -> str:
        return _name(value, self._id_field, "IdNotString") or _key_or_position(record)

    def _namespace(self, value: dict[str, Any]) -> str:
        return _name(value, self._namespace_field, "NamespaceNotString")

    def _event_time(self, record: Record, value: dict[str, Any]) -> int:
        field = self._time_field
        found = field.find(value) if field else None
        if field is None or found is None:
            return record.timestamp_ms
        try:
            return parse_time(found)
        except (TypeError, ValueError, OverflowError) as error:
            message = f"field {field.name!r} holds no time: {error}"
            raise Refusal("InvalidEventTime", message) from error


class _Field:
    """Where something stands in a document: names with dots between them lead into objects."""

    def __init__(self, name: str) -> None:
        self.name = name
        *self._outer, self._last = name.split(".")

    def find(self, value: dict[str, Any]) -> Any:
        """Return what stands there; None for null, and where there is nothing."""
        for name in self._outer:
            inner = value.get(name)
            if not isinstance(inner, dict):
                return None
            value = inner
        return value.get(self._last)


def _name(value: dict[str, Any], field: _Field | None, reason: str) -> str:
    """Return a string or whole number as a string, or "" where there is none."""
    found = field.find(value) if field else None
    if isinstance(found, str):
        return found
    if field is None or found is None:
        return ""
    if isinstance(found, bool) or not isinstance(found, int):
        kind = type(found).__name__
        raise Refusal(reason, f"field {field.name!r} is of type {kind}, not a string")
    return str(found)


def parse_time(value: Any) -> int:
    """Read a time: ISO 8601 (UTC unless it says otherwise), or a number since the epoch.

    Returns:
        Milliseconds since the epoch.

    Raises:
        TypeError, ValueError, OverflowError: the value is no time.
    """
    if isinstance(value, str):
        time = dt.datetime.fromisoformat(value)
        if time.tzinfo is None:
            time = time.replace(tzinfo=dt.UTC)
        milliseconds = (time - _EPOCH) // dt.timedelta(milliseconds=1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        milliseconds = round(value if abs(value) >= _SECONDS_END else value * 1000)
    else:
        raise TypeError(f"a value of type {type(value).__name__}")
    if not 0 <= milliseconds < 2**62:
        raise ValueError(f"{value!r} is out of range")
    return milliseconds


def _parse_object(value: bytes) -> dict[str, Any]:
    try:
        parsed = _quick_parse(value)
    except (UnicodeDecodeError, msgspec.DecodeError):
        parsed = _parse_patiently(value)
    except RecursionError as error:
        raise Refusal("InvalidJson", "the value is nested too deeply") from error
    if not isinstance(parsed, dict):
        kind = type(parsed).__name__
        raise Refusal("NotAnObject", f"the value is JSON of type {kind}, not an object")
    return parsed


def _parse_patiently(value: bytes) -> Any:
    """Parse what the quick parser refuses: lone surrogates and huge numbers pass here.

    Its messages also say best what is wrong.
    """
    try:
        return json.loads(value.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise Refusal("InvalidUtf8", f"the value is no UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:
        raise Refusal("InvalidJson", f"the value is no JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed")


def _key_or_position(record: Record) -> str:
    if record.key:
        return record.key.decode("utf-8", "backslashreplace")
    position = record.position
    return f"{position.topic}:{position.partition}:{position.offset}"


def _has_surrogates(value: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in value)


def _cut(text: str, most: int) -> str:
    """Return as many whole characters from the text's beginning as fit in so many bytes."""
    if len(text) * 4 <= most:
        return text
    # Before it is normalised, so that this costs no more than a text of that size.
    data = text[:most].encode("utf-8", "surrogatepass")
    if len(data) <= most:
        return text[:most]
    end = most
    while _CONTINUES <= data[end] < _BEGINS:
        end -= 1
    return data[:end].decode("utf-8", "surrogatepass")


def _limit(reason: str, what: str, value: str, most: int) -> None:
    # No character takes more than four bytes, so most texts need no encoding to be measured.
    if len(value) * 4 <= most:
        return
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > most:
        raise Refusal(reason, f"the {what} has {size} bytes, limits.{what}_bytes is {most}")
