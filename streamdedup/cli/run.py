"""*Blocking.* ``streamdedup run``: the Kafka worker, or a role of mode split."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from streamdedup.cli import options

IndexDirectory = Annotated[
    Path | None, typer.Option(**options.FILLED, help="Index directory (index.directory).")
]
StatusPort = Annotated[
    int | None, typer.Option(help="Port of /metrics, /livez and /readyz (status.port).")
]


class RoleName(StrEnum):
    """Values of ``--role``."""

    EDGE = "edge"
    JUDGE = "judge"
    ALL = "all"


Role = Annotated[
    RoleName | None,
    typer.Option(
        help="With mode split: edge (any number), judge (one, or two with a standby), or all: one "
        "of each, as processes of this one."
    ),
]


def run(
    config: options.ConfigFile = None,
    role: Role = None,
    index: IndexDirectory = None,
    threshold: options.Threshold = None,
    status_port: StatusPort = None,
) -> None:
    """Run the worker: source topic in; clean, duplicates and dead-letter topics out.

    Every record appears in exactly one of the three topics, exactly once, also after crashes. The
    first SIGTERM drains the worker and exits with 0; a second one ends it at once. Flags override
    environment variables (`STREAMDEDUP_KAFKA__GROUP_ID=...`), and these override the file;
    `streamdedup config show` prints the result.

    With `mode: split` the work has two roles: edges read, sketch and write, and a judge decides.
    docs/scaling.md says when that is worth it. With `--role all` the edge listens on the next
    port.

    Exit codes: 0 stopped by a signal, 3 invalid settings, 5 topics, 6 refused by the broker, 8
    replaced by another worker, 9-13 the index, 14 too many dead letters, 15 a clock.
    docs/operations.md explains each code.
    """
    import asyncio

    from streamdedup.errors import SettingsError
    from streamdedup.observe import logs
    from streamdedup.roles.all import run_all
    from streamdedup.roles.app import run_role

    settings = options.load(
        config,
        index={"directory": index},
        dedup={"threshold": threshold},
        status={"port": status_port},
    )
    if settings.mode == "single":
        if role is not None:
            raise SettingsError(f"--role {role} needs mode split; set mode: split, or leave it out")
        logs.configure(settings.log)
        asyncio.run(run_role(settings, "worker"))
    elif role in (None, RoleName.ALL):
        port = settings.status.port
        program = [sys.executable, "-m", "streamdedup", "run"]
        for flag, value in (("--config", config), ("--index", index), ("--threshold", threshold)):
            program += [] if value is None else [flag, str(value)]
        commands = [
            [*program, "--role", name, "--status-port", str(port_of)]
            for name, port_of in (("judge", port), ("edge", port and port + 1))
        ]
        raise typer.Exit(asyncio.run(run_all(commands)))
    else:
        logs.configure(settings.log)
        asyncio.run(run_role(settings, "edge" if role is RoleName.EDGE else "judge"))
