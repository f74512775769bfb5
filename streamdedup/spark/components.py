"""*Blocking* (runs Spark jobs). Connected components of a graph that is too large for one process.

The algorithm is the alternation of large-star and small-star (Kiveris, Lattanzi, Mirrokni, Rastogi
and Vassilvitskii 2014, "Connected Components in MapReduce and Beyond", figures 2 to 5). A vertex's
component is its smallest vertex.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

_MOST_ROUNDS = 100
_OF_VERTEX = Window.partitionBy("u")


def connected_components(edges: DataFrame, store: Callable[[DataFrame, str], DataFrame]) -> DataFrame:
    """Return the component of each vertex that has an edge.

    Args:
        edges: columns ``a`` and ``b``, longs; no edge twice.
        store: writes a table under a name, and returns it as it was written: a table that is
            computed again may cost as much as all rounds before.

    Returns:
        Columns ``vertex`` and ``component``.
    """
    current = store(edges.select(F.col("a").alias("u"), F.col("b").alias("v")), "edges-0")
    before = None
    for number in range(1, _MOST_ROUNDS):
        starred = store(_small_star(_large_star(current)), f"edges-{number}")
        found = starred.agg(
            F.count("*"), F.sum(F.hash("u", "v").cast("long")), F.sum("u"), F.sum("v")
        ).first()
        current = starred
        if found == before:
            break
        before = found
    # Every edge now leads from a vertex to the smallest one of its component.
    vertices = current.select(F.col("u").alias("vertex"), F.col("v").alias("component"))
    roots = current.select(F.col("v").alias("vertex"), F.col("v").alias("component")).distinct()
    return vertices.unionByName(roots)


def _large_star(edges: DataFrame) -> DataFrame:
    """Connect the larger neighbours of each vertex with its smallest neighbour, or itself."""
    both = edges.unionByName(edges.select(F.col("v").alias("u"), F.col("u").alias("v")))
    return (
        both.withColumn("m", F.least("u", F.min("v").over(_OF_VERTEX)))
        .where(F.col("v") > F.col("u"))
        .select(F.col("v").alias("u"), F.col("m").alias("v"))
        .distinct()
    )


def _small_star(edges: DataFrame) -> DataFrame:
    """Connect the smaller neighbours of each vertex, and itself, with the smallest of them."""
    directed = edges.select(F.greatest("u", "v").alias("u"), F.least("u", "v").alias("v"))
    starred = directed.withColumn("m", F.min("v").over(_OF_VERTEX))
    others = starred.where(F.col("v") != F.col("m")).select(F.col("v").alias("u"), F.col("m"))
    own = starred.select("u", "m")
    return others.unionByName(own).select("u", F.col("m").alias("v")).distinct()
