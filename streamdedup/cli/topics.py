"""*Blocking.* ``streamdedup topics``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

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

    The changelog topic keeps its records for ever: it is what a lost index is rebuilt from.
    """
    from streamdedup.kafka import create_topics  # noqa: PLC0415 - aiokafka is slow to import
    from streamdedup.settings import load_settings  # noqa: PLC0415

    settings = load_settings(config)
    created = asyncio.run(create_topics(settings, partitions, replication))
    for name in created:
        typer.echo(f"created {name}")
    if not created:
        typer.echo("all topics are there")
