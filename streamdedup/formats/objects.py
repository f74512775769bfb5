"""*Pure.* Parses values that describe themselves, JSON and MessagePack, or refuses them."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from streamdedup.model import Rejection

_MESSAGE_CHARACTERS = 500
"""Longest message of a refusal. Some quote the value, which may have megabytes."""
_quick_parse = msgspec.json.Decoder().decode
_unpack = msgspec.msgpack.Decoder().decode


class Refusal(Exception):  # noqa: N818 - the record is wrong, not the program
    """A record that cannot become a document."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.rejection = Rejection("decode", reason, message[:_MESSAGE_CHARACTERS])


def parse_json(value: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise a Refusal for another value."""
    try:
        parsed = _quick_parse(value)
    except RecursionError as error:
        raise Refusal("InvalidJson", "the value is nested too deeply") from error
    except (UnicodeDecodeError, msgspec.DecodeError):
        # This parser accepts lone surrogates and huge numbers, and its messages are more precise.
        try:
            parsed = json.loads(value.decode("utf-8"), parse_constant=_refuse_constant)
        except UnicodeDecodeError as error:
            raise Refusal("InvalidUtf8", f"the value is not valid UTF-8: {error}") from error
        except (ValueError, RecursionError) as error:
            raise Refusal("InvalidJson", f"the value is not valid JSON: {error}") from error
    return as_object(parsed, "JSON")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed")


def parse_messagepack(value: bytes) -> dict[str, Any]:
    """Parse a MessagePack map; raise a Refusal for another value."""
    try:
        parsed = _unpack(value)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        message = f"the value is not valid MessagePack: {error}"
        raise Refusal("InvalidMessagePack", message) from error
    return as_object(parsed, "MessagePack map")


def as_object(parsed: Any, encoding: str) -> dict[str, Any]:
    """Return a parsed value that is an object; raise a Refusal for another value."""
    if not isinstance(parsed, dict):
        kind = type(parsed).__name__
        raise Refusal("NotAnObject", f"the value is {encoding} of type {kind}, not an object")
    return parsed
