"""*Blocking.* ``streamdedup run``: the Kafka worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamdedup.cli import options

IndexDirectory = Annotated[Path | None, typer.Option(help="Index directory (index.directory).")]
StatusPort = Annotated[
    int | None, typer.Option(help="Port of /metrics, /livez and /readyz (status.port).")
]


def run(
    config: options.ConfigFile = None,
    index: IndexDirectory = None,
    threshold: options.Threshold = None,
    status_port: StatusPort = None,
) -> None:
    """Run the worker: source topic in; clean, duplicates and dead-letter topics out.

    Every record appears in exactly one of the three topics, exactly once, also after crashes. The
    first SIGTERM drains the worker and exits with 0; a second one ends it at once. Flags override
    environment variables (`STREAMDEDUP_KAFKA__GROUP_ID=...`), and these override the file;
    `streamdedup config show` prints the result.

    Exit codes: 0 stopped by a signal, 3 invalid settings, 5 topics, 6 refused by the broker, 8
    replaced by another worker, 9-13 the index, 14 too many dead letters, 15 a clock.
    docs/operations.md explains each code.
    """
    import asyncio

    from streamdedup.observe import logs
    from streamdedup.roles.app import run_worker
    from streamdedup.settings.load import load_settings

    overrides = options.overrides(
        index={"directory": index},
        dedup={"threshold": threshold},
        status={"port": status_port},
    )
    settings = load_settings(config, **overrides)
    logs.configure(settings.log)
    asyncio.run(run_worker(settings))
