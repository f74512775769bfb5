"""*Pure.* Bands and rows: the S-curve, and the choice that a recall asks for.

A band is ``rows`` consecutive MinHash values; two documents become candidates where one whole
band agrees, with probability ``1 - (1 - J^rows)^bands`` (Leskovec, Rajaraman, Ullman, *Mining of
Massive Datasets*, section 3.4).
"""

from __future__ import annotations

import math
from typing import NamedTuple

DEFAULT_CORPUS = 10_000_000
"""Documents in the index that the choice of rows plans for."""
DEFAULT_BACKGROUND = 0.05
"""Jaccard similarity of two unrelated documents that the choice of rows plans for."""

_MOST_BANDS = 2.0**62


class Banding(NamedTuple):
    """How a signature is cut: ``bands`` x ``rows`` of its values."""

    bands: int
    rows: int

    def candidate_probability(self, jaccard: float) -> float:
        """Return the S-curve's value: the probability that a pair shares a band."""
        return 1.0 - (1.0 - jaccard**self.rows) ** self.bands


def choose_bands(
    threshold: float,
    recall: float,
    num_perm: int,
    corpus: int = DEFAULT_CORPUS,
    background: float = DEFAULT_BACKGROUND,
) -> Banding:
    """Choose bands by recall first, then as few rows as keep random candidates below one.

    For each number of rows the bands are ``ceil(ln(1 - recall) / ln(1 - threshold^rows))``, the
    fewest that reach the recall at the threshold. A lookup then meets about
    ``corpus * bands * background^rows`` unrelated documents; the fewest rows that keep this below
    one win, or the most rows that fit where none does.

    Args:
        threshold: Jaccard similarity in (0, 1].
        recall: share of the pairs at the threshold that must become candidates, in (0, 1).
        num_perm: MinHash values to cut up.
        corpus: documents in the index.
        background: Jaccard similarity of unrelated documents.

    Raises:
        ValueError: ``num_perm`` values cannot reach the recall.
    """
    best: Banding | None = None
    for rows in range(1, num_perm + 1):
        bands = _bands_for(threshold, recall, rows)
        if bands * rows > num_perm:
            # Each further row asks for more bands too, so no larger number of rows fits.
            break
        best = Banding(bands, rows)
        if corpus * bands * background**rows < 1.0:
            break
    if best is None:
        raise ValueError(
            f"num_perm {num_perm} cannot reach recall {recall} at threshold {threshold}; "
            f"{_bands_for(threshold, recall, 1)} values would"
        )
    return best


def _bands_for(threshold: float, recall: float, rows: int) -> int:
    agreement = threshold**rows
    if agreement >= 1.0:
        return 1
    bands = math.log1p(-recall) / math.log1p(-agreement)
    # A tiny slack keeps a quotient that is whole but for rounding from costing one more band;
    # a threshold near zero asks for more bands than any number of them.
    return max(1, math.ceil(min(bands, _MOST_BANDS) - 1e-9))
