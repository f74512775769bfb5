"""*Blocking.* ``streamdedup reinstate``: puts wrongly dropped documents onto the clean topic."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from streamdedup.cli import options
from streamdedup.cli.confirm import confirm
from streamdedup.cli.interrupts import interruptible

Positions = Annotated[
    list[str],
    typer.Argument(
        metavar=f"{options.POSITION}...", help="Positions of the records in the source topic."
    ),
]


def reinstate(
    positions: Positions,
    config: options.RequiredConfigFile,
    yes: options.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Append records of the source topic to the clean topic, e.g. wrongly dropped duplicates.

    A duplicate record names its position. The records keep key, value, headers and timestamp. They
    get the headers of a kept record (output.headers), and `streamdedup-reinstated` with the time.
    The index does not change, and a second call appends the record again.

    Example: `streamdedup reinstate documents:0:4711 --config streamdedup.yaml`

    Exit codes: 0 done, 3 invalid settings or not confirmed, 4 no such record, 5-7 topics and
    broker, 15 a clock.
    """
    import asyncio

    from streamdedup.admin.corrections import find_records
    from streamdedup.admin.corrections import reinstate as run_reinstate
    from streamdedup.settings.load import load_settings

    settings = load_settings(config)
    wanted = options.positions(positions)
    with interruptible("reinstating was interrupted"):
        records = asyncio.run(find_records(settings, wanted))
        confirm(f"Append {len(records)} records to {settings.topics.clean}?", yes=yes)
        asyncio.run(run_reinstate(settings, list(records.values())))
    message = f"reinstated {len(records)} records on {settings.topics.clean}"
    typer.echo(json.dumps({"reinstated": len(records)}) if as_json else message)
