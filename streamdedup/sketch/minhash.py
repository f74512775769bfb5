"""*Pure.* The kernels: packed texts in, signatures and band keys out.

P[two documents agree in one value of their signatures] is the Jaccard similarity of their shingles.

- ``fast`` is Fast Similarity Sketching (Dahlgaard, Knudsen, Thorup 2017, arXiv 1704.04370): in
  round ``i`` every shingle falls into one of ``num_perm`` bins with a value ``i + h``, a bin keeps
  its least value, and rounds go on until no bin is empty. Bins that ``num_perm`` rounds leave empty
  get the minimum over all shingles. Expected time ``O(n + k log k)``, and less variance than
  independent permutations, since the shingles are shared out rather than drawn again.
- ``classic`` is MinHash with one hash function per value (Broder 1997): the minimum over the
  shingles of ``a_i x + b_i`` modulo 2^32 or 2^64, with odd ``a_i``. Time ``O(n k)``.

All arithmetic is on unsigned integers modulo 2^64 or 2^32 and so the same on every platform. The
kernels are compiled at first use and cached beside the package (or in ``NUMBA_CACHE_DIR``).

Rule 1: no kernel calls one of another file. The cache would not notice that the other has changed,
and go on with what it was.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from streamdedup.model import I64, U64
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


@numba.njit(inline="always")
def _mix(value):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - numba infers the types
    """Mix the 64 bits of an integer so that each depends on all."""
    value ^= value >> np.uint64(30)
    value *= _MIX_1
    value ^= value >> np.uint64(27)
    value *= _MIX_2
    return value ^ (value >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def random_words(seed: int, count: int) -> U64:
    """Return ``(count,)`` uint64 pseudo-random words, the SplitMix64 sequence of a seed.

    numpy's generators may change between its versions; the parameters of an index may not.
    """
    words = np.empty(count, dtype=np.uint64)
    state = np.uint64(seed)
    for i in range(count):
        state += _BASE
        words[i] = _mix(state)
    return words


@numba.njit(cache=True, nogil=True)
def _room(offsets: I64) -> int:
    """Return how many shingles the longest of packed texts can have."""
    longest = 1
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    return longest


@numba.njit(cache=True, nogil=True)
def hash_shingles(codes: Codes, start: int, stop: int, shingling: Shingling, out: U64) -> int:
    """Hash each shingle of one text.

    Args:
        codes: packed texts.
        start: where the text begins in ``codes``.
        stop: where it ends, exclusive.
        shingling: what a shingle is.
        out: gets the hashes, in order, repetitions included; uint64, of :func:`_room` or more.

    Returns:
        How many there are: 0 only for a text without characters.
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


@numba.njit(cache=True, nogil=True)
def _hash_characters(codes, start, stop, size, seed, base, leading, out):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    if stop <= start:
        return 0
    rolling = np.uint64(0)
    first = min(stop, start + size)
    for at in range(start, first):
        rolling = rolling * base + (np.uint64(codes[at]) + _ONE)
    out[0] = _mix(rolling ^ seed)
    # Slices, since their indices need no check for being negative.
    entering, leaving, rest = codes[first:stop], codes[start:stop], out[1:]
    for i in range(len(entering)):
        old = leading * (np.uint64(leaving[i]) + _ONE)
        rolling = rolling * base + ((np.uint64(entering[i]) + _ONE) - old)
        rest[i] = _mix(rolling ^ seed)
    return 1 + len(entering)


@numba.njit(cache=True, nogil=True)
def _hash_words(codes, start, stop, seed, base, out):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    count = 0
    rolling = np.uint64(0)
    for at in range(start, stop):
        if codes[at] == _SPACE:
            if rolling:
                out[count] = _mix(rolling ^ seed)
                count += 1
            rolling = np.uint64(0)
        else:
            rolling = rolling * base + (np.uint64(codes[at]) + _ONE)
    if rolling or (count == 0 and stop > start):
        out[count] = _mix(rolling ^ seed)
        count += 1
    return count


@numba.njit(cache=True, nogil=True)
def _hash_runs_of_words(words, size, seed, base, leading, out):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    # The hash of a run takes the place of its first word, which is needed once more, a step later.
    rolling = np.uint64(0)
    first = min(words, size)
    for at in range(first):
        rolling = rolling * base + out[at]
    if words == 0:
        return 0
    leaving = out[0]
    out[0] = _mix(rolling ^ seed)
    count = 1
    for at in range(first, words):
        rolling = rolling * base + (out[at] - leading * leaving)
        leaving = out[count]
        out[count] = _mix(rolling ^ seed)
        count += 1
    return count


@numba.njit(cache=True, nogil=True)
def _number_repetitions(hashes, count):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    # Open addressing at a load of one half or less; a hash of 0 is an element like any other.
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


@numba.njit(cache=True, nogil=True)
def fast(codes: Codes, offsets: I64, shingling: Shingling, multipliers: U64) -> U32:
    """Compute the signatures of packed texts by Fast Similarity Sketching.

    Args:
        codes: see :class:`streamdedup.sketch.shingle.PackedTexts`.
        offsets: the same, ``(n + 1,)`` int64.
        shingling: what a shingle is.
        multipliers: odd random words, ``(2 * num_perm,)`` uint64.

    Returns:
        ``(n, num_perm)`` uint32; a text without shingles has 2^32 - 1 throughout.
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
            _fill(hashes[:count], multipliers, bins)
        row = values[document]
        for i in range(num_perm):
            row[i] = np.uint32(bins[i])
    return values


@numba.njit(cache=True, nogil=True)
def _fill(hashes, multipliers, bins):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    # The round stands above the value, so that a later round never displaces an earlier one.
    num_perm = len(bins)
    scale = np.uint64(num_perm)
    filled = 0
    for each in hashes:
        place = ((each >> _HALF) * scale) >> _HALF
        held = bins[place]
        filled += held == _EMPTY
        bins[place] = min(held, each & _LOW)
    for step in range(1, num_perm):
        if filled == num_perm:
            return
        multiplier = multipliers[step]
        above = np.uint64(step) << _HALF
        for each in hashes:
            value = _rehash(each, multiplier)
            place = ((value >> _HALF) * scale) >> _HALF
            held = bins[place]
            filled += held == _EMPTY
            bins[place] = min(held, above | (value & _LOW))
    if filled < num_perm:
        _fill_rest(hashes, multipliers, bins)


@numba.njit(cache=True, nogil=True)
def _fill_rest(hashes, multipliers, bins):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    num_perm = len(bins)
    for place in range(num_perm):
        if bins[place] == _EMPTY:
            least = _EMPTY
            for each in hashes:
                least = min(least, _rehash(each, multipliers[num_perm + place]) & _LOW)
            bins[place] = least


@numba.njit(inline="always")
def _rehash(value, multiplier):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    value *= multiplier
    return (value ^ (value >> _HALF)) * _MIX_1


@numba.njit(cache=True, nogil=True)
def classic(
    codes: Codes, offsets: I64, shingling: Shingling, multipliers: Values, increments: Values
) -> Values:
    """Compute the MinHash signatures of packed texts.

    Args:
        codes: see :class:`streamdedup.sketch.shingle.PackedTexts`.
        offsets: the same, ``(n + 1,)`` int64.
        shingling: what a shingle is.
        multipliers: odd, ``(num_perm,)`` uint32 or uint64: the values get this type.
        increments: of the same type and shape.

    Returns:
        ``(n, num_perm)``; a text without shingles has the type's largest number throughout.
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


@numba.njit(cache=True, nogil=True)
def _lower(hashes, multipliers, increments, row):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    # The upper bits of a hash, as many as a value has.
    kind = multipliers.dtype.type
    shift = np.uint64(64 - 8 * multipliers.itemsize)
    for each in hashes:
        hashed = kind(each >> shift)
        for i in range(len(row)):
            row[i] = min(row[i], kind(multipliers[i] * hashed + increments[i]))


@numba.njit(cache=True, nogil=True)
def band_keys(values: Values, namespaces: U64, bands: int, rows: int, seed: int) -> U64:
    """Hash each band's rows, with the document's namespace, to one key.

    Args:
        values: signatures, ``(n, num_perm)`` uint32 or uint64.
        namespaces: ``(n,)`` uint64.
        bands: how many keys.
        rows: values per key; ``bands * rows <= num_perm``.
        seed: of the hash.

    Returns:
        ``(n, bands)`` uint64.
    """
    keys = np.empty((values.shape[0], bands), dtype=np.uint64)
    for document in range(values.shape[0]):
        for band in range(bands):
            key = np.uint64(seed) + np.uint64(band + 1)
            for row in range(rows):
                key = key * _BASE + np.uint64(values[document, band * rows + row])
            keys[document, band] = _mix(_mix(key) ^ namespaces[document])
    return keys
