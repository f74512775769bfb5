"""*Pure.* What the positions and the hits of a batch say about its documents."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import Candidates, SketchedBatch
from streamdedup.columns import I64, Positions
from streamdedup.dedup.judge import Hits

IGNORED_KEY_BITS = np.uint64(24)
"""Documents share a bucket if their band keys agree in the bits above these, in a batch as in the
index, which stores no others."""


def judged_within(batch: SketchedBatch) -> NDArray[np.bool_]:
    """Tell which documents have an offset that an earlier record of the batch reached or passed."""
    sources, of_rows = batch.positions.sources()
    judged = np.zeros(len(of_rows), dtype=np.bool_)
    for source in range(len(sources)):
        rows = np.flatnonzero(of_rows == source)
        offsets = batch.positions.offsets[rows]
        judged[rows[1:]] = offsets[1:] <= np.maximum.accumulate(offsets)[:-1]
    return judged[batch.rows]


def first_rows(positions: Positions, judged: NDArray[np.bool_]) -> I64:
    """Return the row in which the position of a document that was judged before first occurs.

    Args:
        positions: ``n`` positions.
        judged: ``(n,)``, which of them were judged before.

    Returns:
        ``(n,)`` int64; -1 for positions that were not judged before, and in the first row itself.
    """
    firsts = np.full(len(positions), -1, dtype=np.int64)
    if judged.any():
        _, of_rows = positions.sources()
        seen: dict[tuple[int, int], int] = {}
        places = zip(of_rows.tolist(), positions.offsets.tolist(), strict=True)
        for row, place in enumerate(places):
            first = seen.setdefault(place, row)
            if first != row and judged[row]:
                firsts[row] = first
    return firsts


def hits_of(candidates: Candidates) -> Hits:
    """Return the hits of a batch as the kernels need them."""
    numbers = candidates.numbers
    places = np.searchsorted(numbers, candidates.hit_numbers)
    if candidates.erased:
        erased = np.array(sorted(candidates.erased), dtype=np.int64)
        places = np.where(np.isin(candidates.hit_numbers, erased), -1, places)
    rows, columns = candidates.buckets.shape
    starts = np.zeros(rows * columns + 1, dtype=np.int64)
    cells = candidates.hit_rows * columns + candidates.hit_columns
    np.cumsum(np.bincount(cells, minlength=rows * columns), out=starts[1:])
    return Hits(starts, places, numbers)
