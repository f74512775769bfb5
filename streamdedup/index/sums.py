"""*Pure.* The checksum of everything that an index stores: XXH3-64."""

from __future__ import annotations

from typing import Any

import xxhash


def sum_of(value: Any, seed: int = 0) -> int:
    """Return the checksum of bytes, or of an array's bytes."""
    return xxhash.xxh3_64_intdigest(value, seed)
