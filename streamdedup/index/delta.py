"""*Pure.* A delta: the newest documents, in memory, until they become a segment.

A table of open addressing leads from a column and 40 bits of a key to the newest posting of that
key; older ones follow by a chain. A slot of the table is 32 bits of hash and 32 of posting + 1.
The postings compare as many bits of a key as segments store, so that it makes no difference to a
verdict which of the two a document is in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamdedup.index.blocks import EFFECTIVE_TIME, FIELDS, OFFSET, SOURCE, Bools, Rows
from streamdedup.index.memory import address, prefetch
from streamdedup.kernels import kernel
from streamdedup.model import I64, U8, U64

I32 = NDArray[np.int32]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_TAG = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_PREFIX_SHIFT = np.uint64(24)
_MOST_LOAD = 0.7
_MOST_BYTES = 64 * 1024**2
"""Of ids and texts."""


class Delta:
    """Documents with ascending numbers, without gaps.

    Args:
        capacity: most documents.
        columns: columns of the band keys.
        width: bytes of a signature.
    """

    def __init__(self, capacity: int, columns: int, width: int) -> None:
        self.first = 0
        self.count = 0
        self._columns, self._width = columns, width
        self._allocate(capacity)
        self._ids = np.empty(24 * capacity, dtype=np.uint8)
        self._texts = np.empty(0, dtype=np.uint8)

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
        arrays = (
            *(self._table, self._chain, self.keys, self._signatures, self._fields),
            *(self._id_ends, self._text_ends, self._ids, self._texts),
        )
        return sum(array.nbytes for array in arrays)

    @property
    def end(self) -> int:
        """The number after the last document's."""
        return self.first + self.count

    def has_room(self, documents: int) -> bool:
        """Whether so many more documents may come; an empty delta makes room for any number."""
        if self.count == 0:
            return True
        used = self._end(self._id_ends, self.count) + self._end(self._text_ends, self.count)
        return self.count + documents <= self.capacity and used < _MOST_BYTES

    def clear(self) -> None:
        """Forget all documents."""
        self._table[:] = 0
        self.count = 0
        self._texts = np.empty(0, dtype=np.uint8)

    def add(self, first: int, keys: U64, rows: Rows) -> None:
        """Take documents in.

        Args:
            first: number of the first of them.
            keys: ``(n, columns)`` band keys.
            rows: everything else.
        """
        count, at = len(rows), self.count
        if at == 0:
            self.first = first
            if count > self.capacity:
                self._allocate(count)
        there = slice(at, at + count)
        self.keys[there] = keys
        self._signatures[there] = rows.signatures
        self._fields[there] = rows.fields
        self._ids = self._append(self._ids, self._id_ends, rows.ids, rows.id_ends)
        self._texts = self._append(self._texts, self._text_ends, rows.texts, rows.text_ends)
        _insert(self._table, address(self._table), self._shift, self.keys, self._chain, at, count)
        self.count += count

    def find(self, keys: U64, size: int, counts: U64, hits: I64, filled: int) -> int:
        """Add the hits of band keys, newest first; see :func:`streamdedup.index.postings.find`."""
        if self.count == 0:
            return filled
        work = np.empty(keys.shape, dtype=np.uint64)
        _slots(self._table, self._shift, keys, work)
        return _find(
            self._table,
            self._shift,
            self.keys,
            self._chain,
            self.first,
            keys,
            work,
            size,
            counts,
            hits,
            filled,
        )

    def rows(self, places: I64) -> Rows:
        """Return the documents at some places, ``(n,)``."""
        id_ends, ids = _pick(self._id_ends, self._ids, places)
        text_ends, texts = _pick(self._text_ends, self._texts, places)
        return Rows(self._signatures[places], self._fields[places], id_ends, ids, text_ends, texts)

    def positions_found(self, sources: I64, offsets: I64) -> Bools:
        """Tell which positions, ``(n,)``, are those of documents here."""
        mine = self._fields[: self.count]
        held = set(zip(mine[:, SOURCE].tolist(), mine[:, OFFSET].tolist(), strict=True))
        wanted = zip(sources.tolist(), offsets.tolist(), strict=True)
        return np.array([position in held for position in wanted], dtype=np.bool_)

    def effective_times(self) -> I64:
        """Return the effective times of all documents, ``(count,)``."""
        return self._fields[: self.count, EFFECTIVE_TIME]

    def _end(self, ends: I64, place: int) -> int:
        return int(ends[place - 1]) if place else 0

    def _append(self, data: U8, ends: I64, new: U8, new_ends: I64) -> U8:
        start = self._end(ends, self.count)
        ends[self.count : self.count + len(new_ends)] = start + new_ends
        if start + len(new) > len(data):
            grown = np.empty(2 * (start + len(new)), dtype=np.uint8)
            grown[:start] = data[:start]
            data = grown
        data[start : start + len(new)] = new
        return data


def _pick(ends: I64, data: U8, places: I64) -> tuple[I64, U8]:
    stops = ends[places]
    starts = np.where(places > 0, ends[places - 1], 0)
    new_ends = np.cumsum(stops - starts)
    out = np.empty(int(new_ends[-1]) if len(places) else 0, dtype=np.uint8)
    _copy(data, starts, stops, out)
    return new_ends, out


@kernel
def _copy(data: U8, starts: I64, stops: I64, out: U8) -> None:
    filled = 0
    for i in range(len(starts)):
        for k in range(starts[i], stops[i]):
            out[filled] = data[k]
            filled += 1


@kernel
def _hash(key: np.uint64, column: int) -> np.uint64:
    h = ((key >> _PREFIX_SHIFT) + np.uint64(column + 1) * _ODD) * _MIX
    h ^= h >> _HALF
    return h * _ODD


@kernel
def _insert(
    table: U64, start: int, shift: np.uint64, keys: U64, chain: I32, first: int, count: int
) -> None:
    """File the documents at the places ``first`` up to ``first + count``."""
    columns = keys.shape[1]
    mask = np.uint64(len(table) - 1)
    hashes = np.empty((2, columns), np.uint64)
    for turn in range(first, first + count + 1):
        if turn < first + count:  # ask for the next document's slots before filling this one's
            for column in range(columns):
                h = _hash(keys[turn, column], column)
                hashes[turn & 1, column] = h
                prefetch(np.int64(start) + 8 * np.int64(h >> shift))
        row = turn - 1
        if row < first:
            continue
        for column in range(columns):
            h = hashes[row & 1, column]
            at, tag = h >> shift, h & _TAG
            posting = row * columns + column
            chain[posting] = -1
            while table[at] != np.uint64(0):
                slot = table[at]
                if slot >> _HALF == tag:
                    other = np.int64(slot & _TAG) - 1
                    same = keys[other // columns, column] ^ keys[row, column]
                    if other % columns == column and same >> _PREFIX_SHIFT == np.uint64(0):
                        chain[posting] = other
                        break
                at = (at + np.uint64(1)) & mask
            table[at] = (tag << _HALF) | np.uint64(posting + 1)


@kernel
def _slots(table: U64, shift: np.uint64, keys: U64, out: U64) -> None:
    """Read the first slot of every key: without branches, so that the cache's misses overlap."""
    rows, columns = keys.shape
    for row in range(rows):
        for column in range(columns):
            out[row, column] = table[_hash(keys[row, column], column) >> shift]


@kernel
def _find(  # noqa: PLR0913, PLR0917 - a kernel knows no objects
    table: U64,
    shift: np.uint64,
    own_keys: U64,
    chain: I32,
    first: int,
    keys: U64,
    slots: U64,
    size: int,
    counts: U64,
    hits: I64,
    filled: int,
) -> int:
    rows, columns = keys.shape
    mask = np.uint64(len(table) - 1)
    for row in range(rows):
        for column in range(columns):
            slot = slots[row, column]
            if slot == np.uint64(0):
                continue
            h = _hash(keys[row, column], column)
            at, tag = h >> shift, h & _TAG
            while slot != np.uint64(0):
                if slot >> _HALF == tag:
                    posting = np.int64(slot & _TAG) - 1
                    same = own_keys[posting // columns, column] ^ keys[row, column]
                    if posting % columns == column and same >> _PREFIX_SHIFT == np.uint64(0):
                        while posting >= 0 and counts[row, column] < np.uint64(size):
                            if filled < len(hits):
                                hits[filled, 0] = row
                                hits[filled, 1] = column
                                hits[filled, 2] = first + posting // columns
                            filled += 1
                            counts[row, column] += np.uint64(1)
                            posting = np.int64(chain[posting])
                        break
                at = (at + np.uint64(1)) & mask
                slot = table[at]
    return filled
