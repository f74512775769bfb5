"""*Blocking* (runs Spark jobs). The steps from sketches to verdicts."""

from __future__ import annotations

import math

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from streamdedup.spark import buckets, similarity, verdicts
from streamdedup.spark.sketching import PLACE
from streamdedup.spark.workspace import Workspace

_SLICE_BYTES = 48 * 1024**2
"""Size of a slice of the buckets, which a Python process sorts in memory."""
_DIVIDED_AT_ONCE = 1 << 16
"""Documents of which a Python process divides the buckets together."""


def find_pairs(work: Workspace, sketches: DataFrame) -> DataFrame:
    """Return what the buckets tell, see :mod:`streamdedup.spark.buckets`."""
    keys_each = work.parameters.bands + 1
    slices = max(1, math.ceil(work.documents * keys_each * buckets.ROW_BYTES / _SLICE_BYTES))
    divided = (
        sketches.where(sf.col("grp").isNotNull())
        .select(PLACE, "grp", "band_keys")
        .mapInArrow(buckets.divide(slices, keys_each, _DIVIDED_AT_ONCE), buckets.SLICED)
        .repartitionById(slices, "slice")
    )
    paired = divided.mapInArrow(buckets.pair(work.rule.bucket_size, keys_each), buckets.FOUND)
    return work.store(paired, "found")


def told(found: DataFrame, kind: int) -> DataFrame:
    """Return what the buckets tell of one kind."""
    return found.where(sf.col("kind") == kind).select("a", "b")


def compare(work: Workspace, found: DataFrame, sketches: DataFrame) -> DataFrame:
    """Return the pairs that match."""
    pairs = work.store(told(found, buckets.PAIR).distinct(), "pairs")
    ends = pairs.select(sf.col("a").alias(PLACE)).union(pairs.select("b")).distinct()
    needed = work.store(
        sketches.select(PLACE, "signature", "text").join(ends, PLACE, "left_semi"), "needed"
    )
    estimated = _of_both(pairs, needed, "signature").mapInArrow(
        similarity.estimate(work.rule), similarity.ESTIMATED
    )
    if work.rule.shingling is None:
        edges = _without_texts(estimated)
    else:
        estimated = work.store(estimated, "estimated")
        near = _of_both(estimated.where("is_near"), needed, "text")
        compared = near.mapInArrow(similarity.compare(work.rule), similarity.COMPARED)
        edges = compared.unionByName(_without_texts(estimated.where("not is_near")))
    return work.store(edges, "edges")


def _without_texts(estimated: DataFrame) -> DataFrame:
    """Return pairs whose estimates decide."""
    return estimated.select("a", "b", "estimate", sf.lit(None).cast("double").alias("jaccard"))


def judge(
    work: Workspace,
    found: DataFrame,
    edges: DataFrame,
    components: DataFrame,
    sketches: DataFrame,
    clock: DataFrame | None,
) -> DataFrame:
    """Return the verdict on each document that has a copy or an edge."""
    copies = work.store(_copies(found), "copies")
    firsts = edges.select("a").union(edges.select("b")).union(copies.select("a")).distinct()
    documents = firsts.select(sf.col("a").alias(PLACE), sf.col("a").alias("b")).union(
        copies.select("b", "a")
    )
    vertices = components.withColumnRenamed("vertex", "b")
    members = (
        documents.join(vertices, "b", "left")
        .join(sketches.select(PLACE, "id", "event_time_ms", _of_copies(work)), PLACE)
        .transform(lambda table: _with_times(table, clock))
        .select(
            sf.coalesce("component", "b").alias("component"),
            sf.lit(verdicts.MEMBER).cast("byte").alias("kind"),
            sf.col(PLACE).alias("a"),
            "b",
            sf.lit(1.0).alias("estimate"),
            "jaccard",
            "id",
            "event_time_ms",
            "effective_time_ms",
            "now_ms",
        )
    )
    kind = sf.lit(verdicts.EDGE).cast("byte").alias("kind")
    lines = edges.join(components.withColumnRenamed("vertex", "a"), "a").withColumn("kind", kind)
    parts = members.unionByName(lines, allowMissingColumns=True)
    ordered = (
        parts.select(*verdicts.PARTS)
        .repartition("component")
        .sortWithinPartitions("component", "kind", "a", "b")
    )
    judged = ordered.mapInArrow(verdicts.judge_components(work.rule), verdicts.JUDGED)
    return work.store(judged, "judged")


def _copies(found: DataFrame) -> DataFrame:
    """Return the first document of each group as ``a``, and each copy of it as ``b``."""
    copies = told(found, buckets.COPY)
    firsts = copies.select(sf.col("a").alias("first"), sf.col("b").alias("a"))
    return copies.join(firsts, "a", "left").select(sf.coalesce("first", "a").alias("a"), "b")


def _of_copies(work: Workspace) -> Column:
    """Return the similarity of the texts of copies where it decides, as ``jaccard``."""
    if similarity.is_near(np.ones(1), work.rule)[0]:
        return sf.when(sf.length("text") > 0, 1.0).alias("jaccard")
    return sf.lit(None).cast("double").alias("jaccard")


def _with_times(table: DataFrame, clock: DataFrame | None) -> DataFrame:
    if clock is None:
        unknown = sf.lit(-1).cast("long")
        return table.withColumns({"now_ms": unknown, "effective_time_ms": unknown})
    return table.join(clock, PLACE)


def _of_both(pairs: DataFrame, documents: DataFrame, column: str) -> DataFrame:
    """Return pairs with a column of both documents, as ``one`` and ``two``."""
    for place, name in (("a", "one"), ("b", "two")):
        end = documents.select(sf.col(PLACE).alias(place), sf.col(column).alias(name))
        pairs = pairs.join(end, place)
    return pairs
