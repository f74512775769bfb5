"""*Blocking.* ``streamdedup config``: checks, shows and documents the settings."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdedup.cli import options
from streamdedup.errors import SettingsError

if TYPE_CHECKING:
    from streamdedup.admin.findings import Finding
    from streamdedup.settings.sections import Settings

app = typer.Typer(no_args_is_help=True, help="Check, show and document the settings.")

_SIMILARITIES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Similarities at which `check` shows the S-curve."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

Offline = Annotated[
    bool, typer.Option("--offline", help="Check only the settings, not the brokers and the disk.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md instead.")]


@app.command()
def check(
    config: options.ConfigFile = None, offline: Offline = False, as_json: options.AsJson = False
) -> None:
    """Check the settings, the disk and the brokers, and print what follows from the settings.

    The S-curve is the probability that a pair of that Jaccard similarity is compared.

    Each finding concerns the index directory and its disk, the brokers, the topics (retention,
    sizes, replicas, access control) or the offsets, and names who can act on it. The command
    changes nothing, and does not disturb a running worker.

    Exit codes: 0 no error (warnings are not errors), 3 invalid settings, 5 topics, 6 refused by the
    broker, 7 no broker answers, 9-12 the index. With several errors, the code of the first one.
    """
    import asyncio
    import logging

    from streamdedup.admin.findings import exit_code

    findings: list[Finding] | None = None
    try:
        settings = options.load(config)
        facts = _facts(settings)
        if not offline:
            from streamdedup.admin import checks

            # The findings contain what the client would log about a failure.
            logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
            findings = asyncio.run(checks.check(settings))
    except SettingsError as error:
        if as_json:
            typer.echo(json.dumps({"ok": False, "error": str(error)}))
        raise
    code = exit_code(findings or [])
    if as_json:
        names = ("check", "level", "message", "who")
        if findings is not None:
            facts["findings"] = [{name: getattr(one, name) for name in names} for one in findings]
        typer.echo(json.dumps({"ok": not code, **facts}))
    elif findings is None:
        typer.echo("\n".join(["ok", *_fact_lines(facts)]))
    else:
        lines = [*_fact_lines(facts), "", *_finding_lines(findings), "", _summary(findings)]
        typer.echo("\n".join(lines))
    raise typer.Exit(code)


@app.command()
def show(config: options.ConfigFile = None) -> None:
    """Print the settings in force as YAML that can be loaded again; secrets are masked."""
    import yaml

    values = options.load(config).model_dump(mode="json")
    typer.echo(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def schema(markdown: Markdown = False) -> None:
    """Print the JSON Schema of the YAML file."""
    from streamdedup.cli import reference
    from streamdedup.settings.sections import Settings

    if markdown:
        typer.echo(reference.markdown(), nl=False)
        return
    # The mode makes defaults look as they do in the file: 30s, not PT30S.
    document = {"$schema": _DIALECT, **Settings.model_json_schema(mode="serialization")}
    document["description"] = "The settings of streamdedup; see docs/settings.md."
    typer.echo(json.dumps(document, indent=2))


def _finding_lines(findings: list[Finding]) -> list[str]:
    width = max(len(one.check) for one in findings) + 2
    lines = []
    for one in findings:
        lines.append(f"{one.level:<13}{one.check:<{width}}{one.message}")
        if one.who:
            lines.append(f"{'':<13}{'':<{width}}-> {one.who}")
    return lines


def _summary(findings: list[Finding]) -> str:
    counts = Counter(one.level.value for one in findings)
    counted = [
        f"{counts[level]} {level}{'s' if counts[level] > 1 else ''}"
        for level in ("error", "warning")
        if counts[level]
    ]
    return ", ".join(counted) or "ok"


def _facts(settings: Settings) -> dict[str, Any]:
    dedup = settings.dedup
    banding = dedup.banding()
    curve = {
        f"{similarity:g}": round(banding.candidate_probability(similarity), 6)
        for similarity in sorted({*_SIMILARITIES, dedup.threshold})
    }
    return {
        "bands": banding.bands,
        "rows": banding.rows,
        "num_perm": dedup.num_perm,
        "threshold": dedup.threshold,
        "candidate_probability": curve,
        "fingerprint": settings.fingerprint,
        "transactional_id": settings.topics.transactional_id,
    }


def _fact_lines(facts: dict[str, Any]) -> list[str]:
    bands, rows = facts["bands"], facts["rows"]
    return [
        f"bands x rows      {bands} x {rows}, {bands * rows} of {facts['num_perm']} MinHash values",
        f"threshold         {facts['threshold']:g}",
        *(
            f"S-curve at {similarity:<6} {probability:.4f}"
            for similarity, probability in facts["candidate_probability"].items()
        ),
        f"fingerprint       {facts['fingerprint']}",
        f"transactional id  {facts['transactional_id']}",
    ]
