"""*Pure.* Normalisation: what counts as the same text.

A profile is a list of steps, applied in order. Profiles are versioned: an index remembers name and
version, and refuses to be read through another one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

Step = Callable[[str], str]

_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
# Only what a link and a handle are made of: Chinese and Japanese go on behind them without a space.
_URL = re.compile(r"https?://[!-~]*|www\.[!-~]+")
_HANDLE = re.compile(r"(?<![a-z0-9_])@[a-z0-9_]+")
_RETWEET = re.compile(r"^\s*(?:rt\s+@[a-z0-9_]+:?\s*)+")
_MARKS = re.compile(r"[^\w\s!-~]{31,}")
_MOST_MARKS = 30
"""Combining marks in a row: the limit of Unicode's Stream-Safe Text Format (UAX 15, section 13)."""


def fold(text: str) -> str:
    """Unicode NFKC, then casefold, then NFKC again, since folding can leave other forms."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def drop_invisible(text: str) -> str:
    """Drop zero-width characters and bidirectional controls; joiners stay, emoji need them."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def limit_marks(text: str) -> str:
    """Drop combining marks beyond thirty in a row: to sort them takes the square of their number.

    A megabyte of them, which is no text, would otherwise hold a process for minutes.
    """
    if text.isascii():
        return text
    # The two half-width marks of Japanese count as letters until they are folded.
    return _MARKS.sub(_limit_run, text.replace("\uff9e", "\u3099").replace("\uff9f", "\u309a"))


def _limit_run(run: re.Match[str]) -> str:
    kept = []
    marks = 0
    for character in run[0]:
        parts = unicodedata.normalize("NFKD", character)
        marks = marks + len(parts) if unicodedata.combining(parts[0]) else 0
        if marks <= _MOST_MARKS:
            kept.append(character)
    return "".join(kept)


def collapse_space(text: str) -> str:
    """Make each run of white space one space, and strip the ends."""
    return " ".join(text.split())


def mask_links(text: str) -> str:
    """Replace every URL by one mark, since shorteners make each copy's link its own."""
    return _URL.sub("\u2038url\u2038", text)


def mask_handles(text: str) -> str:
    """Replace every @handle by one mark."""
    return _HANDLE.sub("\u2038user\u2038", text)


def drop_retweet(text: str) -> str:
    """Drop a leading ``RT @handle:``, or several."""
    return _RETWEET.sub("", text)


def drop_quoted_lines(text: str) -> str:
    """Drop lines that quote another message (``> ...`` and ``| ...``)."""
    lines = text.splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith((">", "|")))


def drop_mail_signature(text: str) -> str:
    """Drop all from the first signature mark, a line of ``--``, on."""
    lines = takewhile(lambda line: line.strip() != "--", text.splitlines())
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Profile:
    """A named, versioned list of steps."""

    name: str
    version: int
    steps: tuple[Step, ...]

    def __call__(self, text: str) -> str:
        """Return the normalised text."""
        for step in self.steps:
            text = step(text)
        return text


_FOLD: tuple[Step, ...] = (drop_invisible, limit_marks, fold)

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("plain", 1, (*_FOLD, collapse_space)),
        Profile("news", 1, (*_FOLD, mask_links, collapse_space)),
        Profile("post", 1, (*_FOLD, drop_retweet, mask_links, mask_handles, collapse_space)),
        Profile(
            "forum",
            1,
            (*_FOLD, drop_quoted_lines, drop_mail_signature, mask_links, collapse_space),
        ),
    )
}
"""All profiles by name."""
