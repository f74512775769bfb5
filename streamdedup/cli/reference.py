"""*Pure.* The reference of the settings, docs/settings.md, made from their declarations."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from streamdedup.settings.load import walk
from streamdedup.settings.section import Section
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import format_duration, format_size, parse_size

_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_KINDS: dict[Any, str] = {
    bool: "`true`, `false`",
    int: "integer",
    float: "number",
    str: "text",
    Path: "path",
    dt.timedelta: "duration",
    tuple: "list",
}
_PREFACE = """\
# Settings

This file is generated from the declarations in `streamdedup/settings/sections.py`. To change it,
edit them and run

    streamdedup config schema --markdown > docs/settings.md

Each source overrides the ones before it, key by key: defaults, YAML file (`--config`), environment,
flags. The environment variable of a setting is its name in capitals, with the prefix `STREAMDEDUP_`
and `__` for each dot: `kafka.group_id` is `STREAMDEDUP_KAFKA__GROUP_ID`. Unknown settings are
errors, and so are unknown variables that begin with `STREAMDEDUP_`.

- A *size* is a number of bytes: `512MiB`, `9Gi`, `1.5GB`, `1000000`.
- A *duration* is `500ms`, `30s`, `1h30m`, `7d`, or a number of seconds.
- A *list* is a YAML list; in a variable, `a,b` or `["a", "b"]`.
- An empty text means "not set" if `null` is among the values.

`Settings()` in Python reads the environment too. `streamdedup config show` prints the settings in
force. `streamdedup config check` prints their consequences and checks whether a worker could start.
`streamdedup config schema` prints a JSON Schema for editors.
"""


def markdown() -> str:
    """Return docs/settings.md: a table of settings for each section."""
    heads = {"": "Top level"}
    rows: dict[str, list[str]] = {"": []}
    for name, field in walk():
        if isinstance(field.default, Section):
            title, *rest = _paragraphs(type(field.default).__doc__)
            heads[name] = "\n\n".join([f"`{name}`: {title}", *rest])
            rows[name] = []
        else:
            rows[name.rpartition(".")[0]].append(_row(name, field))
    columns = "| setting | default | values | meaning |\n|---|---|---|---|\n"
    sections = [
        f"\n## {heads[name]}\n\n{columns}{''.join(rows[name])}"
        for name in [*(name for name in rows if name), ""]
    ]
    return "".join([_PREFACE, *sections])


def _row(name: str, field: FieldInfo) -> str:
    # Without validation the environment is not read: these are the defaults.
    value: Any = Settings.model_construct().model_dump(mode="json")
    for part in name.split("."):
        value = value[part]
    default = value if isinstance(value, str) else json.dumps(value)
    meaning = " ".join(_paragraphs(field.description))
    shown = f"`{default}`" if default else "empty"
    return f"| `{name}` | {shown} | {_values(field)} | {meaning} |\n"


def _values(field: FieldInfo) -> str:
    """Describe the values of a setting in a few words."""
    kind = _kind(field)
    writers: dict[str, Callable[[Any], str]] = {"size": format_size, "duration": format_duration}
    write = writers.get(kind, str)
    bounds = [
        f"{sign} {write(getattr(item, attribute))}"
        for item in field.metadata
        for attribute, sign in _BOUNDS.items()
        if getattr(item, attribute, None) is not None
    ]
    optional = ", or `null`" if NoneType in get_args(field.annotation) else ""
    return " ".join([kind, ", ".join(bounds)]).strip() + optional


def _kind(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    metadata = field.metadata
    if NoneType in get_args(annotation):
        annotation = get_args(annotation)[0]
        if get_origin(annotation) is Annotated:
            annotation, *metadata = get_args(annotation)
    if get_origin(annotation) is Literal:
        return _listed(get_args(annotation))
    extra = field.json_schema_extra
    if isinstance(extra, dict) and isinstance(extra.get("enum"), list):
        return _listed(cast("list[str]", extra["enum"]))
    if isinstance(extra, dict) and isinstance(extra.get("anyOf"), list):
        names = cast("list[dict[str, list[str]]]", extra["anyOf"])[0]["enum"]
        return f"{_listed(names)}, or a list of steps"
    if any(getattr(item, "func", None) is parse_size for item in metadata):
        return "size"
    return _KINDS.get(get_origin(annotation) or annotation, "secret")


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _paragraphs(text: str | None) -> list[str]:
    """Return the paragraphs of a docstring, each on one line, in Markdown."""
    flat = [" ".join(part.split()) for part in (text or "").split("\n\n")]
    return [part.replace("``", "`") for part in flat if part]
