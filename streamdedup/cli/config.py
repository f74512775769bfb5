"""*Blocking.* ``streamdedup config``: check, show and document the settings."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args, get_origin

import typer
import yaml

from streamdedup.errors import SettingsError

# Modules that pull in numba are imported in the commands, so that --help need not wait for it.
if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from streamdedup.admin.findings import Finding
    from streamdedup.settings.sections import Settings

app = typer.Typer(no_args_is_help=True, help="Check, show and document the settings.")

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file with the settings.")
]

_SIMILARITIES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Where `check` shows the S-curve."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
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

This file is generated from the declarations in `streamdedup/settings/`, where changes belong:

    streamdedup config schema --markdown > docs/settings.md

Defaults < YAML file (`--config`) < environment < flags, key by key. A setting's variable is its
name in capitals, with `STREAMDEDUP_` before it and `__` for each dot: that of `kafka.group_id` is
`STREAMDEDUP_KAFKA__GROUP_ID`. Unknown settings are refused, wherever they stand; so are unknown
variables that begin with `STREAMDEDUP_`.

- A *size* is a number of bytes: `512MiB`, `9Gi`, `1.5GB`, `1000000`.
- A *duration* is `500ms`, `30s`, `1h30m`, `7d`, or a number of seconds.
- A *list* is a YAML list, or in a variable `a,b` or `["a", "b"]`.
- An empty text means "not set" where `null` is among the values.

`Settings()` made in Python reads the environment too. `streamdedup config show` prints the settings
in force, `streamdedup config check` what follows from them and whether a worker could start, and
`streamdedup config schema` a JSON Schema for editors.
"""


@app.command()
def check(
    config: ConfigFile = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only the settings: ask no broker, look at no disk.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the settings, print what follows from them, and hold them against disk and brokers.

    The S-curve says how probable it is that a pair of that Jaccard similarity is compared at all.

    Below it stands what was found of the index directory and its disk, the brokers, the topics and
    their retention, sizes, replicas and access control, and the offsets; and who can act on it.
    Nothing is changed, and a worker that runs is not disturbed.

    Exit codes: 0 nothing that would end a worker (warnings are no errors), 3 wrong settings,
    5 topics, 6 refused by the broker, 7 no broker answers, 9-12 the index; of several the first.
    """
    from streamdedup.settings.load import load_settings  # noqa: PLC0415

    try:
        settings = load_settings(config)
        facts = _facts(settings)
        findings = None if offline else _findings(settings)
    except SettingsError as error:
        if as_json:
            typer.echo(json.dumps({"ok": False, "error": str(error)}))
        raise
    if findings is None:
        typer.echo(json.dumps(facts) if as_json else "\n".join(["ok", *_told(facts)]))
        return
    from streamdedup.admin.findings import exit_code  # noqa: PLC0415

    code = exit_code(findings)
    if as_json:
        shown = [
            {"check": one.check, "level": one.level, "message": one.message, "who": one.who}
            for one in findings
        ]
        typer.echo(json.dumps({**facts, "ok": not code, "findings": shown}))
    else:
        typer.echo("\n".join([*_told(facts), "", *_table(findings), "", _verdict(findings)]))
    raise typer.Exit(code)


def _findings(settings: Settings) -> list[Finding]:
    from streamdedup.admin import checks  # noqa: PLC0415 - aiokafka is slow to import

    # What the client would log of a failure is among the findings.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return asyncio.run(checks.check(settings))


def _table(findings: list[Finding]) -> list[str]:
    """Return the findings as lines; below one that wants a deed stands who can do it."""
    wide = max(len(one.check) for one in findings) + 2
    lines = []
    for one in findings:
        lines.append(f"{one.level:<13}{one.check:<{wide}}{one.message}")
        if one.who:
            lines.append(f"{'':<13}{'':<{wide}}-> {one.who}")
    return lines


def _verdict(findings: list[Finding]) -> str:
    counts = Counter(one.level.value for one in findings)
    counted = [
        f"{counts[level]} {level}{'s' if counts[level] > 1 else ''}"
        for level in ("error", "warning")
        if counts[level]
    ]
    return ", ".join(counted) or "ok"


@app.command()
def show(config: ConfigFile = None) -> None:
    """Print the settings in force as YAML that can be loaded again; secrets are masked."""
    from streamdedup.settings.load import load_settings  # noqa: PLC0415

    values = load_settings(config).model_dump(mode="json")
    typer.echo(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def schema(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print docs/settings.md instead.")
    ] = False,
) -> None:
    """Print the JSON Schema of the YAML file."""
    from streamdedup.settings.sections import Settings  # noqa: PLC0415

    if markdown:
        typer.echo(_markdown(), nl=False)
        return
    # In this mode defaults are written as the file writes them: 30s, not PT30S.
    document = {"$schema": _DIALECT, **Settings.model_json_schema(mode="serialization")}
    document["description"] = "The settings of streamdedup; see docs/settings.md."
    typer.echo(json.dumps(document, indent=2))


def _facts(settings: Settings) -> dict[str, Any]:
    dedup = settings.dedup
    banding = dedup.banding()
    curve = {
        f"{similarity:g}": round(banding.candidate_probability(similarity), 6)
        for similarity in sorted({*_SIMILARITIES, dedup.threshold})
    }
    return {
        "ok": True,
        "bands": banding.bands,
        "rows": banding.rows,
        "num_perm": dedup.num_perm,
        "threshold": dedup.threshold,
        "candidate_probability": curve,
        "fingerprint": dedup.sketch_parameters().fingerprint(),
        "transactional_id": settings.kafka.transactional_id,
    }


def _told(facts: dict[str, Any]) -> list[str]:
    """Return the facts as lines for a person."""
    bands, rows = facts["bands"], facts["rows"]
    lines = [
        f"bands x rows      {bands} x {rows}, {bands * rows} of {facts['num_perm']} MinHash values",
        f"threshold         {facts['threshold']:g}",
    ]
    for similarity, probability in facts["candidate_probability"].items():
        lines.append(f"S-curve at {similarity:<6} {probability:.4f}")
    lines += [
        f"fingerprint       {facts['fingerprint']}",
        f"transactional id  {facts['transactional_id']}",
    ]
    return lines


def _markdown() -> str:
    """Return docs/settings.md: a table of settings for each section."""
    from streamdedup.settings.load import walk  # noqa: PLC0415
    from streamdedup.settings.section import Section  # noqa: PLC0415

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
    from streamdedup.settings.sections import Settings  # noqa: PLC0415

    # Made without validation, and so without the environment: the bare defaults.
    value: Any = Settings.model_construct().model_dump(mode="json")
    for part in name.split("."):
        value = value[part]
    default = value if isinstance(value, str) else json.dumps(value)
    meaning = " ".join(_paragraphs(field.description))
    shown = f"`{default}`" if default else "empty"
    return f"| `{name}` | {shown} | {_values(field)} | {meaning} |\n"


def _values(field: FieldInfo) -> str:
    """Say in few words which values a setting takes."""
    from streamdedup.settings.units import format_duration, format_size  # noqa: PLC0415

    kind = _kind(field)
    writers: dict[str, Callable[[Any], str]] = {"size": format_size, "duration": format_duration}
    write = writers.get(kind, str)
    bounds = [
        f"{sign} {write(getattr(one, attribute))}"
        for one in field.metadata
        for attribute, sign in _BOUNDS.items()
        if getattr(one, attribute, None) is not None
    ]
    optional = ", or `null`" if NoneType in get_args(field.annotation) else ""
    return " ".join([kind, ", ".join(bounds)]).strip() + optional


def _kind(field: FieldInfo) -> str:
    from streamdedup.settings.units import parse_size  # noqa: PLC0415

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
    if any(getattr(one, "func", None) is parse_size for one in metadata):
        return "size"
    return _KINDS.get(get_origin(annotation) or annotation, "secret")


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _paragraphs(text: str | None) -> list[str]:
    """Return the paragraphs of a docstring, each on one line, in Markdown."""
    flat = [" ".join(part.split()) for part in (text or "").split("\n\n")]
    return [part.replace("``", "`") for part in flat if part]
