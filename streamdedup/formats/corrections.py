"""*Pure.* Dead letters as they are read, and the records with which an operator corrects outcomes.

docs/format.md describes the headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from streamdedup.formats.outputs import (
    ERROR_PREFIX,
    HEADER_PREFIX,
    Headers,
    OutputRule,
    clean_headers,
)
from streamdedup.formats.positions import format_position, parse_position
from streamdedup.model import Outcome, Position, Record, Verdict

REPLAYED_FROM = HEADER_PREFIX + "replayed-from"
"""Header of a replayed record: the position at which its last copy became a dead letter."""
REPLAYS = HEADER_PREFIX + "replays"
"""Header of a replayed record: how often it was replayed."""
REINSTATED = HEADER_PREFIX + "reinstated"
"""Header of a clean record that an operator put there: the time."""
_FIRST_HEADER = ERROR_PREFIX + "topic"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter.

    Attributes:
        original: the source record, without parts that were too large for the topic.
        stage: the step that refused the record.
        reason: why the record was refused: a class name.
        message: why, in one sentence.
        omitted: whether the value was too large for the topic.
        replays: how often the record was replayed before.
        replayed_from: the position of the copy before the last replay; None without a replay.
    """

    original: Record
    stage: str
    reason: str
    message: str
    omitted: bool
    replays: int
    replayed_from: Position | None


def read_dead_letter(record: Record) -> DeadLetter | None:
    """Read a record of the dead-letter topic; None if another program wrote it.

    The source record may have headers of the same names, so only the last ones count.
    """
    names = [name for name, _ in record.headers]
    if _FIRST_HEADER not in names:
        return None
    begin = len(names) - 1 - names[::-1].index(_FIRST_HEADER)
    ours = {
        name.removeprefix(ERROR_PREFIX): (value or b"").decode("utf-8", "replace")
        for name, value in record.headers[begin:]
    }
    headers = record.headers[:begin]
    try:
        position = Position(ours["topic"], int(ours["partition"]), int(ours["offset"]))
        stage, reason = ours["stage"], ours["exception.class.name"]
    except (KeyError, ValueError):
        return None
    replays, replayed_from = _replays(dict(headers))
    return DeadLetter(
        original=replace(record, position=position, headers=headers),
        stage=stage,
        reason=reason,
        message=ours.get("exception.message", ""),
        omitted="value.omitted" in ours,
        replays=replays,
        replayed_from=replayed_from,
    )


def _replays(headers: Mapping[str, bytes | None]) -> tuple[int, Position | None]:
    """Return how often a record was replayed, and from where."""
    try:
        origin = parse_position((headers[REPLAYED_FROM] or b"").decode())
        return int(headers[REPLAYS] or b""), origin
    except (KeyError, ValueError):
        return 0, None


def replay_headers(original: Record, replays: int) -> Headers:
    """Return the headers of a replay.

    Args:
        original: the source record that became a dead letter.
        replays: how often it was replayed before.
    """
    return [
        *(
            (name, value)
            for name, value in original.headers
            if name not in (REPLAYED_FROM, REPLAYS)
        ),
        (REPLAYED_FROM, format_position(original.position).encode()),
        (REPLAYS, str(replays + 1).encode()),
    ]


def reinstated_headers(record: Record, id_: str, time: str, rule: OutputRule) -> Headers:
    """Return the headers of a clean record that an operator puts onto the clean topic.

    Args:
        record: the source record.
        id_: id of its document.
        time: the present time in ISO 8601.
        rule: the form of the headers.
    """
    kept = Verdict(Outcome.KEPT, id_, record.position)
    return [*record.headers, *clean_headers(kept, rule), (REINSTATED, time.encode())]
