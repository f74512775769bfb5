"""*Pure.* What every target needs: damaged copies of valid bytes, odd values, and findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")
Block = Callable[[Random], int]
"""Runs some cases and returns their number; raises :class:`Finding` if one has a wrong result."""

MOST_EDITS = 4
_SHORT = 40
"""Most bytes that one edit deletes, repeats or moves, in most cases."""


class Finding(AssertionError):  # noqa: N818 - a result of a run, not an error of it
    """A case with a wrong result: the case itself, and what is wrong."""

    def __init__(self, case: object, problem: str) -> None:
        shown = repr(case)
        cut = f" ... {len(shown)} characters" if len(shown) > 2000 else ""
        super().__init__(f"{problem}\ncase: {shown[:2000]}{cut}")


def each(cases: Sequence[T], check: Callable[[T], None]) -> int:
    """Check every case; a foreign exception is a finding, too."""
    for case in cases:
        try:
            check(case)
        except Finding:
            raise
        except Exception as error:
            raise Finding(case, f"{type(error).__name__}: {error}") from error
    return len(cases)


def expect(condition: bool, case: object, problem: str) -> None:
    """Raise a finding unless a condition holds."""
    if not condition:
        raise Finding(case, problem)


def mutated(random: Random, data: bytes, tokens: Sequence[bytes]) -> bytes:
    """Return a damaged copy of some bytes.

    Args:
        random: the source of all choices.
        data: the bytes.
        tokens: byte strings that mean something to the reader, and are inserted.
    """
    content = bytearray(data)
    for _ in range(1 + int(random.random() * MOST_EDITS)):
        _edit(random, content, tokens)
    return bytes(content)


def _edit(random: Random, content: bytearray, tokens: Sequence[bytes]) -> None:
    size = len(content)
    place = int(random.random() * (size + 1))
    kind = int(random.random() * 8)
    if kind == 0 or size == 0:
        content[place:place] = random.choice(tokens)
        return
    place = min(place, size - 1)
    length = 1 + int(random.random() * (_SHORT if random.random() < 0.9 else size))
    if kind == 1:
        content[place] ^= 1 << int(random.random() * 8)
    elif kind == 2:
        content[place] = int(random.random() * 256)
    elif kind == 3:
        del content[place : place + length]
    elif kind == 4:
        content[place:place] = content[place : place + length] * (1 + int(random.random() * 3))
    elif kind == 5:
        token = random.choice(tokens)
        content[place : place + len(token)] = token
    elif kind == 6:
        other = int(random.random() * size)
        content[place : place + length] = content[other : other + length]
    else:
        del content[place:]


def odd_integer(random: Random) -> int:
    """Return an integer near a limit of its type, or a random one of any size."""
    if random.random() < 0.3:
        return random.getrandbits(int(random.random() * 70)) * random.choice([1, -1])
    near = random.choice([0, 1, 2**7, 2**8, 2**16, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64])
    return (near + random.choice([-1, 0, 1])) * random.choice([1, 1, -1])


_SPECIAL = (
    "\x00", "\t", "\n", "\r", " ", '"', "\\", "'", ":", ",", ".", "-", "_", "0", "9", "a", "Z",
    "\x7f", "\x80", "\x85", "\u00a0", "\u00ad", "\u00df", "\u00e9", "\u0130", "\u0131", "\u0300",
    "\u0301", "\u0345", "\u0663", "\u115f", "\u1100", "\u1161", "\u11a8", "\u200b", "\u200d",
    "\u2028", "\u202e", "\u2038", "\u3000", "\u3164", "\u4eca", "\uac00", "\ud800", "\udc80",
    "\udfff", "\ufb03", "\ufdfa", "\ufe0f", "\ufeff", "\uff9e", "\uffff", "\U0001f468",
    "\U000e0001", "\U0010ffff",
)  # fmt: skip


def _pool() -> list[str]:
    """Return characters to draw from: half of them special, a third of them ASCII."""
    others = [*map(chr, range(0x80, 0x3100)), *map(chr, range(0x3100, 0x110000, 160))]
    size = len(others)
    ascii_ = [chr(32 + index % 95) for index in range(3 * size // 2)]
    return others + ascii_ + [_SPECIAL[index % len(_SPECIAL)] for index in range(5 * size // 2)]


_POOL = _pool()


def odd_text(random: Random, longest: int = 12) -> str:
    """Return a text of special characters and of those of every script."""
    return "".join(random.choices(_POOL, k=int(random.random() * longest)))
