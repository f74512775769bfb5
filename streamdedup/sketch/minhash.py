"""*Pure.* The MinHash kernels: packed texts in, signatures and band keys out.

Two documents agree in one value of their signatures with a probability that is the Jaccard
similarity of their shingles.

- ``fast`` is Fast Similarity Sketching (Dahlgaard, Knudsen, Thorup 2017, arXiv 1704.04370). Round
  ``i`` puts every shingle into one of ``num_perm`` bins with a value ``i + h``. A bin keeps its
  minimum, and the rounds end when no bin is empty. Bins that are empty after ``num_perm`` rounds
  get the minimum over all shingles. The rounds drop repetitions if they take longer than distinct
  shingles would. Expected time ``O(n + k log k)``. The variance is below that of independent
  permutations, because the bins draw shingles without replacement.
- ``classic`` is MinHash with one hash function per value (Broder 1997): the minimum over the
  shingles of ``a_i x + b_i`` modulo 2^32 or 2^64, with odd ``a_i``. Time ``O(n k)``.

All arithmetic is on unsigned integers modulo 2^64 or 2^32, so that results are the same on every
platform.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64, U64
from streamdedup.kernels import kernel
from streamdedup.sketch.shingle import Codes, Shingling

U32 = NDArray[np.uint32]
Values = U32 | U64

_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_SPACE = 0x20
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

_DISTINCT_PER_BIN = 16
"""Number of distinct shingles per bin that fill up to 9,000 bins almost surely: ``log k`` and some
more."""


@kernel(inline="always")
def _mix(value: np.uint64) -> np.uint64:
    """Mix the bits of an integer, so that each bit of the result depends on all of them."""
    value ^= value >> np.uint64(30)
    value *= _MIX_1
    value ^= value >> np.uint64(27)
    value *= _MIX_2
    return value ^ (value >> np.uint64(31))


@kernel
def random_words(seed: int, count: int) -> U64:
    """Return ``(count,)`` uint64 pseudo-random words, the SplitMix64 sequence of a seed.

    Numpy's generators may change between versions; the parameters of an index must not.
    """
    words = np.empty(count, dtype=np.uint64)
    state = np.uint64(seed)
    for i in range(count):
        state += _BASE
        words[i] = _mix(state)
    return words


@kernel
def _room(offsets: I64) -> int:
    """Return the largest number of shingles that any of the packed texts can have."""
    longest = 1
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    return longest


@kernel
def hash_shingles(codes: Codes, start: int, stop: int, shingling: Shingling, out: U64) -> int:
    """Hash each shingle of the text in ``codes[start:stop]``; return their number.

    ``out``, uint64, at least :func:`_room` long, gets the hashes, in order, with repetitions. Only
    a text without characters has none.
    """
    seed = _mix(np.uint64(shingling.seed) + _BASE)
    base = seed | _ONE
    leading = _ONE
    for _ in range(shingling.size):
        leading *= base
    count: int
    if shingling.words:
        words = _hash_words(codes, start, stop, seed, base, out)
        count = _hash_runs_of_words(words, shingling.size, seed, base, leading, out)
    else:
        count = _hash_characters(codes, start, stop, shingling.size, seed, base, leading, out)
    if shingling.bag:
        _number_repetitions(out, count)
    return count


@kernel
def _hash_characters(
    codes: Codes,
    start: int,
    stop: int,
    size: int,
    seed: np.uint64,
    base: np.uint64,
    leading: np.uint64,
    out: U64,
) -> int:
    """Hash each run of ``size`` characters by a rolling polynomial; return the number of runs."""
    if stop <= start:
        return 0
    rolling = np.uint64(0)
    first = min(stop, start + size)
    for i in range(start, first):
        rolling = rolling * base + (np.uint64(codes[i]) + _ONE)
    out[0] = _mix(rolling ^ seed)
    # Indices into slices are known to be positive, which saves a check in the loop.
    entering, leaving, rest = codes[first:stop], codes[start:stop], out[1:]
    for i in range(len(entering)):
        old = leading * (np.uint64(leaving[i]) + _ONE)
        rolling = rolling * base + ((np.uint64(entering[i]) + _ONE) - old)
        rest[i] = _mix(rolling ^ seed)
    return 1 + len(entering)


@kernel
def _hash_words(
    codes: Codes, start: int, stop: int, seed: np.uint64, base: np.uint64, out: U64
) -> int:
    """Hash each word; return the number of words. A text of spaces alone is one empty word."""
    count = 0
    rolling = np.uint64(0)
    for i in range(start, stop):
        if codes[i] == _SPACE:
            if rolling:
                out[count] = _mix(rolling ^ seed)
                count += 1
            rolling = np.uint64(0)
        else:
            rolling = rolling * base + (np.uint64(codes[i]) + _ONE)
    if rolling or (count == 0 and stop > start):
        out[count] = _mix(rolling ^ seed)
        count += 1
    return count


@kernel
def _hash_runs_of_words(
    words: int, size: int, seed: np.uint64, base: np.uint64, leading: np.uint64, out: U64
) -> int:
    """Replace the hashes of words by those of runs of ``size`` words; return the number of runs."""
    # The hash of a run overwrites that of its first word, which the next step still needs.
    rolling = np.uint64(0)
    first = min(words, size)
    for i in range(first):
        rolling = rolling * base + out[i]
    if words == 0:
        return 0
    leaving = out[0]
    out[0] = _mix(rolling ^ seed)
    count = 1
    for i in range(first, words):
        rolling = rolling * base + (out[i] - leading * leaving)
        leaving = out[count]
        out[count] = _mix(rolling ^ seed)
        count += 1
    return count


@kernel
def _number_repetitions(hashes: U64, count: int) -> None:
    """Replace the second, third, ... occurrence of a hash by hashes of their own."""
    # A hash table with open addressing, at most half full. A slot is free if its ``times`` is 0.
    capacity = 2
    while capacity < 2 * count:
        capacity *= 2
    slots = np.zeros(capacity, dtype=np.uint64)
    times = np.zeros(capacity, dtype=np.uint32)
    mask = np.uint64(capacity - 1)
    for i in range(count):
        value = hashes[i]
        slot = value & mask
        while times[slot] and slots[slot] != value:
            slot = (slot + _ONE) & mask
        slots[slot] = value
        if times[slot]:
            hashes[i] = _mix(value + _BASE * np.uint64(times[slot]))
        times[slot] += np.uint32(1)


@kernel
def fast(codes: Codes, offsets: I64, shingling: Shingling, multipliers: U64) -> U32:
    """Compute the signatures of :class:`PackedTexts` by Fast Similarity Sketching.

    ``multipliers`` are odd random words, ``(2 * num_perm,)`` uint64. The result is uint32,
    ``(n, num_perm)``; all values of a text without shingles are 2^32 - 1.
    """
    num_perm = len(multipliers) // 2
    values = np.empty((len(offsets) - 1, num_perm), dtype=np.uint32)
    hashes = np.empty(_room(offsets), dtype=np.uint64)
    bins = np.empty(num_perm, dtype=np.uint64)
    for document in range(len(offsets) - 1):
        start, stop = offsets[document], offsets[document + 1]
        count = hash_shingles(codes, start, stop, shingling, hashes)
        bins[:] = _EMPTY
        if count:
            fill_bins(hashes[:count], multipliers, bins)
        row = values[document]
        for i in range(num_perm):
            row[i] = np.uint32(bins[i])
    return values


@kernel
def fill_bins(hashes: U64, multipliers: U64, bins: U64) -> int:
    """Fill the bins round by round, until none is empty; return how many values were computed.

    There is at least one hash; repetitive ones are rearranged. ``multipliers``: see :func:`fast`.
    ``bins``, ``(num_perm,)`` uint64, all ``_EMPTY``, get the values, the round in the upper half.
    """
    # The round is in the upper half, so that a later round never replaces an earlier value.
    num_perm = len(bins)
    scale = np.uint64(num_perm)
    filled = 0
    for value in hashes:
        chosen = ((value >> _HALF) * scale) >> _HALF
        held = bins[chosen]
        filled += held == _EMPTY
        bins[chosen] = min(held, value & _LOW)
    enough = _DISTINCT_PER_BIN * num_perm
    last = min(num_perm, 1 + enough // len(hashes))
    rounds, filled = _fill_rounds(hashes, multipliers, bins, filled, 1, last)
    work = rounds * len(hashes)
    if filled == num_perm:
        return work
    # So many distinct shingles would have filled the bins.
    distinct = hashes[: _gather_distinct(hashes, enough)]
    rounds, filled = _fill_rounds(distinct, multipliers, bins, filled, last, num_perm)
    if filled < num_perm:
        _fill_rest(distinct, multipliers, bins)
    return work + (rounds - last) * len(distinct)


@kernel
def _fill_rounds(
    hashes: U64, multipliers: U64, bins: U64, filled: int, first: int, last: int
) -> tuple[int, int]:
    """Continue with rounds ``first`` to ``last``, exclusive, until no bin is empty.

    Return the number of the next round, and the number of filled bins.
    """
    num_perm = len(bins)
    scale = np.uint64(num_perm)
    for step in range(first, last):
        if filled == num_perm:
            return step, filled
        multiplier = multipliers[step]
        above = np.uint64(step) << _HALF
        for shingle in hashes:
            value = _rehash(shingle, multiplier)
            chosen = ((value >> _HALF) * scale) >> _HALF
            held = bins[chosen]
            filled += held == _EMPTY
            bins[chosen] = min(held, above | (value & _LOW))
    return last, filled


@kernel
def _gather_distinct(hashes: U64, most: int) -> int:
    """Move the distinct hashes to the front, the first ``most`` of them surely; return their count.

    Repetitions of the others may remain.
    """
    # A hash table with open addressing, at most half full. A free slot holds the first hash.
    capacity = 2
    while capacity < 2 * min(len(hashes), most):
        capacity *= 2
    first = hashes[0]
    slots = np.full(capacity, first)
    mask = np.uint64(capacity - 1)
    count = 1
    for value in hashes[1:]:
        slot = value & mask
        while slots[slot] != value and slots[slot] != first:
            slot = (slot + _ONE) & mask
        if slots[slot] != value:
            if count < most:
                slots[slot] = value
            hashes[count] = value
            count += 1
    return count


@kernel
def _fill_rest(hashes: U64, multipliers: U64, bins: U64) -> None:
    """Fill the bins that are still empty with the minimum over all shingles, rehashed per bin."""
    num_perm = len(bins)
    for i in range(num_perm):
        if bins[i] == _EMPTY:
            least = _EMPTY
            for shingle in hashes:
                least = min(least, _rehash(shingle, multipliers[num_perm + i]) & _LOW)
            bins[i] = least


@kernel(inline="always")
def _rehash(value: np.uint64, multiplier: np.uint64) -> np.uint64:
    """Hash a hash once more; ``multiplier`` selects the hash function."""
    value *= multiplier
    return (value ^ (value >> _HALF)) * _MIX_1


@kernel
def classic(
    codes: Codes, offsets: I64, shingling: Shingling, multipliers: Values, increments: Values
) -> Values:
    """Compute the MinHash signatures of :class:`PackedTexts`, ``(n, num_perm)``.

    ``multipliers`` are odd, ``(num_perm,)`` uint32 or uint64; increments and values have the same
    type. All values of a text without shingles are the largest of the type.
    """
    values = np.empty((len(offsets) - 1, len(multipliers)), dtype=multipliers.dtype)
    hashes = np.empty(_room(offsets), dtype=np.uint64)
    for document in range(len(offsets) - 1):
        start, stop = offsets[document], offsets[document + 1]
        count = hash_shingles(codes, start, stop, shingling, hashes)
        row = values[document]
        row[:] = ~multipliers.dtype.type(0)
        _lower(hashes[:count], multipliers, increments, row)
    return values


@kernel
def _lower(hashes: U64, multipliers: Values, increments: Values, row: Values) -> None:
    """Lower each value of a signature to the minimum of its hash function over the shingles."""
    kind = multipliers.dtype.type
    # A value of 32 bits is computed from the upper 32 bits of a hash.
    shift = np.uint64(64 - 8 * multipliers.itemsize)
    for shingle in hashes:
        hashed = kind(shingle >> shift)
        for i in range(len(row)):
            row[i] = min(row[i], kind(multipliers[i] * hashed + increments[i]))


@kernel
def band_keys(values: Values, namespaces: U64, bands: int, rows: int, seed: int) -> U64:
    """Hash the rows of each band, together with the document's namespace, to one key.

    The values are ``(n, num_perm)``, at least ``bands * rows``, uint32 or uint64; the namespaces
    are ``(n,)`` uint64, and the keys ``(n, bands)`` uint64.
    """
    keys = np.empty((values.shape[0], bands), dtype=np.uint64)
    for document in range(values.shape[0]):
        for band in range(bands):
            key = np.uint64(seed) + np.uint64(band + 1)
            for row in range(rows):
                key = key * _BASE + np.uint64(values[document, band * rows + row])
            keys[document, band] = _mix(_mix(key) ^ namespaces[document])
    return keys
