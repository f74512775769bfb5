"""*Pure.* Normalisation: which texts count as the same.

A profile is a list of named steps. Profiles and steps have versions. An index stores both, and
cannot be opened with others. docs/profiles.md describes them with examples.

Rule 1: steps are in the order of ``STEPS``, each at most once. Every subset in this order is
idempotent, except the one that ``compose`` rejects. A text with more than thirty marks in a row may
lose some of them once more, if the character before them stands for another one and a mark.
Rule 2: if the result of a step changes for any input, the step gets a new version, and so does
every profile that contains it.
Rule 3: a text of which the masks leave no letter and no digit is normalised without them.
Rule 4: the time of each step is linear in the length of any text.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

Change = Callable[[str], str]

MARK = "\u2038"
"""Surrounds the words that masks insert; a caret that is on no keyboard."""

# Unicode's default-ignorable code points: soft hyphen, zero-width space, bidirectional controls,
# fillers, variation selectors, tags. The two joiners are missing, because emoji, Persian and the
# Indian scripts need them.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
# What masks leave of a text that consists of links, handles or numbers.
_HOLLOW = re.compile(rf"(?:{MARK}(?:url|user|number){MARK}|\W)*+")
# Only the start of a run is tried, so that runs of thirty do not take quadratic time.
_MARKS = re.compile(r"(?<![^\w\s!-~])[^\w\s!-~]{31,}")
_MOST_MARKS = 30
"""Most combining marks in a row in Unicode's Stream-Safe Text Format (UAX 15, section 13)."""
# The same characters without common punctuation.
_MARK = re.compile(r"[^\w\s!-~\u00a0-\u00bf\u2000-\u206f\u3000-\u3020\uff00-\uffef]")
_DOTS = re.compile("i\u0307+")

# A link consists of ASCII except <, > and ", and of letters up to those of Sinhala (U+0DFF). Later
# scripts continue after a link without a space. The last character is not punctuation.
_LINK = re.compile("[!#-;=?-~\u00c0-\u0dff]*[0-9A-Za-z/&=#%+_~@$*\u00c0-\u0dff-]")
_HEADS = ("https://", "http://", "ftp://", "www.")
_LONGEST_HEAD = max(map(len, _HEADS))
# An @ after a letter is an e-mail address. An @ after a mask may have been one before masking.
_HANDLE = re.compile(f"@(?<![0-9A-Za-z_{MARK}]@)[0-9A-Za-z_]+(?:@[0-9A-Za-z_.-]*[0-9A-Za-z_])*")
_NUMBER = re.compile("\\d+(?:[.,\u066b\u066c]\\d+)*")
_RETWEET = re.compile(r"\s*+(?:[Rr][Tt]\s++@[0-9A-Za-z_]++:?\s*+)++")


def drop_invisible(text: str) -> str:
    """Drop invisible characters, such as bidirectional controls; joiners stay."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def nfkc(text: str) -> str:
    """Convert equivalent and compatible characters to one form (NFKC).

    More than thirty combining marks in a row are dropped. Sorting takes quadratic time, so that a
    megabyte of marks would block a process for minutes.
    """
    return text if text.isascii() else unicodedata.normalize("NFKC", _limit_marks(text))


def _limit_marks(text: str) -> str:
    if len(text) <= _MOST_MARKS:
        return text
    # The two half-width marks of Japanese are letters before NFKC.
    text = text.replace("\uff9e", "\u3099").replace("\uff9f", "\u309a")
    # Every run that is too long has a mark at one of the indices 0, 31, 62 and so on.
    if not _MARK.search(text[:: _MOST_MARKS + 1]):
        return text
    return _MARKS.sub(_limit_run, text)


def _limit_run(run: re.Match[str]) -> str:
    """Drop the marks after the thirtieth of a run, counting decomposed marks."""
    kept = []
    marks = 0
    for character in run[0]:
        parts = unicodedata.normalize("NFKD", character)
        marks = marks + len(parts) if unicodedata.combining(parts[0]) else 0
        if marks <= _MOST_MARKS:
            kept.append(character)
    return "".join(kept)


def casefold(text: str) -> str:
    """Fold case by Unicode's full case folding.

    The four letters i of Turkish become one. Which small letter belongs to a capital I depends on
    the language, which is unknown.
    """
    if text.isascii():
        return text.lower()
    folded = text.casefold().replace("\u0131", "i")
    return _DOTS.sub("i", folded) if "\u0307" in folded else folded


def _casefold_nfkc(text: str) -> str:
    """Fold case, and restore the NFKC form that folding can destroy."""
    return unicodedata.normalize("NFKC", casefold(text))


def drop_retweet(text: str) -> str:
    """Drop one or several leading ``RT @handle:``."""
    prefix = _RETWEET.match(text)
    return text[prefix.end() :] if prefix else text


def drop_quoted_lines(text: str) -> str:
    """Drop lines that quote another message (``> ...`` and ``| ...``)."""
    if ">" not in text and "|" not in text:
        return text
    return _join(line for line in text.splitlines() if not line.lstrip().startswith((">", "|")))


def drop_mail_signature(text: str) -> str:
    """Drop everything from the first line ``--`` on."""
    if "--" not in text:
        return text
    return _join(takewhile(lambda line: line.strip() != "--", text.splitlines()))


def _join(lines: Iterable[str]) -> str:
    """Join lines without the empty ones at the end, which makes the steps idempotent."""
    return "\n".join(lines).rstrip("\n")


def mask_urls(text: str) -> str:
    """Replace every link by one word; URL shorteners give each copy a link of its own."""
    for end in ("://", "w.", "W."):
        if end in text:
            text = _mask_heads(text, end)
    return text


def _mask_heads(text: str, end: str) -> str:
    """Mask the links whose head has this end. ``str.find`` is ten times faster than a regex."""
    parts = []
    done = 0
    place = text.find(end)
    while place >= 0:
        behind = place + len(end)
        head = text[max(done, behind - _LONGEST_HEAD) : behind].lower()
        size = next((len(known) for known in _HEADS if head.endswith(known)), 0)
        link = _LINK.match(text, behind) if size else None
        if link:
            parts += [text[done : behind - size], f"{MARK}url{MARK}"]
            done = behind = link.end()
        place = text.find(end, behind)
    return "".join([*parts, text[done:]])


def mask_handles(text: str) -> str:
    """Replace every @handle by the same word; e-mail addresses stay."""
    return _HANDLE.sub(f"{MARK}user{MARK}", text) if "@" in text else text


def mask_numbers(text: str) -> str:
    """Replace every number, in the digits of any script, by the same word."""
    return _NUMBER.sub(f"{MARK}number{MARK}", text)


def collapse_space(text: str) -> str:
    """Replace each run of white space by one space, and strip both ends."""
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class Step:
    """A named, versioned change of a text."""

    name: str
    version: int  # raised when the result changes for any text
    change: Change
    ascii: Change | None  # the function for ASCII texts; None if the step does not change them
    of_lines: bool = False  # whether it processes lines
    masks: bool = False  # whether it replaces parts of a text by words that all texts share

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


STEPS: dict[str, Step] = {
    step.name: step
    for step in (
        Step("drop_invisible", 1, drop_invisible, None),
        Step("nfkc", 1, nfkc, None),
        Step("casefold", 1, casefold, str.lower),
        Step("drop_retweet", 1, drop_retweet, drop_retweet),
        Step("drop_quoted_lines", 1, drop_quoted_lines, drop_quoted_lines, of_lines=True),
        Step("drop_mail_signature", 1, drop_mail_signature, drop_mail_signature, of_lines=True),
        Step("mask_urls", 2, mask_urls, mask_urls, masks=True),
        Step("mask_handles", 2, mask_handles, mask_handles, masks=True),
        Step("mask_numbers", 2, mask_numbers, mask_numbers, masks=True),
        Step("collapse_space", 1, collapse_space, collapse_space),
    )
}
"""All steps by name, in the order that every profile keeps."""

CUSTOM = "custom"
"""Name of every profile that is composed of listed steps."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A named, versioned list of steps; created by :func:`resolve` or :func:`compose`."""

    name: str
    version: int
    steps: tuple[Step, ...]
    # The functions that the steps apply, in order; the same without masks; whether the two differ.
    changes: tuple[Change, ...] = field(init=False, repr=False, compare=False)
    unmasked: tuple[Change, ...] = field(init=False, repr=False, compare=False)
    has_masks: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "changes", changes_of(self.steps))
        bare = tuple(step for step in self.steps if not step.masks)
        object.__setattr__(self, "unmasked", changes_of(bare))
        object.__setattr__(self, "has_masks", len(bare) < len(self.steps))

    def __call__(self, text: str) -> str:
        """Return the normalised text."""
        return self.unless_hollow(text, apply_changes(self.changes, text))

    def unless_hollow(self, text: str, masked: str) -> str:
        """Return the result of all changes, or of those without masks if only masks are left."""
        if self.has_masks and MARK in masked and _HOLLOW.fullmatch(masked):
            return apply_changes(self.unmasked, text)
        return masked

    def __str__(self) -> str:
        """Format the profile with its steps and their versions, for :func:`resolve`."""
        return f"{self.name} ({' '.join(map(str, self.steps))})"


def changes_of(steps: Sequence[Step]) -> tuple[Change, ...]:
    """Return the functions that the steps apply, in order."""
    has_nfkc = STEPS["nfkc"] in steps
    return tuple(
        _casefold_nfkc if has_nfkc and step.name == "casefold" else step.change for step in steps
    )


def apply_changes(changes: tuple[Change, ...], text: str) -> str:
    """Apply each change to the result of the previous one."""
    for change in changes:
        text = change(text)
    return text


_FOLD = ("drop_invisible", "nfkc", "casefold")

PROFILES: dict[str, Profile] = {
    name: Profile(name, version, tuple(STEPS[step] for step in (*_FOLD, *steps, "collapse_space")))
    for name, version, steps in (
        ("plain", 1, ()),
        ("news", 2, ("mask_urls",)),
        ("post", 2, ("drop_retweet", "mask_urls", "mask_handles")),
        ("forum", 2, ("drop_quoted_lines", "drop_mail_signature", "mask_urls")),
    )
}
"""The named profiles."""


def compose(names: Sequence[str]) -> Profile:
    """Return the profile with these steps: the named one that has them, or a custom one.

    A ValueError names a step that is unknown, repeated or in the wrong place, or says that there is
    none.
    """
    for name in names:
        if name not in STEPS:
            raise ValueError(f"unknown step {name!r}{_suggest(name, STEPS)}")
    if not names:
        raise ValueError("a profile needs at least one step; expected e.g. [nfkc, casefold]")
    right = [name for name in STEPS if name in names]
    if len(right) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"step {repeated} is listed twice; remove one")
    if right != list(names):
        early, late = next((a, b) for a, b in zip(names, right, strict=True) if a != b)
        raise ValueError(f"step {late} must come before {early}; write [{', '.join(right)}]")
    steps = tuple(STEPS[name] for name in names)
    lines = next((step.name for step in steps if step.of_lines), None)
    if "drop_retweet" in names and lines:
        raise ValueError(
            f"drop_retweet and {lines} exclude each other; remove one from dedup.profile"
        )
    known = (profile for profile in PROFILES.values() if profile.steps == steps)
    return next(known, Profile(CUSTOM, 1, steps))


def resolve(profile: str | Sequence[str]) -> Profile:
    """Return the profile for a name, for a list of steps, or for the result of ``str(profile)``.

    Raises:
        ValueError: the profile or a step is unknown, or the steps cannot be combined.
    """
    if not isinstance(profile, str):
        return compose(profile)
    name, _, steps = profile.partition(" (")
    if steps:
        found = compose([step.partition("/")[0] for step in steps.rstrip(")").split()])
        if str(found) != profile:  # a step has another version
            raise ValueError(f"profile {profile} is now {found}")
        return found
    if name not in PROFILES:
        raise ValueError(f"unknown profile {name!r}{_suggest(name, PROFILES)}")
    return PROFILES[name]


def _suggest(name: str, known: dict[str, Step] | dict[str, Profile]) -> str:
    """Return the end of a message about an unknown name: the closest one, and all known ones."""
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"; did you mean {near[0]}?" if near else ";"
    return f"{guess} expected one of: {', '.join(sorted(known))}"
