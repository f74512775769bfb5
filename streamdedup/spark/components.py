"""*Blocking* (runs Spark jobs). Connected components of a graph that is too large for one process.

The algorithm is the alternation of large-star and small-star (Kiveris, Lattanzi, Mirrokni, Rastogi
and Vassilvitskii 2014, "Connected Components in MapReduce and Beyond", figures 2 to 5). A vertex's
component is its smallest vertex.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf

Store: TypeAlias = Callable[[DataFrame, str], DataFrame]
"""Writes a table under a name, and returns it as it was written."""


def connected_components(edges: DataFrame, store: Store) -> DataFrame:
    """Return the component of each vertex that has an edge.

    Args:
        edges: columns ``a`` and ``b``, longs that differ; no edge twice.
        store: where each round's table is written: without it, each round would compute all rounds
            before again.

    Returns:
        Columns ``vertex`` and ``component``.
    """
    current = edges.select(sf.col("a").alias("u"), sf.col("b").alias("v"))
    before: Row | None = None
    for number in count(1):
        current = store(_small_star(_large_star(current)), f"round-{number}")
        # The sum of the hashes changes if any edge does, but for one case in 2^64.
        found = current.agg(
            sf.count("*"), sf.sum(sf.xxhash64("u", "v").cast("decimal(38,0)"))
        ).first()
        if found == before:
            break
        before = found
    # Every edge now leads from a vertex to the smallest one of its component.
    vertices = current.select(sf.col("u").alias("vertex"), sf.col("v").alias("component"))
    roots = current.select(sf.col("v").alias("vertex"), sf.col("v").alias("component")).distinct()
    return vertices.unionByName(roots)


def _least_neighbour() -> Column:
    return sf.min("v").over(Window.partitionBy("u"))


def _large_star(edges: DataFrame) -> DataFrame:
    """Connect the larger neighbours of each vertex with its smallest neighbour, or itself."""
    both = edges.unionByName(edges.select(sf.col("v").alias("u"), sf.col("u").alias("v")))
    return (
        both.withColumn("m", sf.least("u", _least_neighbour()))
        .where(sf.col("v") > sf.col("u"))
        .select(sf.col("v").alias("u"), sf.col("m").alias("v"))
        .distinct()
    )


def _small_star(edges: DataFrame) -> DataFrame:
    """Connect the smaller neighbours of each vertex, and itself, with the smallest of them."""
    directed = edges.select(sf.greatest("u", "v").alias("u"), sf.least("u", "v").alias("v"))
    starred = directed.withColumn("m", _least_neighbour())
    others = starred.where(sf.col("v") != sf.col("m")).select(sf.col("v").alias("u"), "m")
    own = starred.select("u", "m")
    return others.unionByName(own).select("u", sf.col("m").alias("v")).distinct()
