"""*Pure.* Words: a text cut where its script cuts, or where a reader would.

A word is a run of letters, digits and combining marks, with apostrophes and joiners inside it. The
scripts that are written without spaces (``CONTINUOUS``) need a dictionary to be cut into words;
here each of their letters, with its marks, is a word of its own: the same for every text, and with
two or three of them to a shingle about as telling as a word. An emoji sequence is one word.
Punctuation and other symbols are none.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache

CONTINUOUS: dict[str, tuple[tuple[int, int], ...]] = {
    "Han": (
        (0x2E80, 0x2FDF),
        (0x3005, 0x3007),
        (0x3021, 0x3029),
        (0x3038, 0x303C),
        (0x3400, 0x4DBF),
        (0x4E00, 0x9FFF),
        (0xF900, 0xFAFF),
        (0x20000, 0x3FFFD),
    ),
    "Hiragana and Katakana": (
        (0x3041, 0x30FA),
        (0x30FC, 0x30FF),
        (0x31F0, 0x31FF),
        (0xFF66, 0xFF9F),
        (0x1AFF0, 0x1B16F),
    ),
    "Thai": ((0x0E01, 0x0E4E),),
    "Lao": ((0x0E81, 0x0ECF), (0x0EDC, 0x0EDF)),
    "Myanmar": ((0x1000, 0x103F), (0x104A, 0x108F), (0x109A, 0x109F), (0xAA60, 0xAA7F)),
    "Khmer": ((0x1780, 0x17DD),),
}
"""Scripts without spaces between words: their code points, without the digits."""

_EMOJI = (
    "\u203c\u2049\u2194-\u2199\u21a9\u21aa\u231a-\u23ff\u25aa-\u25fe\u2600-\u27bf\u2934\u2935"
    "\u2b05-\u2b55\u3030\u303d\U0001f000-\U0001f0ff\U0001f170-\U0001f1e5\U0001f200-\U0001f3fa"
    "\U0001f400-\U0001faff"
)
"""About Unicode's Extended_Pictographic, without the signs for rights and trade marks."""
_INNER = "'\u00b7\u05f3\u05f4"
"""Apostrophe, the middle dot of Catalan, and the marks of Hebrew abbreviations."""
_JOINERS = "\u200c\u200d"
_ASCII = re.compile("[0-9A-Za-z]+(?:'[0-9A-Za-z]+)*")
_RARE = re.compile("[\U00010000-\U0001cfff\U0001d100-\U0001efff]")
"""What lies behind the Basic Multilingual Plane, but for emoji and Chinese."""
_BASIC_END = 0x10000
_MARKS_END = 0x20000
"""From here on the only marks are variation selectors, which normalisation drops."""
_TO_SPACE = bytes(code if chr(code).isalnum() else 0x20 for code in range(128)) + bytes(128)


def split_words(text: str) -> list[str]:
    """Return the words of a text, in order; the typographic apostrophe becomes the plain one."""
    if text.isascii():
        return _split_ascii(text)
    text = text.replace("\u2019", "'")
    # To look for the marks of rare scripts takes five times as long.
    rare = len(text.encode("utf-16-le", "surrogatepass")) > 2 * len(text) and _RARE.search(text)
    return _words(_MARKS_END if rare else _BASIC_END).findall(text)


def join_words(text: str) -> str:
    """Return the words with one space between them; a text without words stays as it is."""
    return " ".join(split_words(text)) or text


def _split_ascii(text: str) -> list[str]:
    if "'" in text:
        return _ASCII.findall(text)
    return text.encode("ascii").translate(_TO_SPACE).decode("ascii").split()


@cache
def _words(marks_end: int) -> re.Pattern[str]:
    """Return the expression that finds words; made at first use, for it asks of 100,000 points."""
    marks = _ranges(filter(_is_mark, range(0x300, marks_end)))
    continuous = _continuous()
    letter = rf"[^\W_{continuous}]"
    word = f"{letter}+(?:[{marks}{_JOINERS}]+{letter}*)*"
    picture = f"[{_EMOJI}][\U0001f3fb-\U0001f3ff{marks}\U000e0020-\U000e007f]*"
    kinds = (
        f"[{continuous}][{marks}]*",
        f"{word}(?:[{_INNER}]{word})*",
        f"{picture}(?:\u200d{picture})*",
        "[\U0001f1e6-\U0001f1ff]{1,2}",
        f"[{marks}]+",
    )
    return re.compile("|".join(kinds))


def _is_mark(point: int) -> bool:
    return unicodedata.category(chr(point)).startswith("M")


def _continuous() -> str:
    """Return the letters and marks of the scripts without spaces, as a regular expression does."""
    points = (
        point
        for script in CONTINUOUS.values()
        for first, last in script
        for point in range(first, last + 1)
        if point >= _BASIC_END or chr(point).isalnum() or _is_mark(point)
    )
    return _ranges(sorted(points))


def _ranges(points: Iterable[int]) -> str:
    """Write ascending code points as the ranges of a regular expression."""
    ranges: list[list[int]] = []
    for point in points:
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
