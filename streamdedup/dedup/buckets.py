"""*Pure.* Groups the documents of a batch: by bucket, by hits, and by replays."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import Candidates, SketchedBatch
from streamdedup.columns import U64

IGNORED_KEY_BITS = np.uint64(24)
"""Documents share a bucket if their band keys agree in the bits above these, in a batch as in the
index, which stores no others."""


def judged_within(batch: SketchedBatch) -> NDArray[np.bool_]:
    """Tell which documents have an offset that an earlier record of the batch reached or passed."""
    judged = []
    next_offsets: dict[tuple[str, int], int] = {}
    for topic, partition, offset in batch.positions:
        known = next_offsets.get((topic, partition), 0)
        judged.append(offset < known)
        next_offsets[topic, partition] = max(known, offset + 1)
    return np.array(judged, dtype=np.bool_)[batch.rows]


def hits_by_row(candidates: Candidates) -> dict[int, dict[int, list[int]]]:
    """Group the hits: document -> column of band keys -> numbers, ascending."""
    hits: dict[int, dict[int, list[int]]] = {}
    columns = zip(
        candidates.hit_rows.tolist(),
        candidates.hit_columns.tolist(),
        candidates.hit_numbers.tolist(),
        strict=True,
    )
    for row, column, number in columns:
        hits.setdefault(row, {}).setdefault(column, []).append(number)
    return hits


def shared_buckets(band_keys: U64) -> dict[int, list[tuple[int, int]]]:
    """Return the buckets that several documents of the batch share: document -> buckets."""
    shared: dict[int, list[tuple[int, int]]] = defaultdict(list)
    band_keys = band_keys >> IGNORED_KEY_BITS
    in_order = np.sort(band_keys.T, axis=1)
    repeating = np.any(in_order[:, 1:] == in_order[:, :-1], axis=1)
    for column in np.flatnonzero(repeating).tolist():
        keys = band_keys[:, column]
        _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        for row in np.flatnonzero(counts[inverse] > 1).tolist():
            shared[row].append((column, int(inverse[row])))
    return shared
