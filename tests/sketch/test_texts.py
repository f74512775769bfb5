"""Stored texts: round trip, size limit, and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.errors import IndexDamaged
from streamdedup.sketch.texts import NOT_STORED, TextPacker, text_bytes, unpack_text
from tests.support.builders import examples

NO_LIMIT = 2**40


@given(text=st.text(st.characters(), max_size=200))
@examples(200)
def test_there_and_back(text: str) -> None:
    """Every text survives a round trip, also empty ones and lone surrogates."""
    packed = TextPacker(NO_LIMIT).pack(text)
    assert packed != NOT_STORED
    assert unpack_text(packed) == text
    assert text_bytes(packed) == len(text.encode("utf-8", "surrogatepass"))


def test_long_texts_are_not_stored() -> None:
    """The limit applies to the compressed size."""
    text = "once upon a time " * 100
    size = len(TextPacker(NO_LIMIT).pack(text))
    assert size < len(text) / 10
    assert TextPacker(size).pack(text) != NOT_STORED
    assert TextPacker(size - 1).pack(text) == NOT_STORED


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        TextPacker(NO_LIMIT).pack("some text or other")[:-1],
        NOT_STORED,
        b"\x28\xb5\x2f\xfd\xe0" + (2**62).to_bytes(8, "little") + b"\x01\x00\x00",
    ],
    ids=["no frame", "cut", "nothing", "more than the memory"],
)
def test_damage(data: bytes) -> None:
    """Bytes that are not a stored text are damage."""
    with pytest.raises(IndexDamaged, match="stored text cannot be read"):
        unpack_text(data)


def test_size_of_a_damaged_text() -> None:
    """Bytes without the header of a frame have no size."""
    with pytest.raises(IndexDamaged, match="stored text cannot be read"):
        text_bytes(b"not a frame")
