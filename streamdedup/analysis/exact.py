"""*Pure.* Exact similarity: every pair of texts at or above a Jaccard similarity, without sketches.

The truth that sketches are measured against, over the same shingles. A prefix-filtered set join
(AllPairs, Bayardo et al. 2007; PPJoin, Xiao et al. 2008): shingles are put in one order, rarest
first; two sets that overlap enough share one of the first few shingles of each; and where they meet
tells how much they can overlap at most. Texts with the same set of shingles are joined as one.

A shingle is known by its 64-bit hash: that two of them collide in a corpus of 10^8 is a chance of
one in four thousand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numba
import numpy as np
import xxhash
from numpy.typing import NDArray

from streamdedup.model import I64, U64
from streamdedup.sketch.sets import shingle_sets
from streamdedup.sketch.shingle import Shingling

I32 = NDArray[np.int32]
F64 = NDArray[np.float64]
Progress = Callable[[int, int], None]

NO_SET = -1
"""The set of a text without shingles."""

_SLACK = 1e-9
"""Keeps a bound that is whole but for rounding from being taken for the next number."""
_PROBES = 256
"""Sets that one call of the kernel looks for partners of."""
_COUNT = 1024


class ShingleSets(NamedTuple):
    """The distinct sets of shingles of a corpus, the smallest first.

    Attributes:
        set_of: the set of each text, ``(n,)`` int64, or ``NO_SET``.
        sizes: shingles in each set, ``(sets,)`` int64, ascending.
        offsets: set ``i`` is ``tokens[offsets[i]:offsets[i + 1]]``, ``(sets + 1,)`` int64.
        tokens: the shingles that stand in more than one set, numbered from the rarest on, int32;
            ascending in each set.
        starts: the sets that hold token ``t`` are ``members[starts[t]:starts[t + 1]]``, int64.
        members: int32, ascending for each token.
        places: where the token stands in that set, int32.
    """

    set_of: I64
    sizes: I64
    offsets: I64
    tokens: I32
    starts: I64
    members: I32
    places: I32

    def __len__(self) -> int:
        return len(self.sizes)


class Pairs(NamedTuple):
    """Pairs of sets, and how similar they are: ``first < second``, int64, and float64."""

    first: I64
    second: I64
    jaccard: F64

    def __len__(self) -> int:
        return len(self.first)

    def where(self, mask: NDArray[np.bool_]) -> Pairs:
        """Return some of the pairs."""
        return Pairs(self.first[mask], self.second[mask], self.jaccard[mask])


class TooManyPairs(Exception):  # noqa: N818 - says what was found
    """There are more pairs than are wanted in memory."""


def collect(texts: Sequence[str], namespaces: U64, shingling: Shingling) -> ShingleSets:
    """Gather the distinct sets of shingles of normalised texts.

    Args:
        texts: ``n`` texts.
        namespaces: ``(n,)`` uint64; sets of different namespaces are different sets.
        shingling: what a shingle is.
    """
    known: dict[bytes, int] = {}
    set_of = np.full(len(texts), NO_SET, dtype=np.int64)
    distinct: list[U64] = []
    for at, hashes in enumerate(shingle_sets(texts, shingling)):
        if not len(hashes):
            continue
        seed = int(namespaces[at])
        digest = xxhash.xxh3_128_digest(hashes.tobytes(), seed=seed)
        number = known.setdefault(digest, len(distinct))
        if number == len(distinct):
            distinct.append(hashes)
        set_of[at] = number
    order = np.argsort([len(hashes) for hashes in distinct], kind="stable")
    number_of = np.empty(len(order) + 1, dtype=np.int64)
    number_of[order] = np.arange(len(order))
    number_of[NO_SET] = NO_SET
    return _in_order([distinct[at] for at in order.tolist()], number_of[set_of])


def _in_order(distinct: list[U64], set_of: I64) -> ShingleSets:
    sizes = np.array([len(hashes) for hashes in distinct], dtype=np.int64)
    hashes = np.concatenate([*distinct, np.empty(0, dtype=np.uint64)])
    distinct.clear()
    numbers, counts = _number(hashes)
    shared = np.flatnonzero(counts > 1)
    rank_of = np.full(len(counts), -1, dtype=np.int32)
    rank_of[shared[np.argsort(counts[shared], kind="stable")]] = np.arange(len(shared))
    tokens, offsets = _rank(numbers, rank_of, sizes)
    starts, members, places = _invert(tokens, offsets, len(shared))
    return ShingleSets(set_of, sizes, offsets, tokens, starts, members, places)


def similar_pairs(
    sets: ShingleSets, floor: float, most: int, on_progress: Progress | None = None
) -> Pairs:
    """Find every pair of different sets with at least this Jaccard similarity.

    Args:
        sets: the sets.
        floor: in (0, 1].
        most: pairs that are wanted in memory.
        on_progress: told how many sets are done, and how many there are.

    Raises:
        TooManyPairs: there are more.
    """
    firsts = range(0, len(sets), _PROBES)
    parts = [np.empty((0, 3), dtype=np.int32)]
    count = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        calls = threads.map(lambda first: _join(*_arrays(sets), floor, *_span(sets, first)), firsts)
        for first, part in zip(firsts, calls, strict=True):
            count += len(part)
            if count > most:
                threads.shutdown(wait=True, cancel_futures=True)
                raise TooManyPairs
            parts.append(part)
            if on_progress is not None:
                on_progress(min(first + _PROBES, len(sets)), len(sets))
    found = np.concatenate(parts).astype(np.int64)
    larger, smaller, overlap = found.T
    return Pairs(smaller, larger, overlap / (sets.sizes[smaller] + sets.sizes[larger] - overlap))


def _arrays(sets: ShingleSets) -> tuple[I64, I64, I32, I64, I32, I32]:
    return sets[1:]


def _span(sets: ShingleSets, first: int) -> tuple[int, int]:
    return first, min(first + _PROBES, len(sets))


def jaccards(sets: ShingleSets, first: I64, second: I64) -> F64:
    """Return the Jaccard similarity of each of some pairs of sets."""
    overlap = _overlaps(sets.offsets, sets.tokens, first, second)
    same = first == second
    union = sets.sizes[first] + sets.sizes[second] - overlap
    return np.where(same, 1.0, overlap / union)


@numba.njit(cache=True, nogil=True)
def _number(hashes):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Number the distinct hashes as they come, and count each."""
    capacity = 1 << 16
    slots = np.zeros(capacity, dtype=np.uint64)
    held = np.full(capacity, -1, dtype=np.int32)
    numbers = np.empty(len(hashes), dtype=np.int32)
    counts = np.zeros(1 << 15, dtype=np.int32)
    distinct = 0
    for i in range(len(hashes)):
        slot = _find(slots, held, hashes[i])
        if held[slot] < 0:
            slots[slot] = hashes[i]
            held[slot] = distinct
            distinct += 1
        number = held[slot]
        numbers[i] = number
        counts[number] += 1
        if distinct == len(counts):
            slots, held = _double(slots, held)
            grown = np.zeros(2 * len(counts), dtype=np.int32)
            grown[: len(counts)] = counts
            counts = grown
    return numbers, counts[:distinct]


@numba.njit(cache=True, nogil=True)
def _find(slots, held, value):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    mask = np.uint64(len(slots) - 1)
    slot = value & mask
    while held[slot] >= 0 and slots[slot] != value:
        slot = (slot + np.uint64(1)) & mask
    return slot


@numba.njit(cache=True, nogil=True)
def _double(slots, held):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    wide = np.zeros(2 * len(slots), dtype=np.uint64)
    wide_held = np.full(2 * len(held), -1, dtype=np.int32)
    for i in range(len(slots)):
        if held[i] >= 0:
            slot = _find(wide, wide_held, slots[i])
            wide[slot] = slots[i]
            wide_held[slot] = held[i]
    return wide, wide_held


@numba.njit(cache=True, nogil=True)
def _rank(numbers, rank_of, sizes):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Put ranks for numbers, leave out what has none, and sort each set."""
    tokens = np.empty(len(numbers), dtype=np.int32)
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    read = write = 0
    for i in range(len(sizes)):
        for _ in range(sizes[i]):
            rank = rank_of[numbers[read]]
            read += 1
            if rank >= 0:
                tokens[write] = rank
                write += 1
        tokens[offsets[i] : write] = np.sort(tokens[offsets[i] : write])
        offsets[i + 1] = write
    return tokens[:write].copy(), offsets


@numba.njit(cache=True, nogil=True)
def _invert(tokens, offsets, distinct):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    starts = np.zeros(distinct + 1, dtype=np.int64)
    for token in tokens:
        starts[token + 1] += 1
    starts = np.cumsum(starts)
    ends = starts[:-1].copy()
    members = np.empty(len(tokens), dtype=np.int32)
    places = np.empty(len(tokens), dtype=np.int32)
    for i in range(len(offsets) - 1):
        for at in range(offsets[i], offsets[i + 1]):
            end = ends[tokens[at]]
            members[end] = i
            places[end] = at - offsets[i]
            ends[tokens[at]] = end + 1
    return starts, members, places


@numba.njit(cache=True, nogil=True)
def _join(sizes, offsets, tokens, starts, members, places, floor, first, last):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, PLR0913, PLR0917
    """Find the smaller partners of the sets ``first`` to ``last``: rows of x, y, overlap."""
    found = np.empty((_COUNT, 3), dtype=np.int32)
    count = 0
    met = np.zeros(last, dtype=np.int32)
    from_x = np.empty(last, dtype=np.int32)
    from_y = np.empty(last, dtype=np.int32)
    touched = np.empty(last, dtype=np.int32)
    scratch = (met, from_x, from_y, touched)
    for x in range(first, last):
        touched_count = _probe(sizes, offsets, tokens, starts, members, places, floor, x, scratch)
        for at in range(touched_count):
            y = touched[at]
            if met[y] > 0:
                need = _need(sizes, floor, x, y)
                overlap = _merge(offsets, tokens, x, y, from_x[y], from_y[y], need)
                if overlap / (sizes[x] + sizes[y] - overlap) >= floor:
                    if count == len(found):
                        grown = np.empty((2 * count, 3), dtype=np.int32)
                        grown[:count] = found
                        found = grown
                    found[count, 0] = x
                    found[count, 1] = y
                    found[count, 2] = overlap
                    count += 1
            met[y] = 0
    return found[:count].copy()


@numba.njit(cache=True, nogil=True)
def _probe(sizes, offsets, tokens, starts, members, places, floor, x, scratch):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, PLR0913, PLR0917
    """Find the smaller sets that share a rare shingle with ``x`` and can overlap it enough.

    ``scratch`` is ``met, from_x, from_y, touched``: for each set how many shared shingles were
    seen, or -1 where the rest cannot be enough; the places of the first; and which sets these are.
    """
    met, from_x, from_y, touched = scratch
    begin = offsets[x]
    length = offsets[x + 1] - begin
    least = np.int64(np.ceil(floor * sizes[x] - _SLACK))
    # The shingles that are in no other set are the rarest, and stand first though they are left
    # out: the prefix to look at is shorter by as many.
    prefix = min(length, sizes[x] - least + 1 - (sizes[x] - length))
    lowest = np.searchsorted(sizes[:x], least)
    touched_count = 0
    for i in range(prefix):
        token = tokens[begin + i]
        start, stop = starts[token], starts[token + 1]
        at = start + np.searchsorted(members[start:stop], lowest)
        while at < stop and members[at] < x:
            y = members[at]
            j = places[at]
            at += 1
            seen = met[y]
            if seen < 0:
                continue
            if seen == 0:
                touched[touched_count] = y
                touched_count += 1
                from_x[y] = i
                from_y[y] = j
            rest = min(length - i, offsets[y + 1] - offsets[y] - j)
            met[y] = seen + 1 if seen + rest >= _need(sizes, floor, x, y) else -1
    return touched_count


@numba.njit(cache=True, nogil=True)
def _need(sizes, floor, x, y):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    return np.int64(np.ceil(floor / (1.0 + floor) * (sizes[x] + sizes[y]) - _SLACK))


@numba.njit(cache=True, nogil=True)
def _merge(offsets, tokens, x, y, i, j, need):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Count the common shingles from two places on; stop where they cannot be enough."""
    i += offsets[x]
    j += offsets[y]
    end_i, end_j = offsets[x + 1], offsets[y + 1]
    overlap = 0
    while i < end_i and j < end_j:
        if overlap + min(end_i - i, end_j - j) < need:
            break
        if tokens[i] == tokens[j]:
            overlap += 1
            i += 1
            j += 1
        elif tokens[i] < tokens[j]:
            i += 1
        else:
            j += 1
    return overlap


@numba.njit(cache=True, nogil=True)
def _overlaps(offsets, tokens, first, second):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    overlaps = np.empty(len(first), dtype=np.int64)
    for at in range(len(first)):
        overlaps[at] = _merge(offsets, tokens, first[at], second[at], 0, 0, 0)
    return overlaps
