"""Positions as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.model import Position, format_position, parse_position
from tests.support.builders import examples


@examples(100)
@given(
    st.builds(
        Position,
        st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
    )
)
def test_round_trip(position: Position) -> None:
    """Every position of Kafka can be written and parsed."""
    assert parse_position(format_position(position)) == position


@pytest.mark.parametrize("text", ["", "t", "t:0", "t:0:", ":0:1", "t:-1:0", "t:0:x", "a b:0:1"])
def test_other_texts_are_refused(text: str) -> None:
    """The message shows the form."""
    with pytest.raises(ValueError, match="expected TOPIC:PARTITION:OFFSET"):
        parse_position(text)
