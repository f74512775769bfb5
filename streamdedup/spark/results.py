"""*Blocking* (runs Spark jobs). What a run returns: verdicts, kept sketches and counts."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from streamdedup.spark import buckets, handover
from streamdedup.spark.matching import told
from streamdedup.spark.sketching import PLACE
from streamdedup.spark.workspace import Workspace, named


def count_all(
    work: Workspace, sketches: DataFrame, found: DataFrame, edges: DataFrame, judged: DataFrame
) -> dict[str, int]:
    """Count documents by outcome, pairs and buckets; docs/backfill.md explains each count."""
    is_rejected = sf.col("reason").isNotNull()
    rejected = sf.count_if(is_rejected)
    blank = sf.count_if(sf.col("grp").isNull() & ~is_rejected)
    duplicates = _duplicates(judged).count()
    of_rows = _first(sketches.agg(rejected, blank))
    return {
        "documents": work.documents,
        "kept": work.documents - duplicates - of_rows[0],
        "duplicates": duplicates,
        "rejected": of_rows[0],
        "without_text": of_rows[1],
        "candidates": work.table("pairs").count(),
        "matches": edges.count(),
        "buckets_truncated": _count_truncated(work, found, judged),
        "buckets_bounded": told(found, buckets.BOUNDED).count(),
    }


def _count_truncated(work: Workspace, found: DataFrame, judged: DataFrame) -> int:
    """Count the buckets with more kept documents than the index would hold."""
    full = told(found, buckets.FULL).withColumnRenamed("b", "grp")
    kept = sf.count_if(sf.col("matches").isNull())
    dropped = judged.groupBy("grp").agg(kept.alias("kept")).where("kept = 0")
    sizes = full.join(dropped, "grp", "left_anti").groupBy("a").count()
    return int(sizes.where(sf.col("count") > work.rule.bucket_size).count())


def with_verdicts(
    work: Workspace, rows: DataFrame, sketches: DataFrame, judged: DataFrame
) -> DataFrame:
    """Return the rows with their verdicts."""
    rejection = sf.struct("stage", "reason", "message").alias("rejection")
    rejected = sketches.where(sf.col("reason").isNotNull()).select(PLACE, rejection)
    duplicates = _duplicates(judged).select(PLACE, "matches")
    others = duplicates.unionByName(rejected, allowMissingColumns=True)
    outcome = (
        sf.when(sf.col("matches").isNotNull(), "duplicate")
        .when(sf.col("rejection").isNotNull(), "rejected")
        .otherwise("kept")
    )
    return rows.join(others, PLACE, "left").select(
        *map(named, work.frame.columns),
        sf.col(PLACE).alias("place"),
        outcome.alias("outcome"),
        "matches",
        "rejection",
    )


def kept_sketches(work: Workspace, sketches: DataFrame, judged: DataFrame) -> DataFrame:
    """Return the kept sketches that the window needs, in order.

    A join would bring all sketches together by their places, and another step would sort them.
    """
    documents = sketches.where(sf.col("reason").isNull()).select(
        PLACE, sf.lit(True).alias("is_document"), *handover.SKETCHED
    )
    duplicates = _duplicates(judged).select(PLACE, sf.lit(False).alias("is_document"))
    both = documents.unionByName(duplicates, allowMissingColumns=True)
    keep = handover.keep(
        work.clocks, work.rule.allowances, work.rule.reach_ms, work.parameters.fingerprint()
    )
    return work.in_parts(both, "is_document").mapInArrow(keep, handover.KEPT)


def _duplicates(judged: DataFrame) -> DataFrame:
    return judged.where(sf.col("matches").isNotNull())


def _first(table: DataFrame) -> tuple[int, ...]:
    row = table.first()
    return tuple(row) if row is not None else ()
