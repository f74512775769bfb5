"""*Pure.* Builds the tables of :mod:`streamdedup.sketch.fold` from the plain changes.

A table is built at first use by the functions that change texts, so that it agrees with the Unicode
version of the running Python. The compiled kernels hold no Unicode data.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from streamdedup.sketch.fold import (
    BLOCK,
    CLOSED,
    COMPOSING,
    DOT_ABOVE,
    DROPPED_BIT,
    EXPANDED,
    MARK,
    ODD,
    POINT_BITS,
    ROOM,
    SPACE_BIT,
    TAIL_BIT,
    TAIL_COUNT,
    TAILS,
    VOWEL_COUNT,
    VOWELS,
    Table,
)


def make_table(change: Callable[[str], str], *, composes: bool, collapses: bool) -> Table:
    """Build the table of a change, in less than a second.

    Args:
        change: changes each character independently of its neighbours, with two exceptions: NFKC if
            ``composes``, and a dot above, which may disappear after some letters.
        composes: whether the change includes NFKC, after nothing but dropping characters.
        collapses: whether the kernel also collapses the white space of the changed text.
    """
    every = [chr(point) for point in range(sys.maxunicode + 1)]
    maker = _Maker(change, every, composes, collapses)
    blocks, entries = [], [0] * BLOCK  # all blocks without a change share the first one
    for first in range(0, len(every), BLOCK):
        block = every[first : first + BLOCK]
        of_block = [] if maker.is_plain(block) else [*map(maker.entry, block)]
        changes = any(of_block)
        blocks.append(len(entries) if changes else 0)
        entries += of_block if changes else []
    keys = sorted(maker.pairs)
    return Table(
        np.array(blocks, dtype=np.uint32),
        np.array(entries, dtype=np.uint32),
        np.array(maker.expansions, dtype=np.uint32),
        np.array([ord(one) << POINT_BITS | ord(other) for one, other in keys], dtype=np.int64),
        np.array([ord(maker.pairs[key]) for key in keys], dtype=np.int64),
    )


def _pairs(every: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return every pair of characters that composes, and its composite, except Hangul."""
    pairs = {}
    for one in every:
        parts = unicodedata.decomposition(one)
        if " " in parts and parts[0] != "<":
            first, second = (chr(int(part, 16)) for part in parts.split())
            if unicodedata.normalize("NFC", first + second) == one:
                pairs[first, second] = one
    return pairs


class _Maker:
    """Builds the entries of a table; collects expansions and composing pairs."""

    def __init__(
        self, change: Callable[[str], str], every: Sequence[str], composes: bool, collapses: bool
    ) -> None:
        self.expansions: list[int] = []
        self.pairs = _pairs(every) if composes else {}
        composing = {second for _, second in self.pairs}
        if composes:
            composing.update(map(chr, range(VOWELS, VOWELS + VOWEL_COUNT)))
            composing.update(map(chr, range(TAILS + 1, TAILS + TAIL_COUNT)))
        self._change = change
        self._composing = composing
        self._composes = composes
        self._collapses = collapses
        classes = set(map(unicodedata.combining, every))
        self._ranks = {value: rank for rank, value in enumerate(sorted(classes))}

    def is_plain(self, block: Sequence[str]) -> bool:
        """Return True only if all entries of a block are 0; a quick test that may return False."""
        spaced = "x".join(block)  # so that neighbours do not compose
        if self._change(spaced) != spaced or (self._collapses and any(map(str.isspace, block))):
            return False
        return not self._composes or (
            unicodedata.is_normalized("NFKD", spaced)
            and not any(map(unicodedata.combining, block))
            and self._composing.isdisjoint(block)
        )

    def entry(self, one: str) -> int:
        """Return the entry of a character."""
        changed = self._change(one)
        if not changed:
            return 1 << DROPPED_BIT
        if not self._composes:
            return ODD if ord(one) == DOT_ABOVE else self._output(one, changed)
        if self._joins(one):
            rank = self._ranks[unicodedata.combining(one)]
            if changed != one or unicodedata.normalize("NFKD", one) != one:
                return ODD
            return rank << TAIL_BIT | (COMPOSING if one in self._composing else MARK)
        if self._joins(changed):
            return ODD
        if unicodedata.normalize("NFKC", one) == one and not unicodedata.combining(changed[-1]):
            tail = self._ranks[unicodedata.combining(unicodedata.normalize("NFD", one)[-1])]
        else:
            tail = CLOSED
        return tail << TAIL_BIT | self._output(one, changed)

    def _joins(self, text: str) -> bool:
        """Tell whether the beginning of a text may combine with characters before it."""
        first = unicodedata.normalize("NFKD", text)[0]
        return unicodedata.combining(first) != 0 or first in self._composing

    def _output(self, one: str, changed: str) -> int:
        """Return the lower bits of an entry: the bits to flip, or the kind and an expansion."""
        points = [self._point(character) for character in changed]
        if len(points) == 1:
            return points[0] ^ ord(one)
        if len(points) >= ROOM:
            return ODD
        self.expansions += [len(points), *points]
        return EXPANDED | (len(self.expansions) - len(points) - 1)

    def _point(self, one: str) -> int:
        """Return a code point as the kernel writes it; white space to collapse is marked."""
        return 1 << SPACE_BIT | 0x20 if self._collapses and one.isspace() else ord(one)
