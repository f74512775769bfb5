"""*Pure.* Whether each source record has exactly one verdict, and whether the verdicts are right.

The document at place ``p`` of a stream is in partition ``p % partitions``, at offset
``p // partitions``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamdedup.columns import I64
from tests.testkit.documents import Plan


class Check(NamedTuple):
    """What the output topics say about a stream.

    Attributes:
        missing: source records without an output record.
        repeated: source records with more than one output record.
        unknown: output records of positions that the source does not have.
        exact_recall: share of the planted exact copies that are duplicates.
        near_recall: share of the planted near copies that are duplicates.
        false_drops: documents that repeat nothing, and are duplicates.
    """

    missing: int
    repeated: int
    unknown: int
    exact_recall: float
    near_recall: float
    false_drops: int

    @property
    def exactly_once(self) -> bool:
        """Whether each source record has one output record, and no output record is unknown."""
        return not (self.missing or self.repeated or self.unknown)


def check(planned: Plan, clean: I64, duplicates: I64) -> Check:
    """Compare the output topics with the plan of their source.

    Args:
        planned: the plan of all source records.
        clean: places of the records of the clean topic, in any order.
        duplicates: places of the records of the duplicates topic, in any order.
    """
    count = len(planned.originals)
    places = np.concatenate([clean, duplicates])
    known = (places >= 0) & (places < count)
    outputs = np.bincount(places[known], minlength=count)
    dropped = np.zeros(count, dtype=np.bool_)
    dropped[duplicates[(duplicates >= 0) & (duplicates < count)]] = True
    exact, near = planned.copies & ~planned.near, planned.copies & planned.near
    return Check(
        missing=int((outputs == 0).sum()),
        repeated=int((outputs > 1).sum()),
        unknown=int((~known).sum()),
        exact_recall=_share(dropped[exact].sum(), exact.sum()),
        near_recall=_share(dropped[near].sum(), near.sum()),
        false_drops=int((dropped & ~planned.copies).sum()),
    )


def place(partition: int, offset: int, partitions: int) -> int:
    """Return the place of a record in its stream."""
    return offset * partitions + partition


def _share(part: int, whole: int) -> float:
    return int(part) / int(whole) if whole else 1.0
