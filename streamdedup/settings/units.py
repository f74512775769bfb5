"""*Pure.* What settings are made of: sections, and values in the forms of files and variables."""

from __future__ import annotations

import datetime as dt
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, get_args

import durationpy
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_settings import NoDecode

MILLISECOND = dt.timedelta(milliseconds=1)
SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)
DAY = dt.timedelta(days=1)
CENTURY = dt.timedelta(days=36_500)

_SIZE = re.compile(
    r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d{1,2})?)\s*(?:([kmgtpe])(i?))?b?\s*", re.IGNORECASE
)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_SECONDS = re.compile(r"[+-]?\d+(?:\.\d*)?(?:e[+-]?\d{1,2})?", re.IGNORECASE)


def parse_size(value: Any) -> int:
    """Parse a size: ``9Gi``, ``1.5 GB``, ``1e+06`` as Helm writes it; else raise a ValueError."""
    parts = _SIZE.fullmatch(str(value))
    if parts is None:
        raise ValueError(f"invalid size {value!r}; expected e.g. 512MiB, 9Gi or 1000000")
    number, unit, binary = parts.groups(default="")
    size = Fraction(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()]
    if size.denominator != 1:
        raise ValueError(f"invalid size {value!r}; expected a whole number of bytes")
    return int(size)


def format_size(value: int) -> str:
    """Format a size in the largest binary unit without a fraction, for :func:`parse_size`."""
    power = next((power for power in range(6, 0, -1) if value % 1024**power == 0), 0)
    if not value or not power:
        return str(value)
    return f"{value // 1024**power}{' KMGTPE'[power]}iB"


def parse_duration(value: Any) -> dt.timedelta:
    """Parse ``30s``, ``1h30m``, ``7d``, or a number of seconds; else raise a ValueError."""
    if isinstance(value, dt.timedelta):
        return value
    text = str(value).replace(" ", "")
    try:
        if _SECONDS.fullmatch(text):
            return dt.timedelta(seconds=float(text))
        duration: dt.timedelta = durationpy.from_str(text)
    except (durationpy.DurationError, ValueError, OverflowError):
        raise ValueError(f"invalid duration {value!r}; expected e.g. 500ms, 30s or 1h30m") from None
    return duration


def format_duration(value: dt.timedelta) -> str:
    """Format a duration for :func:`parse_duration`; the largest unit is the day."""
    # durationpy would write 30 days as 1mm, and the length of a year is ambiguous. It writes
    # microseconds as 1e-06s, which it cannot read.
    days, rest = divmod(value, dt.timedelta(days=1))
    milliseconds_, fraction = divmod(rest, dt.timedelta(milliseconds=1))
    rest -= fraction
    parts = [
        f"{days}d" if days else "",
        str(durationpy.to_str(rest)) if milliseconds_ else "",
        f"{fraction.microseconds}us" if fraction else "",
    ]
    return "".join(parts) or str(durationpy.to_str(value))


def milliseconds(value: dt.timedelta) -> int:
    """Return a duration in whole milliseconds, rounded down."""
    return value // dt.timedelta(milliseconds=1)


def _as_list(value: Any) -> Any:
    """Parse a list from a variable or flag, which write ``a,b`` or ``["a", "b"]``."""
    if not isinstance(value, str):
        return value
    if value.startswith('["') or value == "[]":  # a bracket alone begins an IPv6 address
        return json.loads(value)
    return [part.strip() for part in value.split(",")] if value else []


def _filled(value: Any) -> Any:
    """Return a path as it is given, unless it is empty."""
    if value == "":
        raise ValueError("it is empty; give a path, or . for the working directory")
    return value


def _as_number(value: Any) -> Any:
    """Parse a number from a variable or flag, for types that allow only certain numbers."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


_NUMBER_OR_TEXT = WithJsonSchema({"type": ["string", "number"]})
Size = Annotated[
    int, BeforeValidator(parse_size), PlainSerializer(format_size, return_type=str), _NUMBER_OR_TEXT
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
_LIST = WithJsonSchema({"type": ["array", "string"], "items": {"type": "string"}})
UrlList = Annotated[
    tuple[Annotated[str, StringConstraints(pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$")], ...],
    NoDecode,
    BeforeValidator(_as_list),
    _LIST,
]
FilledPath = Annotated[
    Path, BeforeValidator(_filled), WithJsonSchema({"type": "string", "format": "path"})
]
"""A path that may not be empty: ``Path("")`` is the working directory."""
PathList = Annotated[tuple[FilledPath, ...], NoDecode, BeforeValidator(_as_list), _LIST]
Number = BeforeValidator(_as_number)


def read_blanks(cls: type[BaseModel], values: Any) -> Any:
    """Read an empty text as null if the setting may be null, and an empty section as its defaults.

    A variable cannot hold null. A YAML section in which every line is a comment is null.
    """
    if not isinstance(values, dict):
        return values
    read = dict(values)
    for name, value in values.items():
        field = cls.model_fields.get(str(name))
        if field is None:
            continue
        if value is None and isinstance(field.default, Section):
            del read[name]
        elif value == "" and type(None) in get_args(field.annotation):
            read[name] = None
    return read


class Section(BaseModel):
    """A group of settings; unknown names are an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    _blanks = model_validator(mode="before")(read_blanks)
