"""*Blocking* (runs Spark jobs). The steps of a backfill, from the archive to its verdicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from streamdedup.dedup.resolve import Rule
from streamdedup.engine.arrow import TableFields
from streamdedup.errors import InputError
from streamdedup.settings.sections import RecordSettings, Settings
from streamdedup.spark import buckets, parts, verdicts
from streamdedup.spark.batches import PLACE
from streamdedup.spark.sketching import SKETCHES, sketch

_PART_DOCUMENTS, _MOST_PARTS = 1 << 17, 10_000
"""Consecutive documents that a task goes through in order; more if there were too many parts for
the driver, which knows the clock before each."""
_PART, _ROW, _START = "_part", "_row", "_start"
_OWN = (PLACE, _PART, _ROW, _START, "place", "outcome", "matches", "rejection")
"""Columns that the tables have in addition to those of the archive."""
_ROW_BITS = 33  # the lower bits of monotonically_increasing_id, which count the rows of a partition
_SLICE_BYTES = 48 * 1024**2
"""Size of a slice of the buckets, which a Python process sorts in memory."""
_DIVIDED_AT_ONCE = 1 << 16  # documents of which a Python process divides the buckets together
Store: TypeAlias = Callable[[DataFrame, str], DataFrame]
"""Writes a table under a name, and returns it as it was written."""


class Workspace:
    """The archive and the settings of a run, its folder, and what is known so far.

    All executors share the folder, which is empty at first.
    """

    def __init__(self, frame: DataFrame, settings: Settings, path: str) -> None:
        self.frame = frame
        self.settings = settings
        self.spark = frame.sparkSession
        self.rule = Rule.from_settings(settings)
        self.parameters = settings.dedup.sketch_parameters()
        self.documents = 0  # known once they are counted
        self.clocks: Mapping[int, bytes] = parts.chain([])
        self._path = path

    def store(self, table: DataFrame, name: str) -> DataFrame:
        """Write a table under a name, and return it as it was written."""
        table.write.parquet(f"{self._path}/{name}")
        return self.table(name)

    def table(self, name: str) -> DataFrame:
        """Return a table that was stored."""
        return self.spark.read.parquet(f"{self._path}/{name}")

    def in_parts(self, table: DataFrame, *ties: str) -> DataFrame:
        """Bring consecutive documents together, in order; ``part`` is the number of a part."""
        size = max(_PART_DOCUMENTS, math.ceil(self.documents / _MOST_PARTS))
        count = math.ceil(self.documents / size) or 1
        part = sf.floor(sf.col(PLACE) / size).cast("int").alias("part")
        divided = table.select(part, "*").repartitionById(count, "part")
        return divided.sortWithinPartitions(PLACE, *ties)


def named(name: str) -> Column:
    """Return a column by its whole name, whatever characters that has."""
    return sf.col(f"`{name.replace('`', '``')}`")


def check_columns(frame: DataFrame, settings: Settings, order: Sequence[str]) -> list[str]:
    """Return the columns that hold the fields of documents."""
    for name in frame.columns:
        if name.lower() in _OWN:  # Spark takes no notice of case
            message = f"the archive has a column {name!r}, as the result has; rename it first"
            raise InputError(message)
    known = f"its columns are {', '.join(frame.columns)}"
    for name in order:
        if name not in frame.columns:
            raise InputError(f"the archive has no column {name!r} to order it by; {known}")
    records = settings.records
    fields = [records.id_field, records.event_time_field, records.namespace_field]
    names = [*records.text_fields, *(field for field in fields if field)]
    tops = [name if name in frame.columns else name.split(".")[0] for name in names]
    for name in tops:
        if name not in (*frame.columns, RecordSettings.model_fields["id_field"].default):
            raise InputError(f"the archive has no column {name!r}; {known}")
    columns = [name for name in dict.fromkeys(tops) if name in frame.columns]
    # Other columns may have types that Arrow has not.
    empty = frame.select(*map(named, columns)).limit(0).toArrow()
    TableFields(empty.schema, records, "the archive")
    return columns


def place_rows(work: Workspace, order: Sequence[str]) -> DataFrame:
    """Order the archive, and number its rows."""
    id_field = work.settings.records.id_field
    ids = [id_field] if id_field and id_field in work.frame.columns else []
    hashed = [named(each.name) for each in work.frame.schema if _has_hash(each.dataType)]
    texts = [
        named(name) if name in work.frame.columns else sf.col(name)
        for name in work.settings.records.text_fields
    ]
    ordered = [*map(named, [*order, *ids]), sf.xxhash64(*texts, *hashed)]
    numbered = work.frame.orderBy(*ordered).select(
        "*",
        sf.spark_partition_id().alias(_PART),
        sf.monotonically_increasing_id().bitwiseAND(sf.lit(2**_ROW_BITS - 1)).alias(_ROW),
    )
    rows = work.store(numbered, "rows")
    start, starts = 0, []
    for part, count in rows.groupBy(_PART).count().orderBy(_PART).collect():
        starts.append((part, start))
        start += count
    work.documents = start
    table = work.spark.createDataFrame(starts, f"{_PART} int, {_START} long")
    place = (sf.col(_START) + sf.col(_ROW)).alias(PLACE)
    return rows.join(sf.broadcast(table), _PART).select(*map(named, work.frame.columns), place)


def sketch_rows(work: Workspace, rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the sketches of rows; the columns hold the fields of documents."""
    documents = rows.select(PLACE, *map(named, columns))
    return work.store(documents.mapInArrow(sketch(work.settings), SKETCHES), "sketches")


def tell_times(work: Workspace, sketches: DataFrame) -> DataFrame | None:
    """Return the clock and the effective time of each document; None without a window."""
    if work.settings.records.event_time_field is None:
        return None
    ordered = work.in_parts(
        sketches.where(sf.col("reason").isNull()).select(PLACE, "event_time_ms")
    )
    summaries = ordered.mapInArrow(parts.summarise, parts.SUMMARY).orderBy("part").collect()
    work.clocks = parts.chain(tuple(row) for row in summaries)
    if work.rule.window_ms < 0:
        return None
    clock = ordered.mapInArrow(parts.tell(work.clocks, work.rule.allowances), parts.TIMES)
    return work.store(clock, "times")


def _has_hash(kind: DataType) -> bool:
    """Return whether Spark computes hashes of a type: not of maps, whose entries have no order."""
    if isinstance(kind, StructType):
        return all(_has_hash(each.dataType) for each in kind)
    if isinstance(kind, ArrayType):
        return _has_hash(kind.elementType)
    return not isinstance(kind, MapType | VariantType)


def find_pairs(work: Workspace, sketches: DataFrame) -> DataFrame:
    """Return what the buckets tell, see :data:`streamdedup.spark.buckets.FOUND`."""
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
        verdicts.estimate(work.rule), verdicts.ESTIMATED
    )
    of_estimates = ["a", "b", "estimate", sf.lit(None).cast("double").alias("jaccard")]
    if work.rule.shingling is None:
        return work.store(estimated.select(*of_estimates), "edges")
    estimated = work.store(estimated, "estimated")
    near = _of_both(estimated.where("is_near"), needed, "text")
    compared = near.mapInArrow(verdicts.compare(work.rule), verdicts.COMPARED)
    others = estimated.where("not is_near").select(*of_estimates)
    return work.store(compared.unionByName(others), "edges")


def judge(
    work: Workspace,
    found: DataFrame,
    edges: DataFrame,
    components: DataFrame,
    sketches: DataFrame,
    clock: DataFrame | None,
) -> DataFrame:
    """Return the verdict on each document that has a copy or an edge."""
    # Each copy becomes one of the first document of its group.
    pairs = told(found, buckets.COPY)
    earlier = pairs.select(sf.col("a").alias("first"), sf.col("b").alias("a"))
    copies = pairs.join(earlier, "a", "left").select(sf.coalesce("first", "a").alias("a"), "b")
    copies = work.store(copies, "copies")
    firsts = edges.select("a").union(edges.select("b")).union(copies.select("a")).distinct()
    documents = firsts.select(sf.col("a").alias(PLACE), sf.col("a").alias("b")).union(
        copies.select("b", "a")
    )
    vertices = components.withColumnRenamed("vertex", "b")
    # If an estimate of 1 is near the threshold, the texts decide, and those of copies are equal.
    of_copies = sf.lit(None).cast("double")
    if verdicts.is_near(np.ones(1), work.rule)[0]:
        of_copies = sf.when(sf.length("text") > 0, 1.0)
    described = documents.join(vertices, "b", "left").join(
        sketches.select(PLACE, "id", "event_time_ms", of_copies.alias("jaccard")), PLACE
    )
    unknown = sf.lit(-1).cast("long")
    timed = (
        described.withColumns({"now_ms": unknown, "effective_time_ms": unknown})
        if clock is None
        else described.join(clock, PLACE)
    )
    members = timed.select(
        sf.coalesce("component", "b").alias("component"),
        sf.lit(verdicts.MEMBER).cast("byte").alias("kind"),
        sf.col(PLACE).alias("a"),
        "b",
        sf.lit(1.0).alias("estimate"),
        *("jaccard", "id", "event_time_ms", "effective_time_ms", "now_ms"),
    )
    kind = sf.lit(verdicts.EDGE).cast("byte")
    lines = edges.join(components.withColumnRenamed("vertex", "a"), "a").withColumn("kind", kind)
    ordered = (
        members.unionByName(lines, allowMissingColumns=True)
        .select(*verdicts.PARTS)
        .repartition("component")
        .sortWithinPartitions("component", "kind", "a", "b")
    )
    judged = ordered.mapInArrow(verdicts.judge_components(work.rule), verdicts.JUDGED)
    return work.store(judged, "judged")


def _of_both(pairs: DataFrame, documents: DataFrame, column: str) -> DataFrame:
    """Return pairs with a column of both documents, as ``one`` and ``two``."""
    for place, name in (("a", "one"), ("b", "two")):
        end = documents.select(sf.col(PLACE).alias(place), sf.col(column).alias(name))
        pairs = pairs.join(end, place)
    return pairs


def connected_components(edges: DataFrame, store: Store) -> DataFrame:
    """Return the component of each vertex that has an edge: its smallest vertex.

    The algorithm is the alternation of large-star and small-star (Kiveris, Lattanzi, Mirrokni,
    Rastogi and Vassilvitskii 2014, "Connected Components in MapReduce and Beyond", figures 2 to 5).
    The edges are columns ``a`` and ``b``, longs that differ, no edge twice; the result ``vertex``
    and ``component``. The table of each round is stored, so that no round is computed twice.
    """
    current = edges.select(sf.col("a").alias("u"), sf.col("b").alias("v"))
    before: Row | None = None
    for number in itertools.count(1):
        current = store(_small_star(_large_star(current)), f"round-{number}")
        # The sum of the hashes changes if any edge does, but for one case in 2^64.
        hashes = sf.sum(sf.xxhash64("u", "v").cast("decimal(38,0)"))
        found = current.agg(sf.count("*"), hashes).first()
        if found == before:
            break
        before = found
    # Every edge now leads from a vertex to the smallest one of its component.
    vertices = current.select(sf.col("u").alias("vertex"), sf.col("v").alias("component"))
    roots = vertices.select(sf.col("component").alias("vertex"), "component").distinct()
    return vertices.unionByName(roots)


def _large_star(edges: DataFrame) -> DataFrame:
    """Connect the larger neighbours of each vertex with its smallest neighbour, or itself."""
    both = edges.unionByName(edges.select(sf.col("v").alias("u"), sf.col("u").alias("v")))
    return (
        both.withColumn("m", sf.least("u", sf.min("v").over(Window.partitionBy("u"))))
        .where(sf.col("v") > sf.col("u"))
        .select(sf.col("v").alias("u"), sf.col("m").alias("v"))
        .distinct()
    )


def _small_star(edges: DataFrame) -> DataFrame:
    """Connect the smaller neighbours of each vertex, and itself, with the smallest of them."""
    directed = edges.select(sf.greatest("u", "v").alias("u"), sf.least("u", "v").alias("v"))
    starred = directed.withColumn("m", sf.min("v").over(Window.partitionBy("u")))
    others = starred.where(sf.col("v") != sf.col("m")).select(sf.col("v").alias("u"), "m")
    own = starred.select("u", "m")
    return others.unionByName(own).select("u", sf.col("m").alias("v")).distinct()
