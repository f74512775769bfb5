"""*Pure.* How two texts differ, for people who look at them side by side."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import NamedTuple

_WORD = re.compile(r" ?(?:[\u2e80-\U0003ffff]|[^ \u2e80-\U0003ffff]{1,40})| ")
"""A word with the space before it; a character where words are written without spaces."""
_LOOKED_AT = 600
"""Words of each text, from the first difference on, in which differences are looked for."""
_EXCERPT = 400
"""Characters from which on no further difference is shown."""
_AROUND, _DIFFERING = 8, 30
"""Words shown on each side of a difference, and of the difference itself."""


class Part(NamedTuple):
    """Part of a text, and whether it is missing in the other one."""

    text: str
    differs: bool


def differences(left: str, right: str) -> tuple[list[Part], list[Part]]:
    """Cut two texts to where they differ, and mark what does.

    Runs of white space become one space, and case does not count. What both have in common is left
    out at the same places of both; of long texts only the beginning of what differs is shown.
    """
    one, two = (_WORD.findall(" ".join(text.split())) for text in (left, right))
    sides: tuple[list[Part], list[Part]] = ([], [])
    steps = _steps(one, two)
    looked_at = sum(len(mine) + len(theirs) for _, mine, theirs in steps)
    all_shown = looked_at == len(one) + len(two)
    for at, (same, mine, theirs) in enumerate(steps):
        last = at == len(steps) - 1
        for side, words in zip(sides, (mine, theirs), strict=True):
            if same:
                side.append(Part(_shortened(words, at > 0 or last, not last), differs=False))
            elif words:
                side.append(Part(_beginning(words), differs=True))
        if not last and max(sum(len(part.text) for part in side) for side in sides) > _EXCERPT:
            all_shown = False
            break
    for side in sides:
        if side and not all_shown and not side[-1].text.endswith("…"):
            side.append(Part(" …", differs=False))
    return list(_trimmed(sides[0])), list(_trimmed(sides[1]))


def _steps(one: list[str], two: list[str]) -> list[tuple[bool, list[str], list[str]]]:
    """Return what two texts have in common and what not, in turn: whether, and the words."""
    # No profile of ours but a composed one tells capitals from small letters.
    plain = [[word.casefold() for word in words] for words in (one, two)]
    start = 0
    for mine, theirs in zip(*plain, strict=False):
        if mine != theirs:
            break
        start += 1
    steps = [(True, one[:start], two[:start])] if start else []
    # The search takes the square of the words, hence not all of a long text.
    end = start + _LOOKED_AT
    matcher = difflib.SequenceMatcher(
        None, plain[0][start:end], plain[1][start:end], autojunk=False
    )
    for what, a, b, c, d in matcher.get_opcodes():
        steps.append((what == "equal", one[start + a : start + b], two[start + c : start + d]))
    return steps


def _shortened(words: list[str], head: bool, tail: bool) -> str:
    """Leave out the middle, or all but the end that is next to a difference."""
    before, after = _AROUND * head, _AROUND * tail
    if len(words) <= before + after + 1:
        return "".join(words)
    return "".join(words[:before]) + " …" + "".join(words[len(words) - after :])


def _beginning(words: list[str]) -> str:
    return "".join(words[:_DIFFERING]) + (" …" if len(words) > _DIFFERING else "")


def _trimmed(parts: list[Part]) -> Iterable[Part]:
    """Put the space before a difference out of it, so that the mark is on words only."""
    for at, part in enumerate(parts):
        inner = part.text.lstrip(" ") if part.differs or at == 0 else part.text
        if len(inner) < len(part.text) and at > 0:
            yield Part(" ", differs=False)
        yield Part(inner, part.differs)
