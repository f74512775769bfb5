"""*Pure.* A delta: the newest documents, in memory, until they become a segment.

An open-addressing hash table maps a column and 40 bits of a key to the newest posting of that key;
a chain leads to the older ones. A cell of the table is 32 bits of hash and 32 of posting + 1.
Postings compare as many bits of a key as segments store. So a verdict does not depend on whether a
document is in a delta or in a segment.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64, U8, U64, Blobs, Strings
from streamdedup.index.memory import address, prefetch
from streamdedup.index.postings import PREFIX_SHIFT
from streamdedup.index.rows import FIELDS, OFFSET, SOURCE, Bools, StoredRows
from streamdedup.kernels import kernel

I32 = NDArray[np.int32]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_TAG = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MOST_LOAD = 0.7
_MOST_BYTES = 64 * 1024**2
"""Bytes of ids and texts above which a delta counts as full."""


class Delta:
    """Documents with ascending numbers from ``first`` on, without gaps.

    A single update with more documents enlarges the capacity. A signature has ``width`` bytes.

    Attributes:
        keys: ``(capacity, columns)`` uint64; the first ``count`` rows are band keys.
    """

    def __init__(self, capacity: int, columns: int, width: int) -> None:
        self.first = 0
        self.count = 0
        self._columns, self._width = columns, width
        self._ids = np.empty(24 * capacity, dtype=np.uint8)
        self._texts = np.empty(0, dtype=np.uint8)
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        bits = max(10, int(np.ceil(np.log2(capacity * self._columns / _MOST_LOAD))))
        self.capacity = capacity
        self._shift = np.uint64(64 - bits)
        self._table = np.zeros(1 << bits, dtype=np.uint64)
        self._chain = np.empty(capacity * self._columns, dtype=np.int32)
        self.keys = np.empty((capacity, self._columns), dtype=np.uint64)
        self._signatures = np.empty((capacity, self._width), dtype=np.uint8)
        self._fields = np.empty((capacity, FIELDS), dtype=np.int64)
        self._id_ends = np.empty(capacity, dtype=np.int64)
        self._text_ends = np.empty(capacity, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, once all of it is touched."""
        return sum(each.nbytes for each in vars(self).values() if isinstance(each, np.ndarray))

    @property
    def end(self) -> int:
        """The number after the last document's."""
        return self.first + self.count

    def has_room(self, documents: int) -> bool:
        """Return whether more documents fit; an empty delta grows to fit any number."""
        if self.count == 0:
            return True
        used = int(self._id_ends[self.count - 1] + self._text_ends[self.count - 1])
        return self.count + documents <= self.capacity and used < _MOST_BYTES

    def clear(self) -> None:
        """Remove all documents."""
        self._table[:] = 0
        self.count = 0
        self._texts = np.empty(0, dtype=np.uint8)

    def add(self, first: int, keys: U64, rows: StoredRows) -> None:
        """Add ``n`` documents from number ``first`` on; their band keys are ``(n, columns)``."""
        count, start = len(rows), self.count
        if start == 0:
            self.first = first
            if count > self.capacity:
                self._allocate(count)
        new = slice(start, start + count)
        self.keys[new] = keys
        self._signatures[new] = rows.signatures
        self._fields[new] = rows.fields
        self._ids = self._append(self._ids, self._id_ends, rows.ids)
        self._texts = self._append(self._texts, self._text_ends, rows.texts)
        table = self._table
        _insert(table, address(table), self._shift, self.keys, self._chain, start, count)
        self.count += count

    def find(self, keys: U64, left: I64, hits: I64, filled: int) -> int:
        """Add the hits of band keys, newest first; see :func:`streamdedup.index.postings.find`."""
        if self.count == 0:
            return filled
        work = np.empty(keys.shape, dtype=np.uint64)
        _first_cells(self._table, self._shift, keys, work)
        own = self._table, self._shift, self.keys, self._chain, self.first
        return _find(*own, keys, work, left, hits, filled)

    def rows(self, indices: I64) -> StoredRows:
        """Return documents by their indices in the delta, ``(n,)``."""
        return StoredRows(
            self._signatures[indices],
            self._fields[indices],
            Strings(*_pick(self._ids, self._id_ends, indices)),
            Blobs(*_pick(self._texts, self._text_ends, indices)),
        )

    def find_positions(self, sources: I64, offsets: I64) -> Bools:
        """Return which positions, ``(n,)``, belong to documents of the delta."""
        fields = self._fields[: self.count]
        held = set(zip(fields[:, SOURCE].tolist(), fields[:, OFFSET].tolist(), strict=True))
        wanted = zip(sources.tolist(), offsets.tolist(), strict=True)
        return np.array([position in held for position in wanted], dtype=np.bool_)

    def _append(self, data: U8, ends: I64, new: Strings | Blobs) -> U8:
        start = int(ends[self.count - 1]) if self.count else 0
        end = start + len(new.data)
        ends[self.count : self.count + len(new)] = start + new.ends
        if end > len(data):
            grown = np.empty(2 * end, dtype=np.uint8)
            grown[:start] = data[:start]
            data = grown
        data[start:end] = new.data
        return data


def _pick(data: U8, ends: I64, indices: I64) -> tuple[U8, I64]:
    """Return the data and the ends of chosen strings; faster than :meth:`Strings.take`."""
    stops = ends[indices]
    starts = np.where(indices > 0, ends[indices - 1], 0)
    new_ends = np.cumsum(stops - starts)
    out = np.empty(int(new_ends[-1]) if len(indices) else 0, dtype=np.uint8)
    _copy(data, starts, stops, out)
    return out, new_ends


@kernel
def _copy(data: U8, starts: I64, stops: I64, out: U8) -> None:
    filled = 0
    for i in range(len(starts)):
        for k in range(starts[i], stops[i]):
            out[filled] = data[k]
            filled += 1


@kernel
def _hash(key: np.uint64, column: int) -> np.uint64:
    h = ((key >> PREFIX_SHIFT) + np.uint64(column + 1) * _ODD) * _MIX
    h ^= h >> _HALF
    return h * _ODD


@kernel
def _insert(
    table: U64, start: int, shift: np.uint64, keys: U64, chain: I32, first: int, count: int
) -> None:
    """Insert the documents ``first`` to ``first + count``, exclusive."""
    columns = keys.shape[1]
    mask = np.uint64(len(table) - 1)
    hashes = np.empty((2, columns), np.uint64)
    for turn in range(first, first + count + 1):
        if turn < first + count:  # request the next document's cells before filling this one's
            for column in range(columns):
                h = _hash(keys[turn, column], column)
                hashes[turn & 1, column] = h
                prefetch(np.int64(start) + 8 * np.int64(h >> shift))
        row = turn - 1
        if row < first:
            continue
        for column in range(columns):
            h = hashes[row & 1, column]
            cell, tag = h >> shift, h & _TAG
            posting = row * columns + column
            chain[posting] = -1
            while table[cell] != np.uint64(0):
                value = table[cell]
                if value >> _HALF == tag:
                    other = np.int64(value & _TAG) - 1
                    same = keys[other // columns, column] ^ keys[row, column]
                    if other % columns == column and same >> PREFIX_SHIFT == np.uint64(0):
                        chain[posting] = other
                        break
                cell = (cell + np.uint64(1)) & mask
            table[cell] = (tag << _HALF) | np.uint64(posting + 1)


@kernel
def _first_cells(table: U64, shift: np.uint64, keys: U64, out: U64) -> None:
    """Read the first cell of every key: without branches, so that cache misses overlap."""
    rows, columns = keys.shape
    for row in range(rows):
        for column in range(columns):
            out[row, column] = table[_hash(keys[row, column], column) >> shift]


@kernel
def _find(
    table: U64,
    shift: np.uint64,
    own_keys: U64,
    chain: I32,
    first: int,
    keys: U64,
    first_cells: U64,
    left: I64,
    hits: I64,
    filled: int,
) -> int:
    rows, columns = keys.shape
    mask = np.uint64(len(table) - 1)
    for row in range(rows):
        for column in range(columns):
            value = first_cells[row, column]
            if value == np.uint64(0):
                continue
            h = _hash(keys[row, column], column)
            cell, tag = h >> shift, h & _TAG
            while value != np.uint64(0):
                if value >> _HALF == tag:
                    posting = np.int64(value & _TAG) - 1
                    same = own_keys[posting // columns, column] ^ keys[row, column]
                    if posting % columns == column and same >> PREFIX_SHIFT == np.uint64(0):
                        while posting >= 0 and left[row, column] > 0:
                            if filled < len(hits):
                                hits[filled, 0] = row
                                hits[filled, 1] = column
                                hits[filled, 2] = first + posting // columns
                            filled += 1
                            left[row, column] -= 1
                            posting = np.int64(chain[posting])
                        break
                cell = (cell + np.uint64(1)) & mask
                value = table[cell]
    return filled
