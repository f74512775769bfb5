"""*Pure.* Random words that follow from a counter alone: SplitMix64 (Steele, Lea, Flood 2014)."""

from __future__ import annotations

import numpy as np

from streamdedup.columns import U64


def mixed(counters: U64) -> U64:
    """Return SplitMix64's output for counters (figure 17), in the shape of the counters."""
    words = (counters + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
