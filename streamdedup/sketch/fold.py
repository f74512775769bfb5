"""*Pure.* The quick ways of normalising: a kernel over a whole chunk of texts.

- In ASCII, case and white space are simple, and have a kernel of their own.
- For all other texts, a table says what a change does with each character alone. Where marks
  follow, the kernel sorts and composes them as NFKC does (UAX 15). A text with something rarer,
  such as more than thirty marks in a row, it leaves to the plain way; the result is the same.

Tables are made at first use, by the changes themselves, so that they are those of this Python. The
compiled kernels know nothing of them.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from streamdedup.model import I64
from streamdedup.sketch.shingle import chunks, pack

U32 = NDArray[np.uint32]

_SPACE = np.uint8(0x20)
_CASE = np.uint8(5)
"""Capital and small letters differ in this bit."""


def collapse_ascii(texts: Sequence[str], *, fold: bool) -> list[str]:
    """Make each run of white space one space, and strip the ends.

    Args:
        texts: of ASCII only.
        fold: whether capital letters become small.
    """
    made: list[str] = []
    for chunk in chunks(texts):
        codes, offsets = pack(texts[chunk])
        starts, stops = offsets[:-1].copy(), offsets[1:].copy()
        # Strings cut from one long one are made quicker than each from its own bytes.
        collapsed = str(_collapse(codes, starts, stops, fold), "ascii")
        bounds = zip(starts.tolist(), stops.tolist(), strict=True)
        made += [collapsed[start:stop] for start, stop in bounds]
    return made


@numba.njit(cache=True, nogil=True)
def _collapse(codes, starts, stops, fold):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Return the changed code points, and write to ``starts`` and ``stops`` where texts now lie."""
    changed = np.empty(len(codes), dtype=np.uint8)
    letters = np.uint8(26 if fold else 0)
    for i in range(len(codes)):
        code = codes[i]
        # Differences of bytes wrap around, so that one comparison is a range.
        space = (np.uint8(code - np.uint8(0x09)) < np.uint8(5)) | (
            np.uint8(code - np.uint8(0x1C)) < np.uint8(4)
        )
        capital = np.uint8(np.uint8(code - np.uint8(0x41)) < letters)
        changed[i] = _SPACE if space else np.uint8(code | np.uint8(capital << _CASE))
    for text in range(len(starts)):
        start, stop = starts[text], stops[text]
        while start < stop and changed[start] == _SPACE:
            start += 1
        while start < stop and changed[stop - 1] == _SPACE:
            stop -= 1
        starts[text] = start
        stops[text] = start + _squeeze(changed[start:stop])
    return changed


@numba.njit(cache=True, nogil=True)
def _squeeze(text):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Make each run of spaces one, in place; return how long the text is then."""
    if len(text) == 0 or not _has_runs(text):
        return len(text)
    length = 0
    behind_space = False
    for i in range(len(text)):
        text[length] = text[i]
        space = text[i] == _SPACE
        length += not (space and behind_space)
        behind_space = space
    return length


@numba.njit(cache=True, nogil=True)
def _has_runs(text):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    # Most texts have none; this loop knows no exit, so that many bytes are compared at once.
    found = False
    one, other = text[:-1], text[1:]
    for i in range(len(one)):
        found |= (one[i] == _SPACE) & (other[i] == _SPACE)
    return found


# A table's entry says what becomes of a code point. From its low bits on:
# - 21 bits to flip in the code point, or the place among the expansions;
# - 3 bits, its kind;
# - whether it is white space to collapse, and whether it is dropped;
# - 6 bits, its tail: the rank (of its combining class) of the last mark in its canonical
#   decomposition, which for a mark is its own.
# It is 0 for what stays as it is, so that most blocks of a table are one and the same.
_POINT_BITS = 21
_POINT = (1 << _POINT_BITS) - 1
_KIND = 7 << 21
_EXPANDED = 1 << 21
_MARK = 2 << 21
"""Composes with nothing, but has its place among the marks of a letter."""
_COMPOSING = 3 << 21
"""Composes with some of what can stand before it."""
_ODD = 4 << 21
"""The text is left to the plain way."""
_SPACE_BIT = 24
_DROPPED_BIT = 25
_TAIL_BIT = 26
_CLOSED = 63
"""The tail of what no mark may follow, but in the plain way."""
_BLOCK_BITS = 8
_BLOCK = 1 << _BLOCK_BITS
_SHIFT = np.uint32(_BLOCK_BITS)
_WITHIN = np.uint32(_BLOCK - 1)
_KINDS = np.uint32(_KIND)
_POINTS = np.uint32(_POINT)
_DOT_ABOVE = 0x307
_NONE = np.int64(0)
_MOST_MARKS = 30
_ROOM = 32
"""No character becomes more than these."""

# Hangul is composed by arithmetic.
_LEADS, _VOWELS, _TAILS, _SYLLABLES = 0x1100, 0x1161, 0x11A7, 0xAC00
_LEAD_COUNT, _VOWEL_COUNT, _TAIL_COUNT = 19, 21, 28


class Table(NamedTuple):
    """What a change does with each code point.

    Attributes:
        blocks: where the entries of each 256 code points begin.
        entries: see above.
        expansions: of each its length and its code points, white space marked if collapsed.
        pairs: what composes, the first code point above the second, ascending, int64.
        composites: what they become, int64.
    """

    blocks: U32
    entries: U32
    expansions: U32
    pairs: I64
    composites: I64


def rewrite(texts: Sequence[str], table: Table, plain: Callable[[str], str]) -> list[str]:
    """Change texts.

    Args:
        texts: any.
        table: what ``plain`` does, from :func:`make_table`.
        plain: changes what the kernel leaves.
    """
    made: list[str] = []
    for chunk in chunks(texts):
        some = texts[chunk]
        # Twice as quick as Python's codecs; the letter at the end since numpy cuts off NULs.
        codes = np.array("".join([*some, "x"])).reshape(1).view(np.uint32)
        lengths = np.fromiter(map(len, some), dtype=np.int64, count=len(some))
        changed, starts, stops = _rewrite(codes, lengths, *table)
        joined: str = changed.view(f"U{len(changed)}").item()
        made += [
            joined[start:stop] if stop >= 0 else plain(text)
            for text, start, stop in zip(some, starts.tolist(), stops.tolist(), strict=True)
        ]
    return made


@numba.njit(cache=True, nogil=True)
def _rewrite(codes, lengths, blocks, entries, expansions, pairs, composites):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Return the changed code points, and where each text lies in them; -1 where it is odd."""
    table = (blocks, entries, expansions, pairs, composites)
    changed = np.empty(2 * len(codes) + _ROOM, dtype=np.uint32)
    starts = np.empty(len(lengths), dtype=np.int64)
    stops = np.empty(len(lengths), dtype=np.int64)
    start = length = 0
    for text in range(len(lengths)):
        stop = start + lengths[text]
        starts[text] = length
        # What all texts behind need at least stays free.
        room = len(changed) - (len(codes) - stop) - _ROOM
        stops[text] = _rewrite_one(codes, start, stop, table, changed, length, room)
        length = max(length, stops[text])
        start = stop
    changed[length] = 0x78
    return changed[: length + 1], starts, stops


@numba.njit(cache=True, nogil=True)
def _rewrite_one(codes, start, stop, table, changed, begin, room):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, C901, PLR0911, PLR0912, PLR0915
    """Write one text's changed code points; return where they end, or -1."""
    blocks, entries, expansions, pairs, composites = table
    length = begin
    behind_space = 1  # also at the beginning, where white space goes too
    # Where the last character was that belongs to the one before; what can still compose with the
    # next such (0 for nothing) and its tail, or that of the last mark; how many marks now stand at
    # the end, how many of them never compose, and how many such characters came in a row.
    last_join = -1
    base = tail = _NONE
    marks = sortable = run = 0
    i = start - 1
    while True:
        done, length, behind_space = _simple(
            codes[i + 1 : stop], blocks, entries, changed, length, behind_space, room
        )
        i += 1 + done
        if i == stop:
            break
        code = np.int64(codes[i])
        entry = _entry(blocks, entries, code)
        kind = entry & _KIND
        if kind in (0, _ODD) or length >= room:
            return -1
        if kind == _EXPANDED:
            length, behind_space = _expand(
                expansions, entry & _POINT, changed, length, behind_space
            )
            continue
        rank = entry >> _TAIL_BIT
        before = i - 1
        while before >= start and _entry(blocks, entries, codes[before]) >> _DROPPED_BIT & 1:
            before -= 1
        if before < start or before != last_join:
            base = np.int64(codes[before]) if before >= start else _NONE
            tail = _entry(blocks, entries, base) >> _TAIL_BIT if before >= start else _NONE
            marks = sortable = run = 0
        last_join = i
        run += 1
        if tail == _CLOSED or run > _MOST_MARKS:
            return -1
        if kind == _MARK:
            at = length
            if marks and rank < tail:
                if sortable < marks:
                    return -1
                while at > length - marks and rank < (
                    _entry(blocks, entries, changed[at - 1]) >> _TAIL_BIT
                ):
                    changed[at] = changed[at - 1]
                    at -= 1
            else:
                tail = rank
            changed[at] = code
            length += 1
            behind_space = 0
            marks += 1
            sortable += 1
            base = _NONE
            continue
        if before < start:
            base = _NONE
        elif base == 0 or (0 < rank < tail):
            return -1
        composite = _compose(pairs, composites, base, code)
        if composite:
            old = _entry(blocks, entries, base)
            length -= expansions[old & _POINT] if old & _KIND == _EXPANDED else 1
            new = _entry(blocks, entries, composite)
            if new & _KIND == _EXPANDED:
                length, behind_space = _expand(
                    expansions, new & _POINT, changed, length, behind_space
                )
            elif new & _KIND:
                return -1
            else:
                changed[length] = composite ^ (new & _POINT)
                length += 1
            base = composite
            tail = new >> _TAIL_BIT
            continue
        if code == _DOT_ABOVE:
            return -1
        # What the letter has become may compose where the letter does not.
        if base and not _entry(blocks, entries, base) >> _SPACE_BIT & 1:
            became = np.int64(changed[length - 1])
            if became != base:
                if 0 < rank < _entry(blocks, entries, became) >> _TAIL_BIT:
                    return -1
                composite = _compose(pairs, composites, became, code)
                if composite:
                    return -1
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
    return length - (behind_space & (length > begin))


@numba.njit(inline="always")
def _simple(codes, blocks, entries, changed, length, behind_space, room):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Change characters up to one that is not simple; return how many, and where that ends."""
    made = changed[length:room]
    size = 0
    some = codes[: len(made)]
    for i in range(len(some)):
        code = some[i]
        entry = entries[blocks[code >> _SHIFT] + (code & _WITHIN)]
        if entry & _KINDS:
            return i, length + size, behind_space
        space = np.int64((entry >> np.uint32(_SPACE_BIT)) & np.uint32(1))
        dropped = np.int64((entry >> np.uint32(_DROPPED_BIT)) & np.uint32(1))
        made[size] = code ^ (entry & _POINTS)
        size += 1 - (dropped | (space & behind_space))
        behind_space = space | (dropped & behind_space)
    return len(some), length + size, behind_space


@numba.njit(cache=True, nogil=True)
def _entry(blocks, entries, code):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    point = np.int64(code)
    return np.int64(entries[np.int64(blocks[point >> _BLOCK_BITS]) + (point & (_BLOCK - 1))])


@numba.njit(cache=True, nogil=True)
def _expand(expansions, place, changed, length, behind_space):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Write an expansion; return where it ends, and whether that is behind white space."""
    for at in range(place + 1, place + 1 + np.int64(expansions[place])):
        code = np.int64(expansions[at])
        space = (code >> _SPACE_BIT) & 1
        changed[length] = code & _POINT
        length += 1 - (space & behind_space)
        behind_space = space
    return length, behind_space


@numba.njit(cache=True, nogil=True)
def _compose(pairs, composites, first, second):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Return what a pair becomes, 0 if it stays two."""
    vowel, end = second - _VOWELS, second - _TAILS
    if 0 <= vowel < _VOWEL_COUNT:
        lead = first - _LEADS
        found = _SYLLABLES + (lead * _VOWEL_COUNT + vowel) * _TAIL_COUNT
        return found if 0 <= lead < _LEAD_COUNT else 0
    if 0 < end < _TAIL_COUNT:
        syllable = first - _SYLLABLES
        open_ = syllable % _TAIL_COUNT == 0
        inside = 0 <= syllable < _LEAD_COUNT * _VOWEL_COUNT * _TAIL_COUNT
        return first + end if open_ and inside else 0
    pair = (first << _POINT_BITS) | second
    low, high = 0, len(pairs)
    while low < high:
        middle = (low + high) >> 1
        if pairs[middle] < pair:
            low = middle + 1
        else:
            high = middle
    return composites[low] if low < len(pairs) and pairs[low] == pair else 0


def make_table(change: Callable[[str], str], *, composes: bool, collapses: bool) -> Table:
    """Make the table of a change, in a fifth of a second.

    Args:
        change: does with each character what it does with it alone, but for what ``composes``
            says and for a dot above, which may go with the letter before it.
        composes: whether it has NFKC in it, of nothing but what it has dropped.
        collapses: whether white space, of what is changed, is to be collapsed.
    """
    every = [chr(point) for point in range(sys.maxunicode + 1)]
    maker = _Maker(change, every, composes, collapses)
    blocks, entries = [], [0] * _BLOCK
    for first in range(0, len(every), _BLOCK):
        block = every[first : first + _BLOCK]
        made = [] if maker.is_plain(block) else [*map(maker.entry, block)]
        blocks.append(len(entries) if any(made) else 0)
        entries += made if any(made) else []
    keys = sorted(maker.pairs)
    return Table(
        np.array(blocks, dtype=np.uint32),
        np.array(entries, dtype=np.uint32),
        np.array(maker.expansions, dtype=np.uint32),
        np.array([ord(one) << _POINT_BITS | ord(other) for one, other in keys], dtype=np.int64),
        np.array([ord(maker.pairs[key]) for key in keys], dtype=np.int64),
    )


def _pairs(every: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return what two characters compose to, but for Hangul."""
    pairs = {}
    for one in every:
        parts = unicodedata.decomposition(one)
        if " " in parts and parts[0] != "<":
            first, second = (chr(int(part, 16)) for part in parts.split())
            if unicodedata.normalize("NFC", first + second) == one:
                pairs[first, second] = one
    return pairs


class _Maker:
    """Makes the entries of a table."""

    def __init__(
        self, change: Callable[[str], str], every: Sequence[str], composes: bool, collapses: bool
    ) -> None:
        self.expansions: list[int] = []
        self.pairs = _pairs(every) if composes else {}
        composing = {second for _, second in self.pairs}
        if composes:
            composing.update(map(chr, range(_VOWELS, _VOWELS + _VOWEL_COUNT)))
            composing.update(map(chr, range(_TAILS + 1, _TAILS + _TAIL_COUNT)))
        self._change = change
        self._composing = composing
        self._composes = composes
        self._collapses = collapses
        classes = set(map(unicodedata.combining, every))
        self._ranks = {value: rank for rank, value in enumerate(sorted(classes))}

    def is_plain(self, block: Sequence[str]) -> bool:
        """Tell cheaply whether all entries of a block are 0; if unsure, say no."""
        spaced = "x".join(block)  # neighbours could compose
        if self._change(spaced) != spaced or (self._collapses and any(map(str.isspace, block))):
            return False
        return not self._composes or (
            unicodedata.is_normalized("NFKD", spaced)
            and not any(map(unicodedata.combining, block))
            and self._composing.isdisjoint(block)
        )

    def entry(self, one: str) -> int:
        """Return what becomes of a character."""
        changed = self._change(one)
        if not changed:
            return 1 << _DROPPED_BIT
        if not self._composes:
            return _ODD if ord(one) == _DOT_ABOVE else self._written(one, changed)
        if self._joins(one):
            rank = self._ranks[unicodedata.combining(one)]
            if changed != one or unicodedata.normalize("NFKD", one) != one:
                return _ODD
            return rank << _TAIL_BIT | (_COMPOSING if one in self._composing else _MARK)
        if self._joins(changed):
            return _ODD
        if unicodedata.normalize("NFKC", one) == one and not unicodedata.combining(changed[-1]):
            tail = self._ranks[unicodedata.combining(unicodedata.normalize("NFD", one)[-1])]
        else:
            tail = _CLOSED
        return tail << _TAIL_BIT | self._written(one, changed)

    def _joins(self, text: str) -> bool:
        """Tell whether a text may become another behind some text."""
        first = unicodedata.normalize("NFKD", text)[0]
        return unicodedata.combining(first) != 0 or first in self._composing

    def _written(self, one: str, changed: str) -> int:
        points = [self._point(each) for each in changed]
        if len(points) == 1:
            return points[0] ^ ord(one)
        if len(points) >= _ROOM:
            return _ODD
        self.expansions += [len(points), *points]
        return _EXPANDED | (len(self.expansions) - len(points) - 1)

    def _point(self, one: str) -> int:
        """Return a code point as it is written; white space to collapse is marked."""
        return 1 << _SPACE_BIT | 0x20 if self._collapses and one.isspace() else ord(one)
