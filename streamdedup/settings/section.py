"""*Pure.* What every section of the settings has in common, and the bounds that several share."""

from __future__ import annotations

import datetime as dt
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator

MILLISECOND = dt.timedelta(milliseconds=1)
SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)
DAY = dt.timedelta(days=1)
CENTURY = dt.timedelta(days=36_500)


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
