"""*Pure.* Stored signatures: some bits of each value, and the similarity that they still tell.

b-bit minwise hashing (Li and Konig 2010): two values that differ agree in ``b`` mixed bits by
accident with probability ``2^-b``, so that of the share ``p`` of agreeing positions
``(p - 2^-b) / (1 - 2^-b)`` is an estimate of the Jaccard similarity without bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numba
import numpy as np
from numpy.typing import NDArray

from streamdedup.model import U8
from streamdedup.sketch.minhash import Values
from streamdedup.sketch.parameters import SketchParameters

_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class SignatureCodec:
    """How signatures are stored and compared.

    Attributes:
        num_perm: values per signature.
        bits: kept of each value: 1, 2, 4 or 8. The first value has a byte's lowest bits; the last
            byte is filled up with zeros.
    """

    num_perm: int
    bits: int

    @classmethod
    def of(cls, parameters: SketchParameters) -> Self:
        """Return the codec of sketches that have these parameters."""
        return cls(parameters.num_perm, parameters.signature_bits)

    @property
    def num_bytes(self) -> int:
        """Bytes of a stored signature."""
        return -(-self.num_perm * self.bits // 8)

    def pack(self, values: Values) -> U8:
        """Keep some bits of each value: ``(n, num_perm)`` to ``(n, num_bytes)`` uint8."""
        packed: U8 = _pack(values, self.bits, self.num_bytes)
        return packed

    def unpack(self, signatures: U8) -> U8:
        """Return the kept bits, a byte for each value: the reverse of the last step of packing."""
        each = 8 // self.bits
        shifts = np.arange(each, dtype=np.uint8) * np.uint8(self.bits)
        kept = (signatures[:, :, None] >> shifts) & np.uint8(2**self.bits - 1)
        return kept.reshape(len(signatures), -1)[:, : self.num_perm]

    def estimate_jaccard(self, signature: U8, others: U8) -> NDArray[np.float64]:
        """Estimate the Jaccard similarity of one document with ``m`` others.

        Args:
            signature: ``(num_bytes,)`` uint8.
            others: ``(m, num_bytes)`` uint8.

        Returns:
            ``(m,)`` float64, between 0 and 1.
        """
        accident = 2.0**-self.bits
        agreement = _count_equal(signature, others, _equal_fields(self.bits)) - self._padding
        estimate = (agreement / self.num_perm - accident) / (1 - accident)
        clipped: NDArray[np.float64] = np.clip(estimate, 0.0, 1.0)
        return clipped

    def standard_error(self, jaccard: float) -> float:
        """Return the most that the estimate deviates from a true similarity, root mean square.

        That of independent permutations; the ``fast`` variant stays below it. The variance follows
        from theorem 1 of Li and Konig 2010, with ``2^-b`` for both of its constants, as for texts
        that have few of all possible shingles.
        """
        accident = 2.0**-self.bits
        agreement = jaccard + (1 - jaccard) * accident
        return math.sqrt(agreement * (1 - agreement) / self.num_perm) / (1 - accident)

    @property
    def _padding(self) -> int:
        """Fields of the last byte that hold no value, and so always agree."""
        return self.num_bytes * 8 // self.bits - self.num_perm


def _table(bits: int) -> U8:
    """For each byte, how many of its fields of so many bits are zero: ``(256,)`` uint8."""
    fields = np.arange(256)[:, None] >> np.arange(0, 8, bits)
    zero: U8 = np.count_nonzero(fields & (2**bits - 1) == 0, axis=1).astype(np.uint8)
    return zero


_TABLES = {bits: _table(bits) for bits in (1, 2, 4, 8)}


def _equal_fields(bits: int) -> U8:
    return _TABLES[bits]


@numba.njit(cache=True, nogil=True)
def _pack(values, bits, num_bytes):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    # The multiplication spreads a value over the kept bits: minima share their upper ones.
    packed = np.zeros((values.shape[0], num_bytes), dtype=np.uint8)
    shift = np.uint64(64 - bits)
    each = 8 // bits
    for document in range(values.shape[0]):
        for i in range(values.shape[1]):
            kept = np.uint8((np.uint64(values[document, i]) * _BASE) >> shift)
            packed[document, i // each] |= np.uint8(kept << np.uint8(i % each * bits))
    return packed


@numba.njit(cache=True, nogil=True)
def _count_equal(signature, others, equal_fields):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    counts = np.zeros(others.shape[0], dtype=np.int64)
    for other in range(others.shape[0]):
        count = 0
        for i in range(len(signature)):
            count += equal_fields[signature[i] ^ others[other, i]]
        counts[other] = count
    return counts
