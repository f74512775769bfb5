"""*Pure.* The kernels: packed code points in, MinHash signatures and band keys out.

All arithmetic is on unsigned integers modulo 2^64 or 2^32 and so the same on every platform. The
kernels are compiled at first use and cached beside the package (or in ``NUMBA_CACHE_DIR``).

- A shingle of ``n`` code points is hashed by a rolling polynomial modulo 2^64 and a finaliser
  (Stafford's variant 13 of the MurmurHash3 mixer, as in SplitMix64).
- Value ``i`` of a signature is the minimum over the shingles of ``a_i x + b_i mod 2^32``, with odd
  ``a_i`` and ``x`` the upper half of the shingle's hash: P[two documents agree in it] is their
  Jaccard similarity (Broder 1997).
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from streamdedup.model import I64, U8, U64

U32 = NDArray[np.uint32]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TOP = np.uint32(0xFFFFFFFF)
_FIBONACCI = np.uint32(0x9E3779B1)


@numba.njit(inline="always")
def _mix(value):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - numba infers the types
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
def minhash(
    codes: U32, offsets: I64, size: int, seed: int, multipliers: U32, increments: U32
) -> U32:
    """Compute the MinHash values of a batch of packed texts.

    Args:
        codes: the code points of all texts, one after the other, ``(total,)`` uint32.
        offsets: text ``i`` is ``codes[offsets[i]:offsets[i + 1]]``, ``(n + 1,)`` int64.
        size: code points per shingle; a shorter text is one shingle.
        seed: of the shingle hash.
        multipliers: odd, ``(num_perm,)`` uint32.
        increments: ``(num_perm,)`` uint32.

    Returns:
        ``(n, num_perm)`` uint32; a text without code points has 2^32 - 1 throughout.
    """
    documents = len(offsets) - 1
    num_perm = len(multipliers)
    values = np.full((documents, num_perm), _TOP, dtype=np.uint32)
    seed_mixed = _mix(np.uint64(seed) + _BASE)
    base = seed_mixed | np.uint64(1)
    leading = np.uint64(1)
    for _ in range(size):
        leading *= base
    for document in range(documents):
        start, stop = offsets[document], offsets[document + 1]
        row = values[document]
        rolling = np.uint64(0)
        for position in range(start, stop):
            rolling = rolling * base + np.uint64(codes[position]) + np.uint64(1)
            filled = position - start + 1
            if filled > size:
                rolling -= leading * (np.uint64(codes[position - size]) + np.uint64(1))
            if filled < size and position + 1 < stop:
                continue
            hashed = np.uint32(_mix(rolling ^ seed_mixed) >> np.uint64(32))
            for i in range(num_perm):
                value = np.uint32(multipliers[i] * hashed + increments[i])
                row[i] = min(row[i], value)
    return values


@numba.njit(cache=True, nogil=True)
def band_keys(values: U32, namespaces: U64, bands: int, rows: int, seed: int) -> U64:
    """Hash each band's rows, with the document's namespace, to one key.

    Args:
        values: MinHash values, ``(n, num_perm)`` uint32.
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
            key = _mix(np.uint64(seed) + _BASE * np.uint64(band + 1)) ^ namespaces[document]
            for row in range(rows):
                key = _mix(key * _BASE + np.uint64(values[document, band * rows + row]))
            keys[document, band] = key
    return keys


def truncate(values: U32) -> U8:
    """Keep 8 mixed bits of each MinHash value (b-bit minwise hashing, Li and Konig 2010).

    The multiplication spreads the value over the kept bits, since minima share their upper ones.
    """
    return ((values * _FIBONACCI) >> np.uint32(24)).astype(np.uint8)


def estimate_jaccard(signature: U8, others: U8) -> NDArray[np.float64]:
    """Estimate the Jaccard similarity of one document with ``m`` others.

    The share of equal positions ``p`` counts the accidents of truncation too, one in 256;
    ``(p - 2^-8) / (1 - 2^-8)`` takes them out without bias (Li and Konig 2010, for sparse sets).

    Args:
        signature: ``(num_perm,)`` uint8.
        others: ``(m, num_perm)`` uint8.

    Returns:
        ``(m,)`` float64, between 0 and 1.
    """
    agreement = np.count_nonzero(others == signature, axis=1) / signature.shape[0]
    estimate: NDArray[np.float64] = np.clip((agreement - 2**-8) / (1 - 2**-8), 0.0, 1.0)
    return estimate
