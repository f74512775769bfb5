"""*Pure.* Which partition of an output topic gets a message."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamdedup.columns import I64, U8, Blobs
from streamdedup.kernels import kernel

_SEED, _FACTOR = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)


def partitions_of(keys: Sequence[bytes | None], sources: I64, count: int) -> I64:
    """Choose one of ``count`` partitions by the key, or without a key by the source partition.

    Keys are hashed as Kafka's own producers do by default, so that a topic with as many partitions
    as the source has its keys in the same ones. The ``n`` keys have source partitions ``(n,)``,
    int64, as the result.
    """
    partitions: I64 = sources % count
    keyed = np.array([key is not None for key in keys], dtype=np.bool_)
    if count > 1 and keyed.any():
        column = Blobs.of([key for key in keys if key is not None])
        hashes = np.empty(len(column), dtype=np.int64)
        _murmur2(column.data, column.ends, hashes)
        partitions[keyed] = hashes % count
    return partitions


@kernel
def _murmur2(data: U8, ends: I64, hashes: I64) -> None:
    """Hash byte strings with Kafka's variant of MurmurHash2; the sign bit is dropped."""
    start = np.int64(0)
    for row in range(len(ends)):
        length = ends[row] - start
        h = np.uint32(_SEED ^ np.uint32(length))
        at = start
        while ends[row] - at >= 4:  # noqa: PLR2004 - bytes of a word
            k = np.uint32(0)
            for byte in range(4):
                k |= np.uint32(np.uint32(data[at + byte]) << np.uint32(8 * byte))
            k = np.uint32(k * _FACTOR)
            k = np.uint32((k ^ (k >> np.uint32(24))) * _FACTOR)
            h = np.uint32(np.uint32(h * _FACTOR) ^ k)
            at += 4
        left = ends[row] - at
        for byte in range(left):
            h ^= np.uint32(np.uint32(data[at + byte]) << np.uint32(8 * byte))
        if left:
            h = np.uint32(h * _FACTOR)
        h = np.uint32((h ^ (h >> np.uint32(13))) * _FACTOR)
        h ^= h >> np.uint32(15)
        hashes[row] = np.int64(h) & 0x7FFFFFFF
        start = ends[row]
