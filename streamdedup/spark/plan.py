"""*Blocking* (runs Spark jobs). Deduplicates an archive, to the verdicts of a stream in its order.

The steps, each a table in the work folder. Nothing is computed twice, and what a lost executor has
not finished is done again from the table before:

1. ``rows``: the archive in order. A document's *place* is its number in it.
2. ``sketches``: by the kernels of the worker.
3. ``times``: the clock of the stream.
4. ``found``: pairs of documents that share a band key, and copies.
5. ``edges``: the pairs that match, by signatures and texts.
6. ``judged``: inside a connected component of edges and copies the order decides.

From step 2 on, every table is a function of ``rows``. Nothing that grows with the archive comes to
the driver, but for a few numbers for each million documents.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from streamdedup.dedup.resolve import Rule
from streamdedup.engine.arrow import TableFields
from streamdedup.errors import InputError, SettingsError
from streamdedup.settings.sections import Settings
from streamdedup.spark import buckets, handover, similarity, times, verdicts
from streamdedup.spark.components import connected_components
from streamdedup.spark.sketching import PLACE, SKETCHES, sketch

_PART, _ROW, _START = "_part", "_row", "_start"
_OWN = (PLACE, _PART, _ROW, _START, "place", "outcome", "matches", "rejection")
"""Columns that the tables have in addition to those of the archive."""
_ROW_BITS = 33
"""The lower bits of ``monotonically_increasing_id``, which count the rows of a partition."""
_SLICE_BYTES = 48 * 1024**2
"""Size of a slice of the buckets, which a Python process sorts in memory."""
_BATCH_BYTES = 32 * 1024**2
"""Bytes of slices that Spark hands to Python at once."""
_DIVIDED_AT_ONCE = 1 << 16
_PART_DOCUMENTS, _MOST_PARTS = 1 << 17, 10_000
"""Consecutive documents that a task goes through in order; more if there were too many parts for
the driver, which knows the clock before each."""
_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"

Progress = Callable[[str, float], None]
"""Called with the name and the seconds of each finished step."""


def _no_progress(_step: str, _seconds: float) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Backfill:
    """A deduplicated archive.

    Attributes:
        frame: the columns of the archive, and ``place`` (long, from 0), ``outcome`` (``kept``,
            ``duplicate`` or ``rejected``), ``matches`` (of a duplicate, best first: ``id``,
            ``place``, ``jaccard_estimate``, ``jaccard``, ``age_s``) and ``rejection`` (``stage``,
            ``reason``, ``message``).
        sketches: the kept sketches that the window needs, in order; docs/format.md has the columns.
        report: counts.
        seconds: how long each step took.
    """

    frame: DataFrame
    sketches: DataFrame
    report: dict[str, int]
    seconds: dict[str, float] = field(default_factory=dict)


def dedup(
    frame: DataFrame,
    settings: Settings | None = None,
    order: str | Sequence[str] = (),
    work: str | None = None,
) -> DataFrame:
    """Return a table with a verdict for each row.

    The verdicts are those of :class:`streamdedup.Deduplicator` over the rows in their order; see
    :func:`backfill`, which also returns counts and the sketches of the kept documents.
    """
    return backfill(frame, settings, order, work).frame


def backfill(
    frame: DataFrame,
    settings: Settings | None = None,
    order: str | Sequence[str] = (),
    work: str | None = None,
    progress: Progress = _no_progress,
) -> Backfill:
    """Deduplicate an archive.

    Args:
        frame: the archive; ``records`` in the settings names its columns.
        settings: all settings; ``dedup``, ``index``, ``limits``, ``records`` and
            ``output.max_matches`` are used.
        order: the columns that order the documents, nulls first; default: the event time. Rows that
            agree in them are ordered by id, then by a hash of all columns.
        work: an empty folder for tables, on a file system that all executors share. The result
            reads from it. Default: a temporary folder of this machine, if Spark runs on it alone.
        progress: called after each step.

    Raises:
        InputError: a column is missing, has the wrong type, or the name of a column of the result.
        SettingsError: no order or no work folder is known.
    """
    settings = Settings() if settings is None else settings
    order = [order] if isinstance(order, str) else list(order)
    if not order and settings.records.event_time_field:
        order = [settings.records.event_time_field]
    if not order:
        raise SettingsError(
            "the order of the archive is unknown; name its columns, or set "
            "records.event_time_field"
        )
    return _Run(frame, settings, order, work or _temporary(frame), progress).run()


def _temporary(frame: DataFrame) -> str:
    master = frame.sparkSession.conf.get("spark.master", "")
    if not str(master).startswith("local["):
        raise SettingsError(
            f"Spark runs on {master}; name a work folder on a file system that all executors share"
        )
    return tempfile.mkdtemp(prefix="streamdedup-backfill-")


class _Run:
    """One run; see :func:`backfill` for the arguments."""

    def __init__(
        self,
        frame: DataFrame,
        settings: Settings,
        order: Sequence[str],
        work: str,
        progress: Progress,
    ) -> None:
        self._frame = frame
        self._settings = settings
        self._order = order
        self._work = work
        self._progress = progress
        self._spark = frame.sparkSession
        self._rule = Rule.from_settings(settings)
        self._parameters = settings.dedup.sketch_parameters()
        self._seconds: dict[str, float] = {}
        self._allowances = self._rule.allowances
        self._clocks: dict[int, bytes] = times.chain([])
        self._columns = self._check_columns()

    def run(self) -> Backfill:
        """Run all steps."""
        with self._step("order"):
            rows = self._place_rows()
        with self._step("sketch"):
            sketches = self._sketch(rows)
        with self._step("clock"):
            clock = self._tell_times(sketches)
        with self._step("buckets"):
            found = self._find_pairs(sketches)
        with self._step("compare"):
            edges = self._compare(found, sketches)
        with self._step("components"):
            components = connected_components(edges.select("a", "b"), self._store)
        with self._step("judge"):
            judged = self._judge(found, edges, components, sketches, clock)
        with self._step("count"):
            report = self._count(sketches, found, edges, judged)
        frame = self._with_verdicts(rows, sketches, judged)
        kept = self._kept_sketches(sketches, judged)
        return Backfill(frame, kept, report, self._seconds)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self._spark.sparkContext.setJobDescription(f"streamdedup: {name}")
        started = time.monotonic()
        yield
        self._seconds[name] = time.monotonic() - started
        self._spark.sparkContext.setJobDescription("")
        self._progress(name, self._seconds[name])

    @contextmanager
    def _arrow_rows(self, count: int) -> Iterator[None]:
        """Hand so many rows at once to Python."""
        before = self._spark.conf.get(_ARROW_ROWS)
        self._spark.conf.set(_ARROW_ROWS, count)
        yield
        self._spark.conf.set(_ARROW_ROWS, before)

    def _store(self, table: DataFrame, name: str) -> DataFrame:
        path = f"{self._work}/{name}"
        table.write.parquet(path)
        return self._spark.read.schema(table.schema).parquet(path)

    def _check_columns(self) -> list[str]:
        """Return the columns that hold the fields of documents."""
        for name in self._frame.columns:
            if name.lower() in _OWN:  # Spark takes no notice of case
                raise InputError(
                    f"the archive has a column {name!r}, as the result has; rename it first"
                )
        for name in self._order:
            if name not in self._frame.columns:
                raise InputError(
                    f"the archive has no column {name!r} to order it by; its columns are "
                    f"{', '.join(self._frame.columns)}"
                )
        records = self._settings.records
        fields = [records.id_field, records.event_time_field, records.namespace_field]
        names = [*records.text_fields, *(field for field in fields if field)]
        tops = [name if name in self._frame.columns else name.split(".")[0] for name in names]
        columns = [name for name in dict.fromkeys(tops) if name in self._frame.columns]
        empty = self._frame.select(*map(_named, columns)).limit(0).toArrow()
        TableFields(empty.schema, records, "the archive")
        return columns

    def _place_rows(self) -> DataFrame:
        """Order the archive, and number its rows."""
        id_field = self._settings.records.id_field
        ids = [id_field] if id_field and id_field in self._frame.columns else []
        hashed = [_named(each.name) for each in self._frame.schema if _has_hash(each.dataType)]
        order = [*map(_named, [*self._order, *ids]), F.xxhash64(*hashed)]
        numbered = self._frame.orderBy(*order).select(
            "*",
            F.spark_partition_id().alias(_PART),
            F.monotonically_increasing_id().bitwiseAND(F.lit(2**_ROW_BITS - 1)).alias(_ROW),
        )
        rows = self._store(numbered, "rows")
        start, starts = 0, []
        for part, count in rows.groupBy(_PART).count().orderBy(_PART).collect():
            starts.append((part, start))
            start += count
        self._documents = start
        table = self._spark.createDataFrame(starts, f"{_PART} int, {_START} long")
        place = (F.col(_START) + F.col(_ROW)).alias(PLACE)
        return rows.join(F.broadcast(table), _PART).select(*map(_named, self._frame.columns), place)

    def _sketch(self, rows: DataFrame) -> DataFrame:
        documents = rows.select(PLACE, *map(_named, self._columns))
        return self._store(documents.mapInArrow(sketch(self._settings), SKETCHES), "sketches")

    def _tell_times(self, sketches: DataFrame) -> DataFrame | None:
        """Return the clock and the effective time of each document; None without a window."""
        if self._settings.records.event_time_field is None:
            return None
        ordered = self._in_parts(
            sketches.where(F.col("reason").isNull()).select(PLACE, "event_time_ms")
        )
        summaries = ordered.mapInArrow(times.summarise, times.SUMMARY).orderBy("part").collect()
        self._clocks = times.chain(tuple(row) for row in summaries)
        if self._rule.window_ms is None:
            return None
        told = ordered.mapInArrow(times.tell(self._clocks, self._allowances), times.TIMES)
        return self._store(told, "times")

    def _in_parts(self, table: DataFrame, *ties: str) -> DataFrame:
        """Bring consecutive documents together, in order; ``part`` is the number of a part."""
        size = max(_PART_DOCUMENTS, math.ceil(self._documents / _MOST_PARTS))
        parts = math.ceil(self._documents / size) or 1
        part = F.floor(F.col(PLACE) / size).cast("int").alias("part")
        divided = table.select(part, "*").repartitionById(parts, "part")
        return divided.sortWithinPartitions(PLACE, *ties)

    def _find_pairs(self, sketches: DataFrame) -> DataFrame:
        keys_each = self._parameters.bands + 1
        slices = max(1, math.ceil(self._documents * keys_each * buckets.ROW_BYTES / _SLICE_BYTES))
        at_once = min(_DIVIDED_AT_ONCE, max(1, self._documents))
        blob_bytes = at_once * keys_each * buckets.ROW_BYTES // slices
        divided = (
            sketches.where(F.col("grp").isNotNull())
            .select(PLACE, "grp", "band_keys")
            .mapInArrow(buckets.divide(slices, keys_each, at_once), buckets.SLICED)
            .repartitionById(slices, "slice")
        )
        paired = divided.mapInArrow(
            buckets.pair(self._rule.bucket_size, keys_each), buckets.FOUND
        )
        with self._arrow_rows(max(1, _BATCH_BYTES // max(1, blob_bytes))):
            return self._store(paired, "found")

    def _compare(self, found: DataFrame, sketches: DataFrame) -> DataFrame:
        """Return the pairs that match."""
        pairs = self._store(
            found.where(F.col("kind") == buckets.PAIR).select("a", "b").distinct(), "pairs"
        )
        ends = pairs.select(F.col("a").alias(PLACE)).union(pairs.select("b")).distinct()
        needed = self._store(
            sketches.select(PLACE, "signature", "text").join(ends, PLACE, "left_semi"), "needed"
        )
        estimated = _of_both(pairs, needed, "signature").mapInArrow(
            similarity.estimate(self._rule), similarity.ESTIMATED
        )
        if self._rule.shingling is None:
            edges = estimated.withColumn("jaccard", F.lit(None).cast("double"))
        else:
            edges = self._compare_texts(self._store(estimated, "estimated"), needed)
        return self._store(edges, "edges")

    def _compare_texts(self, estimated: DataFrame, needed: DataFrame) -> DataFrame:
        is_near = F.abs(F.col("estimate") - self._rule.threshold) <= self._rule.borderline
        near = _of_both(estimated.where(is_near), needed, "text")
        compared = near.mapInArrow(similarity.compare(self._rule), similarity.COMPARED)
        certain = estimated.where(~is_near)
        return compared.unionByName(certain.withColumn("jaccard", F.lit(None).cast("double")))

    def _judge(
        self,
        found: DataFrame,
        edges: DataFrame,
        components: DataFrame,
        sketches: DataFrame,
        clock: DataFrame | None,
    ) -> DataFrame:
        """Return the verdict on each document that has a copy or an edge."""
        copies = found.where(F.col("kind") == buckets.COPY).select("a", "b")
        firsts = edges.select("a").union(edges.select("b")).union(copies.select("a")).distinct()
        documents = firsts.select(F.col("a").alias(PLACE), F.col("a").alias("b")).union(
            copies.select("b", "a")
        )
        vertices = components.withColumnRenamed("vertex", "b")
        members = (
            documents.join(vertices, "b", "left")
            .join(sketches.select(PLACE, "id", "event_time_ms", self._of_copies()), PLACE)
            .transform(lambda table: self._with_times(table, clock))
            .select(
                F.coalesce("component", "b").alias("component"),
                F.lit(verdicts.MEMBER).cast("byte").alias("kind"),
                F.col(PLACE).alias("a"),
                "b",
                F.lit(1.0).alias("estimate"),
                "jaccard",
                "id",
                "event_time_ms",
                "effective_time_ms",
                "now_ms",
            )
        )
        kind = F.lit(verdicts.EDGE).cast("byte").alias("kind")
        lines = edges.join(components.withColumnRenamed("vertex", "a"), "a").withColumn("kind", kind)
        parts = members.unionByName(lines, allowMissingColumns=True)
        names = [each.name for each in T._parse_datatype_string(verdicts.PARTS)]
        ordered = (
            parts.select(*names)
            .repartition("component")
            .sortWithinPartitions("component", "kind", "a", "b")
        )
        judged = ordered.mapInArrow(verdicts.judge_components(self._rule), verdicts.JUDGED)
        return self._store(judged, "judged")

    def _of_copies(self) -> Column:
        """Return the similarity of the texts of copies where it decides, as ``jaccard``."""
        compares = self._rule.shingling is not None
        if compares and similarity.is_near(1.0, self._rule):
            return F.when(F.length("text") > 0, 1.0).alias("jaccard")
        return F.lit(None).cast("double").alias("jaccard")

    def _with_times(self, table: DataFrame, clock: DataFrame | None) -> DataFrame:
        if clock is None:
            unknown = F.lit(-1).cast("long")
            return table.withColumns({"now_ms": unknown, "effective_time_ms": unknown})
        return table.join(clock, PLACE)

    def _count(
        self, sketches: DataFrame, found: DataFrame, edges: DataFrame, judged: DataFrame
    ) -> dict[str, int]:
        is_rejected = F.col("reason").isNotNull()
        rejected = F.count_if(is_rejected)
        blank = F.count_if(F.col("grp").isNull() & ~is_rejected)
        of_rows = _first(sketches.agg(rejected, blank))
        duplicates = judged.where(F.col("matches").isNotNull()).count()
        return {
            "documents": self._documents,
            "kept": self._documents - duplicates - of_rows[0],
            "duplicates": duplicates,
            "rejected": of_rows[0],
            "without_text": of_rows[1],
            "candidates": self._spark.read.parquet(f"{self._work}/pairs").count(),
            "matches": edges.count(),
            "buckets_truncated": self._count_truncated(found, judged),
            "buckets_bounded": found.where(F.col("kind") == buckets.BOUNDED).count(),
        }

    def _count_truncated(self, found: DataFrame, judged: DataFrame) -> int:
        """Count the buckets with more kept documents than the index would hold."""
        full = found.where(F.col("kind") == buckets.FULL).select("a", F.col("b").alias("grp"))
        kept = F.count_if(F.col("matches").isNull())
        dropped = judged.groupBy("grp").agg(kept.alias("kept")).where("kept = 0")
        sizes = full.join(dropped, "grp", "left_anti").groupBy("a").count()
        return sizes.where(F.col("count") > self._rule.bucket_size).count()

    def _with_verdicts(
        self, rows: DataFrame, sketches: DataFrame, judged: DataFrame
    ) -> DataFrame:
        rejection = F.struct("stage", "reason", "message").alias("rejection")
        rejected = sketches.where(F.col("reason").isNotNull()).select(PLACE, rejection)
        duplicates = judged.where(F.col("matches").isNotNull()).select(PLACE, "matches")
        others = duplicates.unionByName(rejected, allowMissingColumns=True)
        outcome = (
            F.when(F.col("matches").isNotNull(), "duplicate")
            .when(F.col("rejection").isNotNull(), "rejected")
            .otherwise("kept")
        )
        return rows.join(others, PLACE, "left").select(
            *map(_named, self._frame.columns),
            F.col(PLACE).alias("place"),
            outcome.alias("outcome"),
            "matches",
            "rejection",
        )

    def _kept_sketches(self, sketches: DataFrame, judged: DataFrame) -> DataFrame:
        """Return the kept sketches that the window needs, in order.

        A join would bring all sketches together by their places, and another step would sort them.
        """
        documents = sketches.where(F.col("reason").isNull()).select(
            PLACE, F.lit(True).alias("is_document"), *handover.SKETCHED
        )
        duplicates = judged.where(F.col("matches").isNotNull()).select(
            PLACE, F.lit(False).alias("is_document")
        )
        both = documents.unionByName(duplicates, allowMissingColumns=True)
        keep = handover.keep(
            self._clocks, self._allowances, self._rule.reach_ms, self._parameters.fingerprint()
        )
        return self._in_parts(both, "is_document").mapInArrow(keep, handover.KEPT)


def _of_both(pairs: DataFrame, documents: DataFrame, column: str) -> DataFrame:
    """Return pairs with a column of both documents, as ``one`` and ``two``."""
    for place, name in (("a", "one"), ("b", "two")):
        end = documents.select(F.col(PLACE).alias(place), F.col(column).alias(name))
        pairs = pairs.join(end, place)
    return pairs


def _named(name: str) -> Column:
    """Return a column by its whole name, whatever characters that has."""
    return F.col(f"`{name.replace('`', '``')}`")


def _has_hash(kind: T.DataType) -> bool:
    """Tell whether Spark computes hashes of a type: not of maps, whose entries have no order."""
    if isinstance(kind, T.StructType):
        return all(_has_hash(each.dataType) for each in kind)
    if isinstance(kind, T.ArrayType):
        return _has_hash(kind.elementType)
    return not isinstance(kind, T.MapType | T.VariantType)


def _first(table: DataFrame) -> tuple[int, ...]:
    row = table.first()
    return tuple(row) if row is not None else ()
