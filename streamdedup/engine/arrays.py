"""*Pure.* Verdicts as arrays, for callers whose documents are a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import DUPLICATE, KEPT, OUTCOMES, JudgedVerdicts
from streamdedup.columns import F64
from streamdedup.engine.arrow import load

_OUTCOMES = np.array([outcome.value for outcome in OUTCOMES], dtype=object)


@dataclass(frozen=True, slots=True)
class VerdictArrays:
    """The verdicts on ``n`` documents, in their order.

    Attributes:
        kept: ``(n,)`` bool, whether each document is kept.
        outcome: ``(n,)`` strings: kept, duplicate or rejected.
        original: ``(n,)`` strings, the id of the kept document that a duplicate repeats; else None.
        jaccard_estimate: ``(n,)`` float64, its similarity, estimated; else NaN.
        jaccard: ``(n,)`` float64, the similarity of the texts, if it was computed; else NaN.
        reason: ``(n,)`` strings, why a document was rejected; else None.
    """

    kept: NDArray[np.bool_]
    outcome: NDArray[np.object_]
    original: NDArray[np.object_]
    jaccard_estimate: F64
    jaccard: F64
    reason: NDArray[np.object_]

    @classmethod
    def of(cls, verdicts: JudgedVerdicts) -> VerdictArrays:
        """Return the verdicts on a batch."""
        count = len(verdicts)
        original, reason = (np.full(count, None, dtype=object) for _ in range(2))
        estimate, jaccard = (np.full(count, np.nan) for _ in range(2))
        rows = np.flatnonzero(verdicts.outcomes == DUPLICATE)
        if len(rows):
            matches = verdicts.matches.take(verdicts.document_rows[rows])
            first = np.concatenate([[0], matches.ends[:-1]])
            original[rows] = matches.ids.take(first).tolist()
            estimate[rows], jaccard[rows] = matches.estimates[first], matches.jaccards[first]
        for row, rejection in verdicts.rejections.items():
            reason[row] = rejection.reason
        kept = verdicts.outcomes == KEPT
        return cls(kept, _OUTCOMES[verdicts.outcomes], original, estimate, jaccard, reason)

    def __len__(self) -> int:
        return len(self.kept)

    def to_arrow(self) -> Any:
        """Return a table of Arrow with the attributes as columns; NaN becomes null.

        Raises:
            InputError: pyarrow is not installed.
        """
        arrow = load()
        return arrow.table(
            {
                "kept": self.kept,
                "outcome": arrow.array(self.outcome, arrow.string()),
                "original": arrow.array(self.original, arrow.string()),
                "jaccard_estimate": arrow.array(self.jaccard_estimate, from_pandas=True),
                "jaccard": arrow.array(self.jaccard, from_pandas=True),
                "reason": arrow.array(self.reason, arrow.string()),
            }
        )
