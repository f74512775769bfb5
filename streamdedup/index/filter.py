"""*Pure.* The filter in front of the segments: one look-up answers for eight of them.

A blocked Bloom filter (Putze, Sanders, Singler 2007, "Cache-, Hash- and Space-Efficient Bloom
Filters") whose cells hold a byte instead of a bit: one bit for each of eight *slots*. A key has
four cells in one cache line, so a single miss answers for eight segments at once. The line follows
from the key's upper bits: sorted postings fill the filter from front to back.

Bits are only ever set while a slot is in use. One thread sets and clears them. Reading meanwhile is
harmless: a segment is not looked up before all of its bits are set.
"""

from __future__ import annotations

import numpy as np

from streamdedup.columns import U8, U64
from streamdedup.index.memory import LINE, address, prefetch
from streamdedup.index.postings import PREFIX_SHIFT
from streamdedup.kernels import kernel

SLOTS = 8
"""Slots of a bank of filters: the bits of a byte."""

_HALF_BITS = np.uint64(20)
_HALF_MASK = np.uint64((1 << 20) - 1)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_IN_LINE = np.uint64(63)
_LOW_BITS = 0x0101010101010101
_GATHER = np.uint64(0x0102040810204080)
_SPREAD: U64 = (
    ((np.arange(256)[:, None] >> np.arange(8)) & 1).astype(np.uint8).view(np.uint64).ravel()
)
"""A byte's bits as the lowest bits of eight bytes."""


class Bank:
    """Eight filters that share their cache lines; one slot has a capacity of some documents.

    More documents raise its error rate. With 11 bytes for each key of a slot, about 1.5 % of absent
    keys seem present; with 16, about 0.5 %.

    Attributes:
        address: address of the first of the ``cells``.
        lines: cache lines of a column.
        plane_bytes: bytes of one slot's bits in one column.
    """

    def __init__(self, columns: int, documents: int, cells_per_key: int) -> None:
        self.columns = columns
        self.lines = -(-documents * cells_per_key // LINE)
        size = columns * self.lines * LINE
        raw = np.zeros(size + LINE, dtype=np.uint8)  # untouched pages take no memory
        begin = -address(raw) % LINE  # a line of cells is a cache line
        self.cells = raw[begin : begin + size]
        self.address = address(self.cells)
        self.plane_bytes = self.lines * LINE // 8

    def add(self, postings: U64, column: int, slot: int) -> None:
        """Set a slot's bits for sorted postings, whose upper 40 bits are the key's."""
        _add(self._column(column), postings, self.lines, np.uint8(1 << slot))

    def clear(self, column: int, slot: int) -> None:
        """Remove all keys of a column from a slot."""
        words = self._column(column).view(np.uint64)
        words &= np.uint64(~(_LOW_BITS << slot) & (2**64 - 1))

    def plane(self, column: int, slot: int) -> U8:
        """Return one slot's bits of a column, ``(plane_bytes,)``."""
        packed = np.empty(self.plane_bytes, dtype=np.uint8)
        _pack(self._column(column).view(np.uint64), np.uint64(slot), packed)
        return packed

    def add_plane(self, plane: U8, column: int, slot: int) -> None:
        """Set the bits that :meth:`plane` returned."""
        _unpack(self._column(column).view(np.uint64), np.uint64(slot), plane, _SPREAD)

    def has_all(self, postings: U64, column: int, slot: int) -> bool:
        """Return whether all of some postings seem present; for the checker."""
        cells, found = self._column(column), np.zeros((len(postings), 1), dtype=np.uint64)
        slots_of(cells, address(cells), self.lines, 0, postings[:, None], found)
        return bool((found & np.uint64(1 << slot)).all())

    def _column(self, column: int) -> U8:
        size = self.lines * LINE
        return self.cells[column * size : (column + 1) * size]


@kernel
def _line_of(key: np.uint64, lines: int) -> tuple[np.int64, np.uint64]:
    """Return the first cell of a key's line, and the hash whose upper 24 bits choose in it."""
    prefix = key >> PREFIX_SHIFT
    # prefix * lines / 2^40 in two steps: from 2^24 lines on, the product has more than 64 bits.
    high, low = prefix >> _HALF_BITS, prefix & _HALF_MASK
    line = np.int64(
        (high * np.uint64(lines) + ((low * np.uint64(lines)) >> _HALF_BITS)) >> _HALF_BITS
    )
    return line * LINE, prefix * _ODD


@kernel
def _cells_of(line: np.int64, h: np.uint64) -> tuple[np.int64, np.int64, np.int64, np.int64]:
    """Return the four cells of a key."""
    return (
        line + np.int64(h >> np.uint64(58)),
        line + np.int64((h >> np.uint64(52)) & _IN_LINE),
        line + np.int64((h >> np.uint64(46)) & _IN_LINE),
        line + np.int64((h >> np.uint64(40)) & _IN_LINE),
    )


@kernel
def _add(cells: U8, postings: U64, lines: int, bit: np.uint8) -> None:
    for i in range(len(postings)):
        line, h = _line_of(postings[i], lines)
        a, b, c, d = _cells_of(line, h)
        cells[a] |= bit
        cells[b] |= bit
        cells[c] |= bit
        cells[d] |= bit


@kernel
def slots_of(cells: U8, start: int, lines: int, shift: int, keys: U64, out: U64) -> None:
    """Add to ``out`` the slots that may hold each key, as bits from ``shift`` on.

    ``start`` is the address of the first of all cells of a bank, whose columns have ``lines`` cache
    lines. The keys and ``out`` are ``(n, columns)`` uint64.
    """
    rows, columns = keys.shape
    begins = np.empty((2, columns), np.int64)
    hashes = np.empty((2, columns), np.uint64)
    for row in range(rows + 1):
        if row < rows:  # request the next row's lines before reading this row's
            for column in range(columns):
                line, h = _line_of(keys[row, column], lines)
                line += column * lines * LINE
                begins[row & 1, column], hashes[row & 1, column] = line, h
                prefetch(np.int64(start) + line)
        if row > 0:
            for column in range(columns):
                line, h = begins[(row - 1) & 1, column], hashes[(row - 1) & 1, column]
                a, b, c, d = _cells_of(line, h)
                slots = np.uint64(cells[a] & cells[b] & cells[c] & cells[d])
                out[row - 1, column] |= slots << np.uint64(shift)


@kernel
def _pack(words: U64, slot: np.uint64, out: U8) -> None:
    for i in range(len(out)):  # the multiplication gathers eight lowest bits in the upper byte
        low = (words[i] >> slot) & np.uint64(_LOW_BITS)
        out[i] = np.uint8((low * _GATHER) >> np.uint64(56))


@kernel
def _unpack(words: U64, slot: np.uint64, plane: U8, spread: U64) -> None:
    for i in range(len(plane)):
        words[i] |= spread[plane[i]] << slot
