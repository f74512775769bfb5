"""A text whose shingles all fall into one slot of a hash table, for whoever knows the seed.

Each character is chosen so that the shingle that it ends has the wanted bits. The kernels drop
repeated shingles by a table of 8,192 slots if a text does not fill all bins of its signature. So
the upper bits avoid one bin, and the lower bits are those of one slot.
"""

from __future__ import annotations

import numpy as np

from streamdedup.columns import I64
from streamdedup.kernels import kernel
from streamdedup.settings.dedup import DedupSettings
from streamdedup.sketch.minhash import _BASE, _ONE, _mix
from streamdedup.sketch.shingle import Shingling

_FIRST, _LAST = 0x40000, 0xD0000
"""Code points without a character, which every profile leaves unchanged."""
_SLOT_MASK = np.uint64(8191)
_CHAIN = 4000


@kernel
def _chain(shingling: Shingling, points: I64, count: int) -> I64:
    """Return code points of which every run of a shingle's size collides with the others."""
    seed = _mix(np.uint64(shingling.seed) + _BASE)
    base = seed | _ONE
    leading = _ONE
    for _ in range(shingling.size - 1):
        leading *= base
    chain = np.empty(count, dtype=np.int64)
    chain[: shingling.size - 1] = points[: shingling.size - 1]
    rolling = np.uint64(0)
    for i in range(shingling.size - 1):
        rolling = rolling * base + (np.uint64(chain[i]) + _ONE)
    next_ = 0
    for i in range(shingling.size - 1, count):
        found = False
        for _ in range(len(points)):
            point = points[next_ % len(points)]
            next_ += 1
            value = _mix((rolling * base + (np.uint64(point) + _ONE)) ^ seed)
            if value & _SLOT_MASK == 0 and value >> np.uint64(56) != 0:
                found = True
                break
        if not found:
            return chain[:i]
        chain[i] = point
        rolling = rolling * base + (np.uint64(point) + _ONE)
        rolling -= leading * (np.uint64(chain[i - shingling.size + 1]) + _ONE)
    return chain


def colliding_text(most_bytes: int) -> str:
    """Return such a text under the default settings."""
    shingling = DedupSettings().sketch_parameters().shingling()
    points = np.arange(_FIRST, _LAST, dtype=np.int64)
    np.random.default_rng(1).shuffle(points)
    chain = "".join(map(chr, _chain(shingling, points, _CHAIN)))
    return chain * (most_bytes // len(chain.encode()))
