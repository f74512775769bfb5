"""*Blocking.* ``streamdedup dlq``: lists and replays dead letters."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdedup.cli import options
from streamdedup.cli.confirm import confirm
from streamdedup.cli.interrupts import interruptible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamdedup.admin.corrections import Letter

app = typer.Typer(no_args_is_help=True, help="List and replay dead letters.")

Reason = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only dead letters with this reason.")
]
Limit = Annotated[int, typer.Option(min=0, help="Newest dead letters to show; all are counted.")]
Positions = Annotated[
    list[str] | None,
    typer.Option(
        "--position",
        metavar=options.POSITION,
        help="Only the dead letter of this source record; repeat it for more.",
    ),
]


@app.command(name="list")
def list_(
    config: options.RequiredConfigFile,
    reason: Reason = None,
    limit: Limit = 50,
    as_json: options.AsJson = False,
) -> None:
    """List the dead letters with their reasons, and count them by reason.

    The command reads the whole dead-letter topic. A record that was replayed and became a dead
    letter again is listed once, with the number of its replays.

    Example: `streamdedup dlq list --config streamdedup.yaml --reason MissingText`

    Exit codes: 0 done, 3 invalid settings, 5-7 topics and broker.
    """
    import asyncio

    from streamdedup.admin.corrections import choose, list_letters
    from streamdedup.settings.load import load_settings

    with interruptible("listing was interrupted"):
        letters = choose(asyncio.run(list_letters(load_settings(config))), reason)
    counts = dict(Counter(letter.reason for letter in letters).most_common())
    newest = letters[max(0, len(letters) - limit) :]
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "dead_letters": len(letters),
                    "reasons": counts,
                    "newest": [_facts(letter) for letter in newest],
                }
            )
        )
    else:
        _print(newest, counts)


@app.command()
def replay(
    config: options.RequiredConfigFile,
    reason: Reason = None,
    position: Positions = None,
    yes: options.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Append the original records of dead letters to the source topic, to be judged again.

    They keep key, value, headers, timestamp and partition. The headers `streamdedup-replayed-from`
    and `streamdedup-replays` are added. A record that was replayed three times is left out, unless
    `--position` names it. The dead letters stay in their topic; a record that is replayed twice
    comes out as a duplicate of itself.

    Example: `streamdedup dlq replay --config streamdedup.yaml --reason MissingText`

    Exit codes: 0 done, 3 invalid settings or not confirmed, 4 no such dead letter, 5-7 topics and
    broker, 15 a clock.
    """
    import asyncio

    from streamdedup.admin.corrections import MOST_REPLAYS, choose, list_letters
    from streamdedup.admin.corrections import replay as run_replay
    from streamdedup.model import format_position
    from streamdedup.settings.load import load_settings

    settings = load_settings(config)
    positions = options.positions(position or [])
    with interruptible("replaying was interrupted"):
        letters = choose(asyncio.run(list_letters(settings)), reason, positions)
        chosen = [one for one in letters if positions or one.replays < MOST_REPLAYS]
        lost: list[str] = []
        if chosen:
            confirm(f"Replay {len(chosen)} records to {settings.topics.source}?", yes=yes)
            lost = [format_position(one) for one in asyncio.run(run_replay(settings, chosen))]
    facts = {
        "replayed": len(chosen) - len(lost),
        "replayed_too_often": len(letters) - len(chosen),
        "lost": lost,
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"replayed {facts['replayed']} records to {settings.topics.source}")
    if len(letters) > len(chosen):
        typer.echo(
            f"left out {len(letters) - len(chosen)} that were replayed {MOST_REPLAYS} times; name "
            "them with --position to replay them again"
        )
    for one in lost:
        typer.echo(f"lost {one}: only the source topic had its value")


def _facts(letter: Letter) -> dict[str, Any]:
    from streamdedup.model import format_position

    return {
        "position": format_position(letter.position),
        "stage": letter.stage,
        "reason": letter.reason,
        "message": letter.message,
        "timestamp_ms": letter.timestamp_ms,
        "replays": letter.replays,
        "value_omitted": letter.omitted,
    }


def _print(letters: Sequence[Letter], counts: dict[str, int]) -> None:
    from rich.text import Text

    from streamdedup.cli import screen
    from streamdedup.model import format_position

    console = screen.standard_output()
    now_s = time.time()
    rows = [
        (
            Text(format_position(one.position)),
            Text(_age(now_s, one.timestamp_ms)),
            str(one.replays),
            Text(f"{one.reason}: {one.message}", justify="left"),
        )
        for one in letters
    ]
    if rows:
        title = f"The newest {len(rows)} dead letters"
        console.print(screen.table(title, ("position", "age", "replays", "reason"), rows))
    by_reason = [(name, f"{count:,}") for name, count in counts.items()]
    title = f"{sum(counts.values()):,} dead letters"
    console.print(screen.table(title, ("reason", "records"), by_reason))


def _age(now_s: float, timestamp_ms: int) -> str:
    """Return the age of a timestamp in its largest unit."""
    if timestamp_ms < 0:
        return "unknown"
    age_s = now_s - timestamp_ms / 1000
    for unit, seconds in (("d", 86_400), ("h", 3600), ("m", 60)):
        if abs(age_s) >= seconds:
            return f"{age_s / seconds:.0f}{unit}"
    return f"{age_s:.0f}s"
