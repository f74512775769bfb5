"""*Pure.* Postings: how they are sorted, packed into values and looked up.

A posting is a uint64: the upper 40 bits of the band key, then 24 bits of the document's number
within its segment. Keys are hashes, so the first of two sorting steps (by the upper 8 bits) gives
256 *subs* of similar size, and the second works within the cache. A packed sub has 7 bytes a
posting: 32 bits of each key, in order, and then 24 bits of each number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamdedup.columns import I64, U8, U64
from streamdedup.dedup.judge import IGNORED_KEY_BITS
from streamdedup.index.memory import load8, load16, load32, prefetch
from streamdedup.kernels import kernel

SUBS = 256
"""Parts of a column, by the upper 8 bits of the key."""
KEYS, NUMBERS, COUNT = 0, 1, 2
"""Parts of a sub's table entry: the addresses of its keys and of its numbers, and their count."""
SLOT, FIRST, DOCUMENTS = 0, 1, 2
"""Parts of a segment's table entry: its filter slot, its first document's number, their count."""
PREFIX_SHIFT = IGNORED_KEY_BITS
"""A posting holds the bits of a key above these."""
NUMBER_MASK = np.uint64((1 << 24) - 1)
"""The bits of a posting that hold the document's number."""

_LOW_32 = np.uint64((1 << 32) - 1)
_SUB_SHIFT = np.uint64(56)
_MOST_BITS = 13
_NEAR = 64
"""Postings between the guess of a search and its result, or fewer, in most searches."""
_AHEAD = 6
"""Documents between the prefetch of their memory and its use."""


@kernel
def sort_column(
    keys: U64, column: int, count: int, bucket_size: int, work: U64, out: U64, starts: I64
) -> int:
    """Make the sorted postings of one column of the first ``count`` documents; return their number.

    The band keys are ``(n, columns)``; the row of a document is its number. Each key keeps its
    newest postings, up to the bucket size. ``work`` and ``out`` are ``(count,)``: scratch, and the
    postings. ``starts`` is ``(257,)``: the start of each sub in ``out``, and the end.
    """
    begins = np.zeros(SUBS + 1, np.int64)
    for row in range(count):
        begins[np.int64(keys[row, column] >> _SUB_SHIFT) + 1] += 1
    for sub in range(SUBS):
        begins[sub + 1] += begins[sub]
    ends = begins[:SUBS].copy()
    for row in range(count):
        key = keys[row, column]
        sub_of_key = np.int64(key >> _SUB_SHIFT)
        work[ends[sub_of_key]] = (key & ~NUMBER_MASK) | np.uint64(row)
        ends[sub_of_key] += 1
    filled = 0
    starts[0] = 0
    for sub in range(SUBS):
        filled = _sort_sub(work[begins[sub] : begins[sub + 1]], bucket_size, out, filled)
        starts[sub + 1] = filled
    return filled


@kernel
def merge_column(subs: I64, shifts: I64, bucket_size: int, work: U64, out: U64, starts: I64) -> int:
    """Make the sorted postings of one column of several segments, as :func:`sort_column` does.

    ``subs`` is ``(segments, 256, 3)`` int64, oldest first; see :data:`KEYS`. The ``shifts``,
    ``(segments,)`` int64, are added to the numbers of each segment. ``work`` is as long as the
    largest sub, summed over all segments.
    """
    filled = 0
    starts[0] = 0
    for sub in range(SUBS):
        count = 0
        for segment in range(len(subs)):
            count = _unpack(subs[segment, sub], sub, shifts[segment], work, count)
        filled = _sort_sub(work[:count], bucket_size, out, filled)
        starts[sub + 1] = filled
    return filled


@kernel
def unpack_column(subs: I64, out: U64) -> int:
    """Write the sorted postings of one segment's column to ``out``, and return their number.

    ``subs`` is ``(256, 3)`` int64; see :data:`KEYS`. ``out`` has room for all documents.
    """
    filled = 0
    for sub in range(SUBS):
        filled = _unpack(subs[sub], sub, 0, out, filled)
    return filled


@kernel
def pack(postings: U64, out: U8) -> None:
    """Write sorted postings as a value: 4 bytes of each key, then 3 of each number."""
    count = len(postings)
    for i in range(count):
        key = (postings[i] >> PREFIX_SHIFT) & _LOW_32
        number = postings[i] & NUMBER_MASK
        for byte in range(4):
            out[4 * i + byte] = (key >> np.uint64(8 * byte)) & np.uint64(255)
        for byte in range(3):
            out[4 * count + 3 * i + byte] = (number >> np.uint64(8 * byte)) & np.uint64(255)


@kernel
def find(
    keys: U64, masks: U64, segments: I64, subs: I64, left: I64, hits: I64, filled: int, looks: I64
) -> int:
    """Look up the keys that a filter lets through: newest segment first, newest number first.

    It is long because a kernel takes arrays instead of objects, and prefetches between the steps.
    Returns the number of hits, including ``filled``.

    Args:
        keys: ``(n, columns)`` band keys.
        masks: ``(n, columns)`` the slots that may hold each key, as bits.
        segments: ``(segments, 3)`` int64, newest segment first; see :data:`SLOT`.
        subs: ``(segments, columns * 256, 3)`` int64; see :data:`KEYS`.
        left: ``(n, columns)`` int64: how many hits each key may still have.
        hits: ``(m, 3)`` row, column, number; beyond ``m`` they are only counted.
        filled: the number of hits so far.
        looks: ``(3,)`` counts look-ups, those that found something, and postings that are damaged:
            they lead beyond their segment.
    """
    rows, columns = keys.shape
    for turn in range(rows + _AHEAD):
        if turn < rows:
            _request(keys[turn], masks[turn], segments, subs)
        row = turn - _AHEAD
        if row < 0:
            continue
        for column in range(columns):
            mask = masks[row, column]
            if mask == np.uint64(0):
                continue
            key = keys[row, column]
            sub = column * SUBS + np.int64(key >> _SUB_SHIFT)
            low = np.int64((key >> PREFIX_SHIFT) & _LOW_32)
            for segment in range(len(segments)):
                if left[row, column] == 0:
                    break
                if not _has_slot(mask, segments[segment, SLOT]):
                    continue
                looks[0] += 1
                entry = subs[segment, sub]
                first, stop = _run(entry, low)
                looks[1] += stop > first
                for i in range(stop - 1, first - 1, -1):
                    if left[row, column] == 0:
                        break
                    number = _number(entry[NUMBERS] + 3 * i)
                    if number >= segments[segment, DOCUMENTS]:
                        looks[2] += 1
                        continue
                    if filled < len(hits):
                        hits[filled, 0], hits[filled, 1] = row, column
                        hits[filled, 2] = segments[segment, FIRST] + number
                    filled += 1
                    left[row, column] -= 1
    return filled


@kernel(inline="always")
def _has_slot(mask: np.uint64, slot: int) -> Any:
    return (mask >> np.uint64(slot)) & np.uint64(1) != np.uint64(0)


@kernel
def _request(keys: U64, masks: U64, segments: I64, subs: I64) -> None:
    """Prefetch the lines in which the searches of one document begin."""
    for column in range(len(keys)):
        mask = masks[column]
        if mask == np.uint64(0):
            continue
        key = keys[column]
        sub = column * SUBS + np.int64(key >> _SUB_SHIFT)
        low = np.int64((key >> PREFIX_SHIFT) & _LOW_32)
        for segment in range(len(segments)):
            if _has_slot(mask, segments[segment, SLOT]):
                guess = subs[segment, sub, KEYS] + 4 * ((low * subs[segment, sub, COUNT]) >> 32)
                prefetch(guess)
                prefetch(guess - 64)
                prefetch(guess + 64)


@kernel
def addresses_of(keys: U64, masks: U64, segments: I64, subs: I64, out: I64) -> int:
    """Write the addresses that :func:`find` will most likely read, as far as there is room.

    They are those of keys and of numbers; ``out`` is ``(m,)``. Returns the number of addresses.
    """
    filled = 0
    rows, columns = keys.shape
    for row in range(rows):
        for column in range(columns):
            mask = masks[row, column]
            if mask == np.uint64(0):
                continue
            key = keys[row, column]
            sub = column * SUBS + np.int64(key >> _SUB_SHIFT)
            low = np.int64((key >> PREFIX_SHIFT) & _LOW_32)
            for segment in range(len(segments)):
                if not _has_slot(mask, segments[segment, SLOT]):
                    continue
                entry = subs[segment, sub]
                if entry[COUNT] == 0 or filled + 4 > len(out):
                    continue
                guess = (low * entry[COUNT]) >> 32
                first, last = max(guess - _NEAR, 0), min(guess + _NEAR, entry[COUNT] - 1)
                out[filled], out[filled + 1] = entry[KEYS] + 4 * first, entry[KEYS] + 4 * last
                out[filled + 2] = entry[NUMBERS] + 3 * first
                out[filled + 3] = entry[NUMBERS] + 3 * last
                filled += 4
    return filled


@kernel
def _run(entry: I64, key: Any) -> tuple[Any, Any]:
    """Return the range of a key's postings in a sub."""
    count, base = entry[COUNT], entry[KEYS]
    first = _search(base, count, key)
    stop = first
    while stop < count and np.int64(load32(base + 4 * stop)) == key:
        stop += 1
    return first, stop


@kernel
def _search(base: int, count: int, key: Any) -> Any:
    """Return the first index >= key among sorted, uniform uint32: guess, gallop, bisect."""
    if count == 0:
        return 0
    guess = (key * count) >> 32
    step = 8
    if np.int64(load32(base + 4 * guess)) < key:
        low, high = guess + 1, guess + step
        while high < count and np.int64(load32(base + 4 * high)) < key:
            low, step = high + 1, step * 2
            high += step
        high = min(high, count)
    else:
        high, low = guess, guess - step
        while low >= 0 and np.int64(load32(base + 4 * low)) >= key:
            high, step = low, step * 2
            low -= step
        low = max(low + 1, 0)
    while low < high:
        middle = (low + high) >> 1
        if np.int64(load32(base + 4 * middle)) < key:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _number(start: int) -> Any:
    return np.int64(load16(start)) | np.int64(load8(start + 2)) << 16


@kernel
def _unpack(entry: I64, sub: int, shift: int, out: U64, filled: int) -> int:
    upper = np.uint64(sub) << _SUB_SHIFT
    for i in range(entry[COUNT]):
        key = np.uint64(load32(entry[KEYS] + 4 * i)) << PREFIX_SHIFT
        out[filled] = upper | key | np.uint64(_number(entry[NUMBERS] + 3 * i) + shift)
        filled += 1
    return filled


@kernel
def _sort_sub(postings: U64, bucket_size: int, out: U64, filled: int) -> Any:
    """Sort the postings of a sub into ``out``; each key keeps its newest numbers."""
    count = len(postings)
    bits = 0
    while bits < _MOST_BITS and (2 << bits) <= count:
        bits += 1
    shift = np.uint64(56 - bits)
    mask = np.uint64((1 << bits) - 1)
    ends = np.zeros((1 << bits) + 1, np.int64)
    for i in range(count):
        ends[np.int64((postings[i] >> shift) & mask) + 1] += 1
    for i in range(1 << bits):
        ends[i + 1] += ends[i]
    for i in range(count):
        part = np.int64((postings[i] >> shift) & mask)
        out[filled + ends[part]] = postings[i]
        ends[part] += 1
    # About one posting a part, so an insertion sort has little left to do.
    for i in range(filled + 1, filled + count):
        posting = out[i]
        gap = i - 1
        while gap >= filled and out[gap] > posting:
            out[gap + 1] = out[gap]
            gap -= 1
        out[gap + 1] = posting
    kept = filled
    for i in range(filled, filled + count):
        later = i + bucket_size
        if later < filled + count and out[later] >> PREFIX_SHIFT == out[i] >> PREFIX_SHIFT:
            continue
        out[kept] = out[i]
        kept += 1
    return kept
