"""*Pure.* The distinct shingle sets of a corpus, pairs of them, and their exact join.

A shingle is represented by its 64-bit hash. The probability that two shingles of a corpus of 10^8
collide is one in four thousand.

The join uses no sketches. It is prefix-filtered (AllPairs, Bayardo et al. 2007; PPJoin, Xiao et al.
2008). Tokens are ordered from the rarest on. Two sets with a large enough overlap share a token
among the first few of each. The positions of that token bound the overlap from above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamdedup.columns import F64, I64, U64
from streamdedup.kernels import kernel
from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.texts import shingle_sets

I32 = NDArray[np.int32]

NO_SET = -1
"""The set number of a text without shingles."""
MOST_PAIRS = 200_000_000
"""Pairs of different sets that an evaluation accepts."""
_SLACK = 1e-9
"""Subtracted before rounding up, so that a rounding error does not raise a whole bound by one."""
_INITIAL_PAIRS = 1024  # pairs that the result has room for at first; it doubles when it is full


class ShingleSets(NamedTuple):
    """The distinct shingle sets of a corpus, numbered in ascending order of size.

    A *token* is a shingle that occurs in more than one set. Tokens are numbered from the rarest to
    the most frequent. Set ``i`` has ``tokens[offsets[i]:offsets[i + 1]]``; token ``t`` is in the
    sets ``members[starts[t]:starts[t + 1]]``.
    """

    set_of: I64  # (texts,), the set of each text, or NO_SET
    sizes: I64  # (sets,), the number of shingles of each set, ascending
    offsets: I64  # (sets + 1,)
    tokens: I32  # ascending within each set
    starts: I64  # (tokens + 1,)
    members: I32  # set numbers, ascending within each token
    indices: I32  # of the token within that set, for each entry of members

    def __len__(self) -> int:
        return len(self.sizes)


def collect(texts: Sequence[str], namespaces: U64, shingling: Shingling) -> ShingleSets:
    """Collect the distinct shingle sets of ``n`` normalised texts.

    Sets of different ``namespaces``, ``(n,)`` uint64, are different sets.
    """
    number_of_digest: dict[bytes, int] = {}
    set_of = np.full(len(texts), NO_SET, dtype=np.int64)
    distinct: list[U64] = []
    for text, hashes in enumerate(shingle_sets(texts, shingling)):
        if not len(hashes):
            continue
        digest = xxhash.xxh3_128_digest(hashes.tobytes(), seed=int(namespaces[text]))
        number = number_of_digest.setdefault(digest, len(distinct))
        if number == len(distinct):
            distinct.append(hashes)
        set_of[text] = number
    by_size = np.argsort([len(hashes) for hashes in distinct], kind="stable")
    rank_of = np.argsort(by_size)
    has_set = set_of != NO_SET
    set_of[has_set] = rank_of[set_of[has_set]]
    return _index([distinct[number] for number in by_size.tolist()], set_of)


def _index(distinct: list[U64], set_of: I64) -> ShingleSets:
    """Number the tokens and build the inverted index; empties ``distinct`` to free memory."""
    sizes = np.array([len(hashes) for hashes in distinct], dtype=np.int64)
    hashes = np.concatenate([*distinct, np.empty(0, dtype=np.uint64)])
    distinct.clear()
    values, counts = np.unique(hashes, return_counts=True)
    # The search takes half the time of ``return_inverse``, which sorts indices.
    numbers = np.searchsorted(values, hashes)
    shared = np.flatnonzero(counts > 1)
    token_of = np.full(len(values), -1, dtype=np.int32)
    token_of[shared[np.argsort(counts[shared], kind="stable")]] = np.arange(len(shared))
    tokens, offsets = _tokens_of_sets(numbers, token_of, sizes)
    starts, members, indices = _invert(tokens, offsets, len(shared))
    return ShingleSets(set_of, sizes, offsets, tokens, starts, members, indices)


@kernel
def _tokens_of_sets(numbers: I64, token_of: I32, sizes: I64) -> tuple[I32, I64]:
    """Return the sorted tokens of each set and the offsets of the sets."""
    tokens = np.empty(len(numbers), dtype=np.int32)
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    read = write = 0
    for i in range(len(sizes)):
        for _ in range(sizes[i]):
            token = token_of[numbers[read]]
            read += 1
            if token >= 0:
                tokens[write] = token
                write += 1
        tokens[offsets[i] : write] = np.sort(tokens[offsets[i] : write])
        offsets[i + 1] = write
    return tokens[:write].copy(), offsets


@kernel
def _invert(tokens: I32, offsets: I64, distinct: int) -> tuple[I64, I32, I32]:
    """Return starts, members and indices of :class:`ShingleSets` (a counting sort)."""
    starts = np.zeros(distinct + 1, dtype=np.int64)
    for token in tokens:
        starts[token + 1] += 1
    starts = np.cumsum(starts)
    ends = starts[:-1].copy()
    members = np.empty(len(tokens), dtype=np.int32)
    indices = np.empty(len(tokens), dtype=np.int32)
    for i in range(len(offsets) - 1):
        for row in range(offsets[i], offsets[i + 1]):
            end = ends[tokens[row]]
            members[end] = i
            indices[end] = row - offsets[i]
            ends[tokens[row]] = end + 1
    return starts, members, indices


def jaccards(sets: ShingleSets, first: I64, second: I64) -> F64:
    """Return the exact Jaccard similarity of given pairs of sets: ``(n,)`` float64."""
    overlap = _overlaps(sets, first, second)
    union = sets.sizes[first] + sets.sizes[second] - overlap
    # Shingles of one set only are not tokens, so the overlap of a set with itself is too small.
    return np.where(first == second, 1.0, overlap / union)


@kernel
def join(sets: ShingleSets, floor: float, first: int, last: int) -> I32:
    """Find the partners of the sets ``first`` to ``last``, exclusive, among those before each.

    Pairs have at least a Jaccard similarity of ``floor``, in (0, 1]. Return ``(pairs, 3)`` int32:
    the larger set number, the smaller one, and the overlap.
    """
    sizes = sets.sizes
    result = np.empty((_INITIAL_PAIRS, 3), dtype=np.int32)
    count = 0
    shared, candidates = np.zeros(last, dtype=np.int32), np.empty(last, dtype=np.int32)
    from_x, from_y = np.empty(last, dtype=np.int32), np.empty(last, dtype=np.int32)
    scratch = (shared, from_x, from_y, candidates)
    for x in range(first, last):
        for i in range(_probe(sets, floor, x, scratch)):
            y = candidates[i]
            if shared[y] > 0:
                needed = _needed_overlap(sizes, floor, x, y)
                overlap = _overlap(sets, x, y, from_x[y], from_y[y], needed)
                if overlap / (sizes[x] + sizes[y] - overlap) >= floor:
                    if count == len(result):
                        grown = np.empty((2 * count, 3), dtype=np.int32)
                        grown[:count] = result
                        result = grown
                    result[count, 0], result[count, 1], result[count, 2] = x, y, overlap
                    count += 1
            shared[y] = 0
    return result[:count].copy()


@kernel
def _probe(sets: ShingleSets, floor: float, x: int, scratch: tuple[I32, I32, I32, I32]) -> int:
    """Find the smaller sets that share a rare token with ``x``; return how many there are.

    One loop over postings writes ``scratch``, four arrays with an entry per set. ``shared`` counts
    the shared tokens seen, or is -1 if the rest cannot be enough. ``from_x`` and ``from_y`` are the
    indices of the first shared token. ``candidates`` are the sets seen.
    """
    shared, from_x, from_y, candidates = scratch
    sizes, offsets = sets.sizes, sets.offsets
    begin = offsets[x]
    length = offsets[x + 1] - begin
    least_size = math.ceil(floor * sizes[x] - _SLACK)
    # Shingles of one set only are the rarest of all, but are not among the tokens. The prefix to
    # look at is shorter by their number.
    prefix = min(length, sizes[x] - least_size + 1 - (sizes[x] - length))
    lowest = np.searchsorted(sizes[:x], least_size)
    count = 0
    for i in range(prefix):
        token = sets.tokens[begin + i]
        start, stop = sets.starts[token], sets.starts[token + 1]
        row = start + np.searchsorted(sets.members[start:stop], lowest)
        while row < stop and sets.members[row] < x:
            y = sets.members[row]
            j = sets.indices[row]
            row += 1
            seen = shared[y]
            if seen < 0:
                continue
            if seen == 0:
                candidates[count] = y
                count += 1
                from_x[y] = i
                from_y[y] = j
            rest = min(length - i, offsets[y + 1] - offsets[y] - j)
            shared[y] = seen + 1 if seen + rest >= _needed_overlap(sizes, floor, x, y) else -1
    return count


@kernel
def _needed_overlap(sizes: I64, floor: float, x: int, y: int) -> int:
    """Return the overlap from which two sets have a Jaccard similarity of ``floor``."""
    needed: int = math.ceil(floor / (1.0 + floor) * (sizes[x] + sizes[y]) - _SLACK)
    return needed


@kernel
def _overlap(sets: ShingleSets, x: int, y: int, i: int, j: int, needed: int) -> int:
    """Count the common tokens from two indices on; stop when ``needed`` is out of reach."""
    tokens = sets.tokens
    i += sets.offsets[x]
    j += sets.offsets[y]
    end_i, end_j = sets.offsets[x + 1], sets.offsets[y + 1]
    overlap = 0
    while i < end_i and j < end_j:
        if overlap + min(end_i - i, end_j - j) < needed:
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


@kernel
def _overlaps(sets: ShingleSets, first: I64, second: I64) -> I64:
    """Return the number of tokens that each pair of sets has in common: ``(n,)`` int64."""
    result = np.empty(len(first), dtype=np.int64)
    for i in range(len(first)):
        result[i] = _overlap(sets, first[i], second[i], 0, 0, 0)
    return result


class SetPairs(NamedTuple):
    """``n`` pairs of shingle sets and their Jaccard similarities, ``(n,)`` each."""

    first: I64  # the smaller set number of each pair
    second: I64  # the larger set number
    jaccard: F64

    def __len__(self) -> int:
        return len(self.first)

    def where(self, mask: NDArray[np.bool_]) -> SetPairs:
        """Return the pairs that ``mask`` selects."""
        return SetPairs(self.first[mask], self.second[mask], self.jaccard[mask])


def count_by_level(jaccard: F64, weights: I64, edges: Sequence[float]) -> list[int]:
    """Sum the weights of the pairs in each level ``[edges[i], edges[i + 1])``.

    Pairs with a similarity of 1 belong to none of these levels.
    """
    level = np.searchsorted(np.array(edges), jaccard, side="right") - 1
    sums = np.bincount(level, weights=weights, minlength=len(edges))
    return [int(count) for count in sums[: len(edges) - 1].tolist()]


def count_equal_pairs(values: I64 | U64) -> int:
    """Return the number of pairs of equal values."""
    _, counts = np.unique(values, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())


def share_a_band(keys: U64, pairs: SetPairs) -> NDArray[np.bool_]:
    """Return for each pair whether its rows of ``keys`` agree in a column: ``(pairs,)`` bool."""
    shared = np.zeros(len(pairs), dtype=np.bool_)
    for band in range(keys.shape[1]):
        shared |= keys[pairs.first, band] == keys[pairs.second, band]
    return shared


@kernel
def pairs_of_band(
    keys: U64, order: I64, band: int, start: int, capacity: int
) -> tuple[I64, I64, int]:
    """Return the pairs that share this band and none before it, from one position of the order.

    The keys are ``(sets, bands)``; ``order``, ``(sets,)``, sorts them by this band. Return the
    smaller and the larger row of each pair, and the position to continue at. ``capacity``, the
    largest number of pairs, is not less than ``sets``.
    """
    first, second = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int64)
    count = 0
    position = end = start
    while position < len(order):
        # The end of a run of equal keys is searched for once per run.
        if end <= position:
            end = position + 1
            while end < len(order) and keys[order[end], band] == keys[order[position], band]:
                end += 1
        if count + end - position > capacity:
            break
        for other in range(position + 1, end):
            smaller = min(order[position], order[other])
            larger = max(order[position], order[other])
            known = False
            for before in range(band):
                if keys[smaller, before] == keys[larger, before]:
                    known = True
                    break
            if not known:
                first[count], second[count] = smaller, larger
                count += 1
        position += 1
    return first[:count].copy(), second[:count].copy(), position
