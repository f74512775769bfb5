"""*Pure.* Dead letters as they are read, and the records with which an operator corrects outcomes.

docs/format.md describes the headers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from streamdedup.formats.outputs import (
    ERROR_PREFIX,
    HEADER_PREFIX,
    Headers,
    OutputRule,
    clean_headers,
)
from streamdedup.model import Outcome, Position, Record, Verdict, format_position, parse_position

REPLAYED_FROM = HEADER_PREFIX + "replayed-from"
"""Header of a replayed record: the position at which its last copy became a dead letter."""
REPLAYS = HEADER_PREFIX + "replays"
"""Header of a replayed record: how often it was replayed."""
_ADDED = 2  # headers that a replay adds at the end
REINSTATED = HEADER_PREFIX + "reinstated"
"""Header of a clean record that an operator put there: the time."""
_FIRST_HEADER = ERROR_PREFIX + "topic"


class Copy(NamedTuple):
    """What shows whether the record of a dead letter is a replay of another dead letter's."""

    content: bytes  # digest of key, value and headers
    replayed_from: Position | None  # the position that its last headers name
    before: bytes  # digest without these headers


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter; see :class:`streamdedup.model.Rejection`."""

    original: Record  # the source record, without parts that were too large for the topic
    stage: str
    reason: str
    message: str
    omitted: bool  # whether the value was too large for the topic
    copy: Copy


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
    original = replace(record, position=position, headers=headers)
    return DeadLetter(
        original=original,
        stage=stage,
        reason=reason,
        message=ours.get("exception.message", ""),
        omitted="value.omitted" in ours,
        copy=_copy(original, ours.get("value.omitted", "")),
    )


def _copy(record: Record, omitted: str) -> Copy:
    """Return the digests of a record, and its claim; ``omitted`` is the length of its value."""
    value = record.value or b""
    before = hashlib.blake2b(repr((record.key, omitted, len(value))).encode(), digest_size=16)
    before.update(value)
    whole = before.copy()
    before.update(repr(record.headers[:-_ADDED]).encode())
    whole.update(repr(record.headers).encode())
    return Copy(whole.digest(), _replayed_from(record), before.digest())


def _replayed_from(record: Record) -> Position | None:
    last = record.headers[-_ADDED:]
    if [name for name, _ in last] != [REPLAYED_FROM, REPLAYS]:
        return None
    try:
        return parse_position((last[0][1] or b"").decode())
    except ValueError:
        return None


def count_replays(copies: Mapping[Position, Copy]) -> dict[Position, int]:
    """Return how often each record was replayed before it became a dead letter.

    A producer may have sent headers with our names, e.g. another streamdedup upstream. So only a
    record counts that is equal to an earlier dead letter of its partition, but for the headers of
    the replay. Both mappings are by source position.
    """
    counts: dict[Position, int] = {}
    contents: dict[Position, bytes] = {}
    for position, copy in sorted(copies.items()):
        origin = copy.replayed_from
        is_replay = (
            origin is not None
            and origin[:2] == position[:2]
            and contents.get(origin) == copy.before
        )
        counts[position] = counts[origin] + 1 if is_replay and origin else 0
        contents[position] = copy.before if is_replay else copy.content
    return counts


def replay_headers(original: Record, replays: int) -> Headers:
    """Return the headers of a replay of a source record, which was replayed ``replays`` times."""
    return [
        *(original.headers[:-_ADDED] if replays else original.headers),
        (REPLAYED_FROM, format_position(original.position).encode()),
        (REPLAYS, str(replays + 1).encode()),
    ]


def reinstated_headers(record: Record, id_: str, time: str, rule: OutputRule) -> Headers:
    """Return the headers of a source record that an operator puts onto the clean topic.

    ``id_`` is the id of its document, and ``time`` the present time in ISO 8601.
    """
    kept = Verdict(Outcome.KEPT, id_, record.position)
    return [*record.headers, *clean_headers(kept, rule), (REINSTATED, time.encode())]
