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
_NEVER = 1e-3
"""A curve below this at the threshold finds nothing worth the name."""
_HALF = 0.5
_WANTED = 0.9
"""A recall that someone may want."""
_ALWAYS = 1.0 - 1e-9
"""A curve above this at the threshold has long been risen before it."""


class Banding(NamedTuple):
    """How a signature is cut: ``bands`` x ``rows`` of its values."""

    bands: int
    rows: int

    def __str__(self) -> str:
        return f"{self.bands} bands of {self.rows} rows"

    @property
    def values(self) -> int:
        """MinHash values that are cut up."""
        return self.bands * self.rows

    def swapped(self) -> Banding:
        """Return as many values, cut the other way."""
        return Banding(self.rows, self.bands)

    def candidate_probability(self, jaccard: float) -> float:
        """Return the S-curve's value: the probability that a pair shares a band."""
        agreement = jaccard**self.rows
        if agreement >= 1.0:
            return 1.0
        return -math.expm1(self.bands * math.log1p(-agreement))

    def random_candidates(self, corpus: int, background: float) -> float:
        """Return how many unrelated documents a lookup meets on average.

        Args:
            corpus: documents in the index.
            background: Jaccard similarity of unrelated documents.
        """
        return corpus * self.candidate_probability(background)

    def similarity_at(self, probability: float) -> float:
        """Return the Jaccard similarity at which the S-curve has this value, in [0, 1)."""
        agreement = -math.expm1(math.log1p(-probability) / self.bands)
        return float(agreement ** (1.0 / self.rows))

    def steepest(self) -> float:
        """Return the Jaccard similarity at which the S-curve rises fastest."""
        if self.rows == 1:
            return 0.0
        if self.bands == 1:
            return 1.0
        share = (1.0 - 1.0 / self.rows) / (self.bands - 1.0 / self.rows)
        return float(share ** (1.0 / self.rows))

    def rough_threshold(self) -> float:
        """Return ``(1/bands)^(1/rows)``, the usual approximation of :meth:`steepest`."""
        return float((1.0 / self.bands) ** (1.0 / self.rows))


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
    options = fitting_bands(threshold, recall, num_perm)
    for banding in options:
        if corpus * banding.bands * background**banding.rows < 1.0:
            return banding
    return options[-1]


def fitting_bands(threshold: float, recall: float, num_perm: int) -> list[Banding]:
    """Return, for each number of rows that fits, the fewest bands that reach the recall.

    Raises:
        ValueError: ``num_perm`` values cannot reach the recall.
    """
    options: list[Banding] = []
    for rows in range(1, num_perm + 1):
        bands = _bands_for(threshold, recall, rows)
        if bands * rows > num_perm:
            # Each further row asks for more bands too, so no larger number of rows fits.
            break
        options.append(Banding(bands, rows))
    if not options:
        raise ValueError(
            f"num_perm {num_perm} cannot reach recall {recall} at threshold {threshold}; "
            f"{_bands_for(threshold, recall, 1)} values would"
        )
    return options


def doubts(banding: Banding, threshold: float, recall: float, num_perm: int) -> list[str]:
    """Say what is wrong with bands and rows that someone has written down; best, nothing."""
    found = banding.candidate_probability(threshold)
    problems = []
    if found < _NEVER:
        problems.append(
            f"{banding}: the curve is 0 at {threshold:g} (probability {found:.2g}), so next to "
            "nothing would ever be found"
        )
    elif found > _ALWAYS:
        half = banding.similarity_at(_HALF)
        problems.append(
            f"{banding}: the curve is 1 at {threshold:g}, and has been from far below: every "
            f"second pair of similarity {half:.2g} is compared, in vain"
        )
    elif found < recall:
        problems.append(
            f"{banding} find {found:.1%} of the pairs at {threshold:g}, not the {recall:.4g} that "
            "is asked for"
        )
    if problems and _meant_the_other_way(banding, threshold, found):
        problems.append(
            f"did you mean {banding.swapped()}? They find "
            f"{banding.swapped().candidate_probability(threshold):.2%} at {threshold:g}"
        )
    if banding.values > num_perm:
        problems.append(f"{banding} need {banding.values} MinHash values, num_perm is {num_perm}")
    return problems


def _meant_the_other_way(banding: Banding, threshold: float, found: float) -> bool:
    """Whether the curve is far from a sensible one, and that of swapped bands and rows is not."""
    other = banding.swapped().candidate_probability(threshold)
    return (found < _HALF or found > _ALWAYS) and _WANTED <= other <= _ALWAYS


def _bands_for(threshold: float, recall: float, rows: int) -> int:
    agreement = threshold**rows
    if agreement >= 1.0:
        return 1
    bands = math.log1p(-recall) / math.log1p(-agreement)
    # A tiny slack keeps a quotient that is whole but for rounding from costing one more band;
    # a threshold near zero asks for more bands than any number of them.
    return max(1, math.ceil(min(bands, _MOST_BANDS) - 1e-9))
