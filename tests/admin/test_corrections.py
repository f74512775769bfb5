"""The choice of dead letters to replay."""

from __future__ import annotations

import pytest

from streamdedup.admin.corrections import Letter, choose
from streamdedup.errors import InputError
from streamdedup.model import Position


def letter(offset: int, reason: str) -> Letter:
    """Return the dead letter of a source record."""
    position = Position("documents", 0, offset)
    return Letter(position, "decode", reason, "why", 0, False, 0, Position("dead", 0, offset))


LETTERS = [letter(1, "NullValue"), letter(2, "MissingText"), letter(3, "NullValue")]


@pytest.mark.parametrize(
    ("reason", "offsets", "expected"),
    [
        (None, [], [1, 2, 3]),
        ("NullValue", [], [1, 3]),
        ("InvalidJson", [], []),
        (None, [3, 2], [2, 3]),
        ("NullValue", [3], [3]),
    ],
)
def test_reasons_and_positions_choose(
    reason: str | None, offsets: list[int], expected: list[int]
) -> None:
    """Without either, all are chosen."""
    positions = [Position("documents", 0, offset) for offset in offsets]
    assert [one.position.offset for one in choose(LETTERS, reason, positions)] == expected


@pytest.mark.parametrize(("reason", "offset"), [(None, 9), ("NullValue", 2)])
def test_an_unknown_position_is_an_error(reason: str | None, offset: int) -> None:
    """Nothing is replayed if the operator named a wrong one."""
    with pytest.raises(InputError, match=f"no dead letter of documents:0:{offset}"):
        choose(LETTERS, reason, [Position("documents", 0, offset), LETTERS[0].position])
