"""*Pure.* Normalisation: what counts as the same text.

A profile is a list of steps, applied in order. Profiles are versioned: an index remembers name and
version, and refuses to be read through another one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

Step = Callable[[str], str]

_SPACE = re.compile(r"\s+")
_INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
_URL = re.compile(r"(?:https?://|www\.)\S+")
_HANDLE = re.compile(r"(?<!\w)@\w+")
_RETWEET = re.compile(r"^\s*rt\s+@\w+:?\s*")
_QUOTED_LINE = re.compile(r"^[ \t]*(?:>|\|).*$\n?", re.MULTILINE)
_MAIL_SIGNATURE = re.compile(r"^-- ?$\n.*\Z", re.MULTILINE | re.DOTALL)


def fold(text: str) -> str:
    """Unicode NFKC, then casefold, then NFKC again, since folding can leave other forms."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def drop_invisible(text: str) -> str:
    """Drop zero-width characters and bidirectional controls; joiners stay, emoji need them."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def collapse_space(text: str) -> str:
    """Make each run of white space one space, and strip the ends."""
    return _SPACE.sub(" ", text).strip()


def mask_links(text: str) -> str:
    """Replace every URL by one mark, since shorteners make each copy's link its own."""
    return _URL.sub("\u2038url", text)


def mask_handles(text: str) -> str:
    """Replace every @handle by one mark."""
    return _HANDLE.sub("\u2038user", text)


def drop_retweet(text: str) -> str:
    """Drop a leading ``RT @handle:``."""
    return _RETWEET.sub("", text)


def drop_quoted_lines(text: str) -> str:
    """Drop lines that quote another message (``> ...`` and ``| ...``)."""
    return _QUOTED_LINE.sub("", text)


def drop_mail_signature(text: str) -> str:
    """Drop all from the last signature mark, a line of ``--``, on."""
    return _MAIL_SIGNATURE.sub("", text)


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


_COMMON: tuple[Step, ...] = (fold, drop_invisible, collapse_space)

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("plain", 1, _COMMON),
        Profile("news", 1, (mask_links, *_COMMON)),
        Profile(
            "post",
            1,
            (fold, drop_invisible, drop_retweet, mask_links, mask_handles, collapse_space),
        ),
        Profile("forum", 1, (drop_quoted_lines, drop_mail_signature, mask_links, *_COMMON)),
    )
}
"""All profiles by name."""
