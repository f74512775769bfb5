"""*Pure.* Sizes, durations and lists as people, Helm and environment variables write them."""

from __future__ import annotations

import datetime as dt
import json
import re
from fractions import Fraction
from typing import Annotated, Any

import durationpy
from pydantic import BeforeValidator, Field, PlainSerializer, StringConstraints, WithJsonSchema
from pydantic_settings import NoDecode

_SIZE = re.compile(
    r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d{1,2})?)\s*(?:([kmgtpe])(i?))?b?\s*", re.IGNORECASE
)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_SECONDS = re.compile(r"[+-]?\d+(?:\.\d*)?(?:e[+-]?\d{1,2})?", re.IGNORECASE)


def parse_size(value: Any) -> int:
    """Read a size in bytes as people and Helm write it: ``9Gi``, ``512MiB``, ``1.5 GB``, ``1e+06``.

    Raises:
        ValueError: the value is no size.
    """
    found = _SIZE.fullmatch(str(value))
    if found is None:
        raise ValueError(f"{value!r} is no size; write for example 512MiB, 9Gi or 1000000")
    number, unit, binary = found.groups(default="")
    size = Fraction(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()]
    if size.denominator != 1:
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(size)


def format_size(value: int) -> str:
    """Write a size in the largest binary unit without a fraction, for :func:`parse_size`."""
    power = next((power for power in range(6, 0, -1) if value % 1024**power == 0), 0)
    if not value or not power:
        return str(value)
    return f"{value // 1024**power}{' KMGTPE'[power]}iB"


def parse_duration(value: Any) -> dt.timedelta:
    """Read a duration as people write it: ``30s``, ``1h30m``, ``7d``; a bare number is seconds.

    Raises:
        ValueError: the value is no duration.
    """
    if isinstance(value, dt.timedelta):
        return value
    text = str(value).replace(" ", "")
    try:
        if _SECONDS.fullmatch(text):
            return dt.timedelta(seconds=float(text))
        duration: dt.timedelta = durationpy.from_str(text)
    except (durationpy.DurationError, ValueError, OverflowError):
        raise ValueError(
            f"{value!r} is no duration; write for example 500ms, 30s or 1h30m"
        ) from None
    return duration


def format_duration(value: dt.timedelta) -> str:
    """Write a duration as :func:`parse_duration` reads it, in days at most."""
    # A month of 30 days would be written 1mm, and a year has 365 days to some and not to others.
    days, rest = divmod(value, dt.timedelta(days=1))
    if not days:
        return str(durationpy.to_str(value))
    return f"{days}d" + (str(durationpy.to_str(rest)) if rest else "")


def milliseconds(value: dt.timedelta) -> int:
    """Return a duration in whole milliseconds, rounded down."""
    return value // dt.timedelta(milliseconds=1)


def _as_list(value: Any) -> Any:
    """Let ``a,b`` and ``["a", "b"]`` stand for lists, as variables and flags write them."""
    if not isinstance(value, str):
        return value
    if value.startswith('["'):  # a bare bracket begins the address of an IPv6 server
        return json.loads(value)
    return [part.strip() for part in value.split(",")]


def _as_number(value: Any) -> Any:
    """Let ``"4"`` stand for 4, as variables and flags write it, where few numbers are allowed."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


_NUMBER_OR_TEXT = WithJsonSchema({"type": ["string", "number"]})
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, return_type=str),
    _NUMBER_OR_TEXT,
]
Duration = Annotated[
    dt.timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    _NUMBER_OR_TEXT,
]
NameList = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1)], ...],
    NoDecode,
    BeforeValidator(_as_list),
    Field(min_length=1),
    WithJsonSchema({"type": ["array", "string"], "items": {"type": "string"}, "minItems": 1}),
]
Number = BeforeValidator(_as_number)
