"""Packing: code points in the narrowest type, in small chunks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.sketch.shingle import chunks, pack
from tests.support.builders import examples


@given(texts=st.lists(st.text(st.characters(), max_size=8), max_size=5))
@examples(200)
def test_pack(texts: list[str]) -> None:
    """Every text is between its offsets."""
    codes, offsets = pack(texts)
    assert len(offsets) == len(texts) + 1
    for text, start, stop in zip(texts, offsets[:-1], offsets[1:], strict=True):
        assert codes[start:stop].tolist() == [ord(character) for character in text]


@pytest.mark.parametrize(
    ("text", "kind"),
    [("plain", np.uint8), ("\xff", np.uint8), ("\u0100", np.uint32), ("\ud800", np.uint32)],
    ids=["ascii", "latin-1", "beyond", "surrogate"],
)
def test_width(text: str, kind: type[np.generic]) -> None:
    """A character takes one byte if that is enough."""
    assert pack(["", text]).codes.dtype == kind


@given(lengths=st.lists(st.sampled_from([0, 1, 2**17, 2**18, 2**18 + 1]), max_size=6))
@examples(50)
def test_chunks_of_characters(lengths: list[int]) -> None:
    """Chunks cover the batch in order; none is empty, and only a single text can be too long."""
    texts = ["x" * length for length in lengths]
    found = [texts[chunk] for chunk in chunks(texts)]
    assert [text for chunk in found for text in chunk] == texts
    for chunk in found:
        assert chunk
        assert len(chunk) == 1 or sum(map(len, chunk)) <= 2**18


def test_chunks_of_texts() -> None:
    """A chunk has 256 texts at most."""
    sizes = [chunk.stop - chunk.start for chunk in chunks(["x"] * 600)]
    assert sizes == [256, 256, 88]
