"""*Pure.* Positions as text: ``TOPIC:PARTITION:OFFSET``. Topic names contain no colon."""

from __future__ import annotations

import re

from streamdedup.model import Position

_POSITION = re.compile(r"([^:\s]+):(\d{1,10}):(\d{1,19})")


def format_position(position: Position) -> str:
    """Return a position as text."""
    return ":".join(map(str, position))


def parse_position(text: str) -> Position:
    """Parse a position.

    Raises:
        ValueError: the text is not a position.
    """
    parts = _POSITION.fullmatch(text)
    if parts is None:
        raise ValueError(f"invalid position {text!r}; expected TOPIC:PARTITION:OFFSET")
    topic, partition, offset = parts.groups()
    return Position(topic, int(partition), int(offset))
