"""*Pure.* Rewrites chunks of texts by a table, in one kernel call, as Python's NFKC would.

The table holds what each code point becomes on its own. It is built at first use by the functions
that change texts, so that it agrees with the Unicode version of the running Python. The kernel also
sorts and composes combining marks as NFKC does (UAX 15).

A text with a rare sequence, such as more than thirty marks in a row, is *odd*: the kernel returns
it unchanged, and a plain Python function rewrites it. Both paths give the same result.
docs/adr/0008-normalising-batches-by-kernels.md has the reasons and measurements.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64
from streamdedup.kernels import kernel
from streamdedup.sketch.shingle import chunks

U32 = NDArray[np.uint32]
Int = int | np.int64
"""An integer inside a kernel."""

# The bits of a table's entry, from the lowest:
# - 21 bits to flip in the code point; for kind EXPANDED, the index of its expansion;
# - 3 bits, the kind;
# - 1 bit, whether it is white space to collapse; 1 bit, whether it is dropped;
# - 6 bits, the tail: the rank of the combining class of the last mark in its canonical
#   decomposition, which for a mark is the mark itself.
# The entry of a code point that stays as it is is 0, so that most blocks of a table are the same.
POINT_BITS = 21
POINT = (1 << POINT_BITS) - 1
KIND = 7 << 21
EXPANDED = 1 << 21
"""Kind of a code point that becomes several."""
MARK = 2 << 21
"""Kind of a mark that composes with nothing, but has a rank among the marks of a letter."""
COMPOSING = 3 << 21
"""Kind of a code point that composes with some of those before it."""
ODD = 4 << 21
"""Kind of a code point that makes the text odd."""
SPACE_BIT = 24
DROPPED_BIT = 25
TAIL_BIT = 26
CLOSED = 63
"""Tail of a code point after which any mark makes the text odd."""
BLOCK_BITS = 8
BLOCK = 1 << BLOCK_BITS
DOT_ABOVE = 0x307
ROOM = 32
"""No code point becomes as many as this."""
_PLANES = (0, 1, 2, 3, 14)  # the others have no characters, or only those of private use

# Hangul syllables are composed by arithmetic (Unicode Standard, section 3.12).
LEADS, VOWELS, TAILS, SYLLABLES = 0x1100, 0x1161, 0x11A7, 0xAC00
LEAD_COUNT, VOWEL_COUNT, TAIL_COUNT = 19, 21, 28

_SHIFT = np.uint32(BLOCK_BITS)
_WITHIN = np.uint32(BLOCK - 1)
_KINDS = np.uint32(KIND)
_POINTS = np.uint32(POINT)
_MOST_MARKS = 30
_IS_ODD = -1
_NONE = np.int64(0)  # base with which nothing composes


class Table(NamedTuple):
    """What a change does with each code point."""

    blocks: U32  # index of the first entry of each 256 code points
    entries: U32  # see the comment above
    expansions: U32  # of each its length and code points; white space to collapse has SPACE_BIT
    pairs: I64  # two code points that compose, the first one in the upper bits, ascending
    composites: I64  # what each pair becomes


def rewrite(texts: Sequence[str], table: Table, plain: Callable[[str], str]) -> list[str]:
    """Change texts by the table of a change; ``plain`` is the change, and rewrites odd texts."""
    results: list[str] = []
    for chunk in chunks(texts):
        some = texts[chunk]
        # This is twice as fast as Python's codecs. The last letter is there because numpy removes
        # NUL characters from the end of a string.
        codes = np.array("".join([*some, "x"])).reshape(1).view(np.uint32)
        lengths = np.fromiter(map(len, some), dtype=np.int64, count=len(some))
        changed, starts, stops = _rewrite(codes, lengths, table)
        joined: str = changed.view(f"U{len(changed)}").item()
        results += [
            joined[start:stop] if stop >= 0 else plain(text)
            for text, start, stop in zip(some, starts.tolist(), stops.tolist(), strict=True)
        ]
    return results


@kernel
def _rewrite(codes: U32, lengths: I64, table: Table) -> tuple[U32, I64, I64]:
    """Return the changed code points, and the bounds of each text in them; odd ones end at -1."""
    changed = np.empty(2 * len(codes) + ROOM, dtype=np.uint32)
    starts = np.empty(len(lengths), dtype=np.int64)
    stops = np.empty(len(lengths), dtype=np.int64)
    start = 0
    length: Int = 0
    for text in range(len(lengths)):
        stop = start + lengths[text]
        starts[text] = length
        # The texts after this one need at least this much of the output.
        room = len(changed) - (len(codes) - stop) - ROOM
        stops[text] = _rewrite_one(codes, start, stop, table, changed, length, room)
        length = max(length, stops[text])
        start = stop
    changed[length] = 0x78
    return changed[: length + 1], starts, stops


@kernel
def _rewrite_one(
    codes: U32, start: Int, stop: Int, table: Table, changed: U32, begin: Int, room: Int
) -> Int:
    """Write the changed code points of one text from ``begin`` on; return their end, or -1 if odd.

    The function is long because handing its state and arrays to a kernel per step takes 1.3 to 3
    times as long on decomposed text.
    """
    blocks, entries, expansions, pairs, composites = table
    length = begin
    behind_space: Int = 1  # white space at the beginning is dropped too
    # The last run of characters that can combine with the one before the run: index of its last
    # character and its size; code point that the next character may compose with; tail of that, or
    # of the last mark; marks at the end of the output, and those among them of kind MARK.
    last_of_run: Int = -1
    base: Int = _NONE
    tail: Int = _NONE
    size = marks = sortable = 0
    i = start - 1
    while True:
        done, length, behind_space = _copy_simple(
            codes[i + 1 : stop], blocks, entries, changed, length, behind_space, room
        )
        i += 1 + done
        if i == stop:
            return length - (behind_space & (length > begin))
        code = np.int64(codes[i])
        entry = _entry(blocks, entries, code)
        kind = entry & KIND
        if kind in (0, ODD) or length >= room:
            return _IS_ODD
        if kind == EXPANDED:
            length, behind_space = _expand(expansions, entry & POINT, changed, length, behind_space)
            continue
        rank = entry >> TAIL_BIT
        before = i - 1
        while before >= start and _entry(blocks, entries, codes[before]) >> DROPPED_BIT & 1:
            before -= 1
        if before < start or before != last_of_run:
            base = np.int64(codes[before]) if before >= start else _NONE
            tail = _entry(blocks, entries, base) >> TAIL_BIT if before >= start else _NONE
            marks = sortable = size = 0
        last_of_run = i
        size += 1
        if tail == CLOSED or size > _MOST_MARKS:
            return _IS_ODD
        if kind == MARK:
            place = length
            if marks and rank < tail:
                if sortable < marks:
                    return _IS_ODD
                place = _make_room(blocks, entries, changed, length, length - marks, rank)
            else:
                tail = rank
            changed[place] = code
            length += 1
            behind_space = 0
            marks += 1
            sortable += 1
            base = _NONE
            continue
        if before < start:
            base = _NONE
        elif base == 0 or (0 < rank < tail):
            return _IS_ODD
        composite = _compose(pairs, composites, base, code)
        if composite:
            old, new = _entry(blocks, entries, base), _entry(blocks, entries, composite)
            length -= expansions[old & POINT] if old & KIND == EXPANDED else 1
            if new & KIND == EXPANDED:
                length, behind_space = _expand(
                    expansions, new & POINT, changed, length, behind_space
                )
            elif new & KIND:
                return _IS_ODD
            else:
                changed[length] = composite ^ (new & POINT)
                length += 1
            base = composite
            tail = new >> TAIL_BIT
            continue
        if code == DOT_ABOVE or (
            base
            and _changed_base_combines(
                blocks, entries, pairs, composites, base, changed[length - 1], code
            )
        ):
            return _IS_ODD
        changed[length] = code
        length += 1
        behind_space = 0
        tail = rank
        if rank:
            marks += 1
            base = _NONE
        else:
            marks = sortable = 0
            base = code


@kernel(inline="always")
def _copy_simple(
    codes: U32, blocks: U32, entries: U32, changed: U32, length: Int, behind_space: Int, room: Int
) -> tuple[Int, Int, Int]:
    """Change code points until one is not of kind 0.

    Return their number, the new length of the output, and whether it ends with white space.
    """
    output = changed[length:room]
    size: Int = 0
    some = codes[: len(output)]
    for i in range(len(some)):
        code = some[i]
        entry = entries[blocks[code >> _SHIFT] + (code & _WITHIN)]
        if entry & _KINDS:
            return i, length + size, behind_space
        space = np.int64((entry >> np.uint32(SPACE_BIT)) & np.uint32(1))
        dropped = np.int64((entry >> np.uint32(DROPPED_BIT)) & np.uint32(1))
        output[size] = code ^ (entry & _POINTS)
        size += 1 - (dropped | (space & behind_space))
        behind_space = space | (dropped & behind_space)
    return len(some), length + size, behind_space


@kernel
def _entry(blocks: U32, entries: U32, code: Int) -> Int:
    """Return the entry of a code point."""
    point = np.int64(code)
    block = np.int64(blocks[point >> BLOCK_BITS])
    return np.int64(entries[block + (point & (BLOCK - 1))])


@kernel
def _expand(
    expansions: U32, place: Int, changed: U32, length: Int, behind_space: Int
) -> tuple[Int, Int]:
    """Write an expansion; return the new length, and whether the output ends with white space."""
    for i in range(place + 1, place + 1 + np.int64(expansions[place])):
        code = np.int64(expansions[i])
        space = (code >> SPACE_BIT) & 1
        changed[length] = code & POINT
        length += 1 - (space & behind_space)
        behind_space = space
    return length, behind_space


@kernel
def _make_room(blocks: U32, entries: U32, changed: U32, length: Int, first: Int, rank: Int) -> Int:
    """Move marks of a higher rank, from index ``first`` on, up by one; return the free index."""
    while length > first and rank < _entry(blocks, entries, changed[length - 1]) >> TAIL_BIT:
        changed[length] = changed[length - 1]
        length -= 1
    return length


@kernel
def _changed_base_combines(
    blocks: U32, entries: U32, pairs: I64, composites: I64, base: Int, last: Int, code: Int
) -> bool:
    """Return whether a character combines with what the base has become, but not with the base."""
    became = np.int64(last)
    if became == base or _entry(blocks, entries, base) >> SPACE_BIT & 1:
        return False
    rank = _entry(blocks, entries, code) >> TAIL_BIT
    if 0 < rank < _entry(blocks, entries, became) >> TAIL_BIT:
        return True
    return bool(_compose(pairs, composites, became, code))


@kernel
def _compose(pairs: I64, composites: I64, first: Int, second: Int) -> Int:
    """Return the composite of two code points; 0 if they do not compose."""
    vowel, tail = second - VOWELS, second - TAILS
    if 0 <= vowel < VOWEL_COUNT:
        lead = first - LEADS
        syllable = SYLLABLES + (lead * VOWEL_COUNT + vowel) * TAIL_COUNT
        return syllable if 0 <= lead < LEAD_COUNT else 0
    if 0 < tail < TAIL_COUNT:
        syllable = first - SYLLABLES
        is_open = syllable % TAIL_COUNT == 0
        inside = 0 <= syllable < LEAD_COUNT * VOWEL_COUNT * TAIL_COUNT
        return first + tail if is_open and inside else 0
    pair = (first << POINT_BITS) | second
    low, high = 0, len(pairs)
    while low < high:
        middle = (low + high) >> 1
        if pairs[middle] < pair:
            low = middle + 1
        else:
            high = middle
    return composites[low] if low < len(pairs) and pairs[low] == pair else 0


def make_table(change: Callable[[str], str], *, composes: bool, collapses: bool) -> Table:
    """Build the table of a change, in some 0.2 s: most planes of Unicode are left out.

    Args:
        change: changes each character independently of its neighbours, with two exceptions: NFKC if
            ``composes``, and a dot above, which may disappear after some letters.
        composes: whether the change includes NFKC, after nothing but dropping characters.
        collapses: whether the kernel also collapses the white space of the changed text.
    """
    every = [chr(point) for plane in _PLANES for point in range(plane << 16, plane + 1 << 16)]
    maker = _Maker(change, every, composes, collapses)
    # All blocks without a change share the first one.
    blocks, entries = [0] * ((sys.maxunicode + 1) // BLOCK), [0] * BLOCK
    for first in range(0, len(every), BLOCK):
        block = every[first : first + BLOCK]
        of_block = [] if maker.is_plain(block) else [*map(maker.entry, block)]
        if any(of_block):
            blocks[ord(block[0]) // BLOCK] = len(entries)
            entries += of_block
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
        """Return whether the beginning of a text may combine with characters before it."""
        first = unicodedata.normalize("NFKD", text)[0]
        return unicodedata.combining(first) != 0 or first in self._composing

    def _output(self, one: str, changed: str) -> int:
        """Return the lower bits of an entry: the bits to flip, or the kind and an expansion."""
        # White space to collapse is marked.
        points = [
            1 << SPACE_BIT | 0x20 if self._collapses and each.isspace() else ord(each)
            for each in changed
        ]
        if len(points) == 1:
            return points[0] ^ ord(one)
        if len(points) >= ROOM:
            return ODD
        self.expansions += [len(points), *points]
        return EXPANDED | (len(self.expansions) - len(points) - 1)
