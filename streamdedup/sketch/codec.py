"""*Pure.* Stored signatures: ``b`` bits of each value, and the similarity estimated from them.

This is b-bit minwise hashing (Li and Konig 2010). Two different values agree in ``b`` mixed bits
with probability ``2^-b``. If ``p`` is the share of values whose bits agree,
``(p - 2^-b) / (1 - 2^-b)`` is an unbiased estimate of the Jaccard similarity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64, U8
from streamdedup.kernels import kernel
from streamdedup.sketch.minhash import Values
from streamdedup.sketch.parameters import SketchParameters

_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class SignatureCodec:
    """How signatures are stored and compared."""

    num_perm: int  # values per signature
    # The first value has the lowest bits of a byte; the unused bits of the last byte are zero.
    bits: int  # of each value: 1, 2, 4 or 8

    @classmethod
    def of(cls, parameters: SketchParameters) -> Self:
        """Return the codec of sketches with these parameters."""
        return cls(parameters.num_perm, parameters.signature_bits)

    @property
    def num_bytes(self) -> int:
        """Bytes of a stored signature."""
        return -(-self.num_perm * self.bits // 8)

    def pack(self, values: Values) -> U8:
        """Pack ``bits`` of each value: ``(n, num_perm)`` to ``(n, num_bytes)`` uint8."""
        return _pack(values, self.bits, self.num_bytes)

    def unpack(self, signatures: U8) -> U8:
        """Return the stored bits of each value: ``(n, num_bytes)`` to ``(n, num_perm)`` uint8."""
        per_byte = 8 // self.bits
        shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(self.bits)
        stored = (signatures[:, :, None] >> shifts) & np.uint8(2**self.bits - 1)
        return stored.reshape(len(signatures), -1)[:, : self.num_perm]

    def estimate_jaccard(self, ones: U8, others: U8) -> NDArray[np.float64]:
        """Estimate the Jaccard similarity of one document with ``m`` others, or of ``m`` pairs.

        The signatures are ``(num_bytes,)`` or ``(m, num_bytes)``, and ``(m, num_bytes)``, uint8;
        the result is ``(m,)``, from 0 to 1.
        """
        equal = _count_equal(np.atleast_2d(ones), others, _EQUAL_FIELDS[self.bits])
        # The fields of the last byte without a value always agree.
        return self._estimate(equal - (self.num_bytes * 8 // self.bits - self.num_perm))

    def estimates(self) -> NDArray[np.float64]:
        """Return the estimates by the number of unequal values: ``(num_perm + 1,)``, 1 to 0."""
        return self._estimate(np.arange(self.num_perm, -1, -1))

    def _estimate(self, equal: I64) -> NDArray[np.float64]:
        collision = 2.0**-self.bits
        estimate = (equal / self.num_perm - collision) / (1 - collision)
        clipped: NDArray[np.float64] = np.clip(estimate, 0.0, 1.0)
        return clipped

    def standard_error(self, jaccard: float) -> float:
        """Return the standard error of the estimate at a true similarity.

        This is the error with independent permutations; that of the ``fast`` variant is smaller.
        The variance is that of theorem 1 of Li and Konig 2010. Both of its constants are ``2^-b``,
        their limit for texts that hold few of all possible shingles.
        """
        collision = 2.0**-self.bits
        agreement = jaccard + (1 - jaccard) * collision
        return math.sqrt(agreement * (1 - agreement) / self.num_perm) / (1 - collision)


_EQUAL_FIELDS: dict[int, U8] = {
    bits: np.count_nonzero(
        (np.arange(256)[:, None] >> np.arange(0, 8, bits)) & (2**bits - 1) == 0, axis=1
    ).astype(np.uint8)
    for bits in (1, 2, 4, 8)
}
"""By bits per field: the number of equal fields of two bytes, by the bytes' exclusive or."""


@kernel
def _pack(values: Values, bits: int, num_bytes: int) -> U8:
    """Store the upper ``bits`` of each value times a constant."""
    # Minima share their upper bits; the product does not.
    packed = np.zeros((values.shape[0], num_bytes), dtype=np.uint8)
    shift = np.uint64(64 - bits)
    per_byte = 8 // bits
    for document in range(values.shape[0]):
        for i in range(values.shape[1]):
            kept = np.uint8((np.uint64(values[document, i]) * _BASE) >> shift)
            packed[document, i // per_byte] |= np.uint8(kept << np.uint8(i % per_byte * bits))
    return packed


@kernel
def _count_equal(ones: U8, others: U8, equal_fields: U8) -> I64:
    """Return the number of equal fields of two rows each, ``(m,)``, or of one row with each."""
    counts = np.zeros(others.shape[0], dtype=np.int64)
    for other in range(others.shape[0]):
        one = other if ones.shape[0] > 1 else 0
        count = np.int64(0)
        for i in range(ones.shape[1]):
            count += np.int64(equal_fields[ones[one, i] ^ others[other, i]])
        counts[other] = count
    return counts
