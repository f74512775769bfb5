"""*Pure.* The similarity of pairs: from signatures, and from texts near the threshold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamdedup.columns import F64
from streamdedup.dedup.resolve import Rule
from streamdedup.dedup.rule import which_near
from streamdedup.sketch.texts import NOT_STORED, TextSimilarity
from streamdedup.spark.batches import Batches, Task, floats, rows_of

ESTIMATED = "a long, b long, estimate double, is_near boolean"
"""The schema of estimated pairs; at estimates that are near the threshold the texts decide."""
COMPARED = "a long, b long, estimate double, jaccard double"


def estimate(rule: Rule) -> Task:
    """Return the task that estimates pairs; those that are certainly below the threshold go.

    Its rows have the places ``a`` and ``b`` of two documents, and their signatures ``one`` and
    ``two``.
    """
    width = rule.codec.num_bytes

    def task(batches: Batches) -> Batches:
        for batch in batches:
            ones, others = (rows_of(batch.column(name), width) for name in ("one", "two"))
            estimates = rule.codec.estimate_jaccard(ones, others)
            near = is_near(estimates, rule)
            columns = {
                "a": batch.column("a"),
                "b": batch.column("b"),
                "estimate": pa.array(estimates),
                "is_near": pa.array(near),
            }
            stays = near | (estimates >= rule.threshold)
            yield pa.RecordBatch.from_pydict(columns).filter(pa.array(stays))

    return task


def is_near(estimates: F64, rule: Rule) -> NDArray[np.bool_]:
    """Return at which estimates the texts decide; at none if none are compared."""
    if rule.shingling is None:
        return np.zeros(len(estimates), dtype=np.bool_)
    return which_near(estimates, rule.threshold, rule.borderline)


def compare(rule: Rule) -> Task:
    """Return the task that compares texts; pairs below the threshold go.

    Its rows have places ``a`` and ``b``, ``estimate``, and the stored texts ``one`` and ``two``.
    A text that is not stored cannot be compared: the estimate decides.
    """

    def task(batches: Batches) -> Batches:
        if rule.shingling is None:
            raise ValueError("the rule compares no texts")
        texts = TextSimilarity(rule.shingling)
        for batch in batches:
            pairs = zip(*(batch.column(name).to_pylist() for name in ("one", "two")), strict=True)
            jaccards = [
                None if NOT_STORED in pair else texts.jaccard(pair[0], pair[1]) for pair in pairs
            ]
            columns = [batch.column(name) for name in ("a", "b", "estimate")]
            columns.append(pa.array(jaccards, pa.float64()))
            table = pa.RecordBatch.from_arrays(columns, ["a", "b", "estimate", "jaccard"])
            decides = np.where(
                table.column("jaccard").is_null(),
                floats(table, "estimate"),
                floats(table, "jaccard"),
            )
            yield table.filter(pa.array(decides >= rule.threshold))

    return task
