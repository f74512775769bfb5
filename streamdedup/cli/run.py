"""*Blocking.* ``streamdedup run``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer


def run(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file with the settings.")
    ] = None,
    index: Annotated[Path | None, typer.Option(help="Index directory (index.directory).")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Similarity that makes a duplicate (dedup.threshold).")
    ] = None,
    ordinal: Annotated[
        int | None, typer.Option(help="Number of this worker (kafka.ordinal).")
    ] = None,
    status_port: Annotated[
        int | None, typer.Option(help="Port of /metrics, /livez and /readyz (status.port).")
    ] = None,
) -> None:
    """Run the worker: source topic in, clean, duplicates and dead-letter topics out.

    Every record ends in exactly one of the three, exactly once, whatever crashes. SIGTERM drains
    and exits with 0; a second one ends at once. Settings come from the file, then the environment
    (`STREAMDEDUP_KAFKA__GROUP_ID=...`), then these flags; `streamdedup config show` prints them.

    Exit codes: 0 stopped as told, 3 wrong settings, 5 topics, 6 refused by the broker, 8 replaced
    by another worker, 9-13 the index; docs/operations.md says what to do about each.
    """
    # Imported late, so that --help need not wait for numba and aiokafka.
    from streamdedup.observe import logs  # noqa: PLC0415
    from streamdedup.roles.app import run_worker  # noqa: PLC0415
    from streamdedup.settings.load import load_settings  # noqa: PLC0415

    given: dict[str, dict[str, Any]] = {
        "index": {"directory": index},
        "dedup": {"threshold": threshold},
        "kafka": {"ordinal": ordinal},
        "status": {"port": status_port},
    }
    overrides = {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in given.items()
    }
    settings = load_settings(
        config, **{name: values for name, values in overrides.items() if values}
    )
    logs.configure(settings.log)
    asyncio.run(run_worker(settings))
