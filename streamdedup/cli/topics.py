"""*Blocking.* ``streamdedup topics``."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from streamdedup.settings.sections import Settings

app = typer.Typer(no_args_is_help=True, help="Create the topics that the worker needs.")


@app.callback()
def _root() -> None:
    """Create the topics that the worker needs."""


@app.command()
def create(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file with the settings.")
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, help="Partitions of all but the changelog, which has one.")
    ] = 3,
    replication: Annotated[int, typer.Option(min=1, help="Replicas of each partition.")] = 1,
) -> None:
    """Create those of the five topics that are missing; the others are left alone.

    The changelog is what a lost index is rebuilt from. It keeps its records for as long as the
    window by time reaches back (index.window, index.allowed_lateness, and a day), and for ever
    where index.window is not set. A changelog that is there keeps what it has: `streamdedup config
    check` tells whether that suits the window.
    """
    from streamdedup.kafka.cluster import create_topics  # noqa: PLC0415 - aiokafka is slow to import
    from streamdedup.settings.load import load_settings  # noqa: PLC0415

    settings = load_settings(config)
    created = asyncio.run(create_topics(settings, partitions, replication))
    for name in created:
        is_changelog = name == settings.topics.changelog
        kept = f", which keeps its records {_kept(settings)}" if is_changelog else ""
        typer.echo(f"created {name}{kept}")
    if not created:
        typer.echo("all topics are there")


def _kept(settings: Settings) -> str:
    from streamdedup.kafka.topics import FOREVER, changelog_retention_ms  # noqa: PLC0415
    from streamdedup.settings.units import format_duration  # noqa: PLC0415

    retention_ms = changelog_retention_ms(settings)
    if retention_ms == FOREVER:
        return "for ever"
    duration = format_duration(dt.timedelta(milliseconds=retention_ms))
    return f"for {duration}: index.window, index.allowed_lateness and a day"
