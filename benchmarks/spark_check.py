"""*Pure.* Whether the duplicates of an archive are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.archives import Truth, similarity
from streamdedup.columns import I64

_MOST_CHECKED = 20_000
"""Pairs whose texts are compared."""
KEPT = -1


class Check(NamedTuple):
    """What a job found.

    Attributes:
        rows: documents with a verdict; a peer gives none for kept documents.
        repeated: documents with more than one verdict.
        exact_recall: share of the exact copies that are duplicates.
        near_recall: share of the near copies with at least the threshold's similarity.
        duplicates: documents that are duplicates.
        false: duplicates that are less similar to the document that they name than the threshold;
            an estimate from a sample if there are many.
        lowest: the smallest similarity of a duplicate with the document that it names, among
            those whose texts were compared; 1 if none was.
    """

    rows: int
    repeated: int
    exact_recall: float
    near_recall: float
    duplicates: int
    false: int
    lowest: float


def check(
    truth: Truth, rows: I64, originals: I64, threshold: float, texts: Callable[[I64], list[str]]
) -> Check:
    """Compare the verdicts with the truth.

    Args:
        truth: the copies of the archive.
        rows: places of the documents, in any order, ``(n,)``.
        originals: place of the document that each one repeats, or KEPT, ``(n,)``.
        threshold: similarity from which on a document is a duplicate.
        texts: returns the texts of documents by their places.
    """
    duplicate = originals != KEPT
    marked, named = rows[duplicate], originals[duplicate]
    exact = truth.similarities == 1
    near = (truth.similarities >= threshold) & ~exact
    right = _right(truth, marked, named, threshold)
    found = _similarities(marked[~right], named[~right], texts)
    compared = len(found)
    below = int((found < threshold).sum())
    return Check(
        rows=len(rows),
        repeated=len(rows) - len(np.unique(rows)),
        exact_recall=_share(np.isin(truth.copies[exact], marked)),
        near_recall=_share(np.isin(truth.copies[near], marked)),
        duplicates=len(marked),
        false=round(below * int((~right).sum()) / compared) if compared else 0,
        lowest=float(found.min(initial=1.0)),
    )


def _right(truth: Truth, marked: I64, named: I64, threshold: float) -> NDArray[np.bool_]:
    """Tell which pairs are planted, and similar enough, so that their texts need no look."""
    if not len(truth.copies):
        return np.zeros(len(marked), dtype=np.bool_)
    row = np.minimum(np.searchsorted(truth.copies, marked), len(truth.copies) - 1)
    planted = (truth.copies[row] == marked) & (truth.originals[row] == named)
    right: NDArray[np.bool_] = planted & (truth.similarities[row] >= threshold)
    return right


def _similarities(
    marked: I64, named: I64, texts: Callable[[I64], list[str]]
) -> NDArray[np.float64]:
    if len(marked) > _MOST_CHECKED:
        chosen = np.random.default_rng(0).choice(len(marked), _MOST_CHECKED, replace=False)
        marked, named = marked[chosen], named[chosen]
    pairs = zip(texts(marked), texts(named), strict=True)
    return np.array([similarity(one, other) for one, other in pairs], dtype=np.float64)


def _share(found: NDArray[np.bool_]) -> float:
    return float(found.mean()) if len(found) else 1.0
