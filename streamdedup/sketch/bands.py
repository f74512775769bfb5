"""*Pure.* Bands and rows: the S-curve, and the choice of bands for a recall.

A band is ``rows`` consecutive MinHash values. Two documents become candidates if all values of one
band agree, with probability ``1 - (1 - J^rows)^bands`` (Leskovec, Rajaraman, Ullman, *Mining of
Massive Datasets*, section 3.4).
"""

from __future__ import annotations

import math
from typing import NamedTuple

DEFAULT_CORPUS = 10_000_000
"""Number of documents in the index that the rows are chosen for."""
DEFAULT_BACKGROUND = 0.05
"""Jaccard similarity of unrelated documents that the rows are chosen for."""

_MOST_BANDS = 2.0**62
_NEVER = 1e-3  # a curve below this at the threshold finds almost nothing
_HALF = 0.5
_USEFUL = 0.9  # smallest useful recall of bands at the threshold
_SATURATED = 1.0 - 1e-9  # a curve above this at the threshold saturates well before the threshold


class Banding(NamedTuple):
    """How a signature is cut into ``bands`` of ``rows`` values each."""

    bands: int
    rows: int

    def __str__(self) -> str:
        return f"{self.bands} bands of {self.rows} rows"

    @property
    def values(self) -> int:
        """Number of MinHash values in all bands."""
        return self.bands * self.rows

    def candidate_probability(self, jaccard: float) -> float:
        """Return the value of the S-curve: the probability that a pair shares a band."""
        agreement = jaccard**self.rows
        if agreement >= 1.0:
            return 1.0
        return -math.expm1(self.bands * math.log1p(-agreement))

    def random_candidates(self, corpus: int, background: float) -> float:
        """Return how many of a corpus's documents, all unrelated, are candidates of a lookup."""
        return corpus * self.candidate_probability(background)

    def similarity_at(self, probability: float) -> float:
        """Return the Jaccard similarity at which the S-curve has this value in [0, 1)."""
        agreement = -math.expm1(math.log1p(-probability) / self.bands)
        return float(agreement ** (1.0 / self.rows))


def choose_bands(
    threshold: float,
    recall: float,
    num_perm: int,
    corpus: int = DEFAULT_CORPUS,
    background: float = DEFAULT_BACKGROUND,
) -> Banding:
    """Choose the bands for a recall, with the fewest rows that keep random candidates below one.

    For each number of rows, ``ceil(ln(1 - recall) / ln(1 - threshold^rows))`` is the smallest
    number of bands that reaches the recall. A lookup in a ``corpus`` of documents, whose unrelated
    ones have the Jaccard similarity ``background``, then has about ``corpus * bands *
    background^rows`` unrelated candidates. The result has the fewest rows that keep this number
    below one, or else the most rows that fit.

    The threshold is in (0, 1]. The recall, in (0, 1), is the share of the pairs at the threshold
    that must become candidates; a ValueError says that ``num_perm`` values cannot reach it.
    """
    options = fitting_bands(threshold, recall, num_perm)
    for banding in options:
        if corpus * banding.bands * background**banding.rows < 1.0:
            return banding
    return options[-1]


def fitting_bands(threshold: float, recall: float, num_perm: int) -> list[Banding]:
    """Return for each number of rows that fits the fewest bands that reach the recall.

    A ValueError says that ``num_perm`` values cannot reach the recall.
    """
    options: list[Banding] = []
    for rows in range(1, num_perm + 1):
        bands = _bands_for(threshold, recall, rows)
        if bands * rows > num_perm:
            # More rows also need more bands, so that no larger number of rows fits.
            break
        options.append(Banding(bands, rows))
    if not options:
        raise ValueError(
            f"num_perm {num_perm} cannot reach recall {recall} at threshold {threshold}; "
            f"that takes {_bands_for(threshold, recall, 1)} values; raise dedup.num_perm or "
            "dedup.threshold, or lower dedup.recall"
        )
    return options


def doubts(banding: Banding, threshold: float, recall: float, num_perm: int) -> list[str]:
    """Return a sentence for each problem of explicitly chosen bands and rows."""
    probability = banding.candidate_probability(threshold)
    problems = []
    if probability < _NEVER:
        problems.append(
            f"{banding}: the curve is 0 at {threshold:g} (probability {probability:.2g}), so that "
            "almost no duplicate is found"
        )
    elif probability > _SATURATED:
        half = banding.similarity_at(_HALF)
        problems.append(
            f"{banding}: the curve is 1 at {threshold:g} and saturates well before it; half of the "
            f"pairs of similarity {half:.2g} are compared needlessly"
        )
    elif probability < recall:
        problems.append(
            f"{banding} find {probability:.1%} of the pairs at {threshold:g}, less than "
            f"dedup.recall {recall:.4g}"
        )
    swapped = Banding(banding.rows, banding.bands)
    found = swapped.candidate_probability(threshold)
    is_useless = probability < _HALF or probability > _SATURATED
    if problems and is_useless and _USEFUL <= found <= _SATURATED:
        problems.append(f"did you mean {swapped}? They find {found:.2%} at {threshold:g}")
    if banding.values > num_perm:
        problems.append(
            f"{banding} need {banding.values} MinHash values, num_perm is {num_perm}, so that the "
            "settings refuse them; raise dedup.num_perm or lower dedup.bands or dedup.rows"
        )
    return problems


def _bands_for(threshold: float, recall: float, rows: int) -> int:
    """Return the smallest number of bands that reaches the recall."""
    agreement = threshold**rows
    if agreement >= 1.0:
        return 1
    bands = math.log1p(-recall) / math.log1p(-agreement)
    # The slack keeps rounding of a whole quotient from adding a band. A threshold near zero needs
    # infinitely many bands.
    return max(1, math.ceil(min(bands, _MOST_BANDS) - 1e-9))
