"""*Blocking.* ``streamdedup dlq`` lists and replays dead letters; ``reinstate`` undoes drops."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from streamdedup.cli import options
from streamdedup.cli.terminal import confirm, interruptible, report

if TYPE_CHECKING:
    from streamdedup.admin.corrections import Letter

dlq = typer.Typer(no_args_is_help=True, help="List and replay dead letters.")

Reason = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only dead letters with this reason.")
]
Limit = Annotated[int, typer.Option(min=0, help="Newest dead letters to show; all are counted.")]
Letters = Annotated[
    list[str] | None,
    typer.Option(
        "--position",
        metavar=options.POSITION,
        help="Only the dead letter of this source record; repeat it for more.",
    ),
]
Positions = Annotated[
    list[str],
    typer.Argument(
        metavar=f"{options.POSITION}...", help="Positions of the records in the source topic."
    ),
]


@dlq.command(name="list")
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
    from streamdedup.model import format_position

    with interruptible("listing was interrupted"):
        letters = choose(asyncio.run(list_letters(options.load(config))), reason)
    counts = dict(Counter(letter.reason for letter in letters).most_common())
    newest = letters[max(0, len(letters) - limit) :]
    if as_json:
        shown = [
            {
                "position": format_position(letter.position),
                "stage": letter.stage,
                "reason": letter.reason,
                "message": letter.message,
                "timestamp_ms": letter.timestamp_ms,
                "replays": letter.replays,
                "value_omitted": letter.omitted,
            }
            for letter in newest
        ]
        facts = {"dead_letters": len(letters), "reasons": counts, "newest": shown}
        typer.echo(json.dumps(facts))
    else:
        _print(newest, counts)


@dlq.command()
def replay(
    config: options.RequiredConfigFile,
    reason: Reason = None,
    position: Letters = None,
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

    settings = options.load(config)
    positions = options.positions(position or [])
    with interruptible("replaying was interrupted"):
        letters = choose(asyncio.run(list_letters(settings)), reason, positions)
        chosen = [one for one in letters if positions or one.replays < MOST_REPLAYS]
        lost: list[str] = []
        if chosen:
            confirm(f"Replay {len(chosen)} records to {settings.topics.source}?", yes=yes)
            lost = [format_position(one) for one in asyncio.run(run_replay(settings, chosen))]
    replayed, left_out = len(chosen) - len(lost), len(letters) - len(chosen)
    lines = [f"replayed {replayed} records to {settings.topics.source}"]
    if left_out:
        lines.append(
            f"left out {left_out} that were replayed {MOST_REPLAYS} times; name them with "
            "--position to replay them again"
        )
    lines += [f"lost {one}: only the source topic had its value" for one in lost]
    facts = {"replayed": replayed, "replayed_too_often": left_out, "lost": lost}
    report(facts, "\n".join(lines), as_json=as_json)


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

    settings = options.load(config)
    wanted = options.positions(positions)
    with interruptible("reinstating was interrupted"):
        records = asyncio.run(find_records(settings, wanted))
        confirm(f"Append {len(records)} records to {settings.topics.clean}?", yes=yes)
        asyncio.run(run_reinstate(settings, list(records.values())))
    message = f"reinstated {len(records)} records on {settings.topics.clean}"
    report({"reinstated": len(records)}, message, as_json=as_json)


def _print(letters: list[Letter], counts: dict[str, int]) -> None:
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
    if timestamp_ms < 0:
        return "unknown"
    age_s = now_s - timestamp_ms / 1000
    for unit, seconds in (("d", 86_400), ("h", 3600), ("m", 60)):
        if abs(age_s) >= seconds:
            return f"{age_s / seconds:.0f}{unit}"
    return f"{age_s:.0f}s"
