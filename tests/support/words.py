"""*Pure.* The words of one text, by the kernel that joins those of packed texts."""

from __future__ import annotations

from streamdedup.sketch.shingle import pack
from streamdedup.sketch.words import join_packed


def join_words(text: str) -> str:
    """Return the words, joined by single spaces; a text without words is returned unchanged."""
    codes = join_packed(pack([text])).codes
    return codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def split_words(text: str) -> list[str]:
    """Return the words of a text, in order; typographic apostrophes become ASCII ones."""
    return join_words(f"{text} x").split(" ")[:-1]
