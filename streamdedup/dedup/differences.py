"""*Pure.* The differences of two texts, for display side by side."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import NamedTuple

_WORD = re.compile(r" ?(?:[\u2e80-\U0003ffff]|[^ \u2e80-\U0003ffff]{1,40})| ")
"""A word with the space before it; one character in scripts without spaces between words."""
_MOST_WORDS = 600  # words of each text that are compared, from the first difference on
_EXCERPT = 400  # characters after which no further difference is shown
_AROUND, _DIFFERING = 8, 30
"""Words shown on each side of a difference, and words shown of the difference itself."""


class TextPart(NamedTuple):
    """A part of a text, and whether the other text lacks it."""

    text: str
    differs: bool


def differences(
    left: str, right: str, *, whole: bool = False
) -> tuple[list[TextPart], list[TextPart]]:
    """Shorten two texts to their differences, and mark these; ``whole`` texts are not shortened.

    Runs of white space become one space, and case is ignored. Common parts are shortened at the
    same places of both texts. Only the beginning of a long difference is shown.
    """
    one, two = (_WORD.findall(" ".join(text.split())) for text in (left, right))
    sides: tuple[list[TextPart], list[TextPart]] = ([], [])
    steps = _steps(one, two)
    compared = sum(len(mine) + len(theirs) for _, mine, theirs in steps)
    all_shown = compared == len(one) + len(two)
    if whole:
        if not all_shown and not all(steps[-1][1:]):
            # The last words of one side may be among those of the other one that are not compared.
            steps.pop()
        return (
            _whole(one, [(same, mine) for same, mine, _ in steps]),
            _whole(two, [(same, theirs) for same, _, theirs in steps]),
        )
    for index, (same, mine, theirs) in enumerate(steps):
        last = index == len(steps) - 1
        for side, words in zip(sides, (mine, theirs), strict=True):
            if same:
                side.append(TextPart(_shortened(words, index > 0 or last, not last), differs=False))
            elif words:
                more = " …" if len(words) > _DIFFERING else ""
                side.append(TextPart("".join(words[:_DIFFERING]) + more, differs=True))
        if not last and max(sum(len(part.text) for part in side) for side in sides) > _EXCERPT:
            all_shown = False
            break
    for side in sides:
        if side and not all_shown and not side[-1].text.endswith("…"):
            side.append(TextPart(" …", differs=False))
    return list(_trimmed(sides[0])), list(_trimmed(sides[1]))


def _whole(words: list[str], steps: list[tuple[bool, list[str]]]) -> list[TextPart]:
    """Return all words of a text; those behind the compared ones are not marked."""
    rest = words[sum(len(part) for _, part in steps) :]
    shown = [*steps, (True, rest)]
    parts = [TextPart("".join(part), differs=not same) for same, part in shown if part]
    return list(_trimmed(parts))


def _steps(one: list[str], two: list[str]) -> list[tuple[bool, list[str], list[str]]]:
    """Return the steps from one text to the other: whether both agree, and the words of each."""
    # Only a composed profile distinguishes capital from small letters.
    plain = [[word.casefold() for word in words] for words in (one, two)]
    start = 0
    for mine, theirs in zip(*plain, strict=False):
        if mine != theirs:
            break
        start += 1
    steps = [(True, one[:start], two[:start])] if start else []
    # The search takes quadratic time, so that only a part of a long text is compared.
    end = start + _MOST_WORDS
    matcher = difflib.SequenceMatcher(
        None, plain[0][start:end], plain[1][start:end], autojunk=False
    )
    for operation, a, b, c, d in matcher.get_opcodes():
        steps.append((operation == "equal", one[start + a : start + b], two[start + c : start + d]))
    return steps


def _shortened(words: list[str], head: bool, tail: bool) -> str:
    """Drop the middle of a common part, or all of it except the end next to a difference."""
    before, after = _AROUND * head, _AROUND * tail
    if len(words) <= before + after + 1:
        return "".join(words)
    return "".join(words[:before]) + " …" + "".join(words[len(words) - after :])


def _trimmed(parts: list[TextPart]) -> Iterable[TextPart]:
    """Move the space before a difference out of it, so that only words are marked."""
    for index, part in enumerate(parts):
        inner = part.text.lstrip(" ") if part.differs or index == 0 else part.text
        if len(inner) < len(part.text) and index > 0:
            yield TextPart(" ", differs=False)
        yield TextPart(inner, part.differs)
