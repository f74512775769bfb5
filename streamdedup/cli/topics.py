"""*Blocking.* ``streamdedup topics``: creates the topics of the worker."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

import typer

from streamdedup.cli import options
from streamdedup.errors import SettingsError

if TYPE_CHECKING:
    from streamdedup.formats.schemas import Schema
    from streamdedup.settings.sections import Settings

app = typer.Typer(no_args_is_help=True, help="Create the topics of the worker.")

Register = Annotated[bool, typer.Option(help="Register it in the schema registry.")]

Partitions = Annotated[
    int, typer.Option(min=1, help="Partitions of each topic; the changelog has one.")
]
Replication = Annotated[int, typer.Option(min=1, help="Replicas of each partition.")]


@app.callback()
def _root() -> None:
    """Create the topics of the worker, and register the schema of duplicate records."""


@app.command()
def create(
    config: options.ConfigFile = None, partitions: Partitions = 3, replication: Replication = 1
) -> None:
    """Create those of the topics that are missing; existing topics are not changed.

    Outputs get twice the source's max.message.bytes and some more, so that every record fits.
    A lost index is rebuilt from the changelog. Its retention is the window by time: index.window
    plus index.allowed_lateness (by default as long as the window) plus one day. Without
    index.window the retention is unlimited. An existing changelog keeps its retention; `streamdedup
    config check` checks it against the window.
    """
    import asyncio

    from streamdedup.kafka.cluster import create_topics
    from streamdedup.kafka.topics import FOREVER, changelog_retention_ms
    from streamdedup.settings.units import format_duration

    settings = options.load(config)
    retention_ms = changelog_retention_ms(settings)
    retention = "unlimited retention"
    if retention_ms != FOREVER:
        duration = format_duration(dt.timedelta(milliseconds=retention_ms))
        retention = f"a retention of {duration}: index.window, index.allowed_lateness and one day"
    created = asyncio.run(create_topics(settings, partitions, replication))
    for name in created:
        shown = f", with {retention}" if name == settings.topics.changelog else ""
        typer.echo(f"created {name}{shown}")
    if not created:
        typer.echo("all topics exist")


@app.command()
def schema(config: options.ConfigFile = None, *, register: Register = False) -> None:
    """Print the schema of duplicate records: Avro or JSON Schema, by output.duplicates_format.

    A worker with output.duplicates_format avro needs it in the registry, under the subject
    DUPLICATES-TOPIC-value; with json it is for readers only. A registered schema stays as it is.
    """
    import asyncio

    from streamdedup.formats.schemas import duplicates_schema

    settings = options.load(config)
    found = duplicates_schema(settings.output.duplicates_format)
    if not register:
        typer.echo(found.text, nl=False)
        return
    number = asyncio.run(_register(settings, found))
    typer.echo(f"{settings.duplicates_subject()} has the schema, with id {number}")


async def _register(settings: Settings, schema: Schema) -> int:
    """Register the schema of duplicate records, unless the registry has it; return its id."""
    from streamdedup.registry.opening import open_registry

    if not settings.registry.urls:
        raise SettingsError("registry.urls is not set; name the schema registry there")
    registry = open_registry(settings, {})
    try:
        return await registry.register(settings.duplicates_subject(), schema)
    finally:
        await registry.close()
