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

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from streamdedup.errors import SettingsError
from streamdedup.settings.sections import Settings
from streamdedup.spark import buckets, parts, steps
from streamdedup.spark.batches import PLACE
from streamdedup.spark.steps import Workspace, named, told

Progress = Callable[[str, float], None]
"""Called with the name and the seconds of each finished step."""


@dataclass(frozen=True)
class Backfill:
    """A deduplicated archive.

    Attributes:
        frame: the columns of the archive, and ``place`` (long, from 0), ``outcome`` (``kept``,
            ``duplicate`` or ``rejected``), ``matches`` (of a duplicate, best first: ``id``,
            ``place``, ``jaccard_estimate``, ``jaccard``, ``age_s``) and ``rejection`` (``stage``,
            ``reason``, ``message``).
        sketches: the kept sketches that the window needs, in order; docs/internals/format.md has
            the columns.
        report: counts.
        seconds: how long each step took.
    """

    frame: DataFrame
    sketches: DataFrame
    report: dict[str, int]
    seconds: dict[str, float]


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
    progress: Progress | None = None,
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
            "the order of the archive is unknown; name its columns, or set records.event_time_field"
        )
    columns = steps.check_columns(frame, settings, order)
    if not work:
        master = frame.sparkSession.conf.get("spark.master", "")
        if not str(master).startswith("local["):
            raise SettingsError(
                f"Spark runs on {master}; name a work folder on a file system that all executors "
                "share"
            )
        work = tempfile.mkdtemp(prefix="streamdedup-backfill-")
    return _run(Workspace(frame, settings, work), columns, order, progress)


def _run(
    work: Workspace, columns: Sequence[str], order: Sequence[str], progress: Progress | None
) -> Backfill:
    seconds: dict[str, float] = {}
    context = work.spark.sparkContext

    @contextmanager
    def step(name: str) -> Iterator[None]:
        context.setJobDescription(f"streamdedup: {name}")
        started = time.monotonic()
        yield
        seconds[name] = time.monotonic() - started
        context.setJobDescription("")
        if progress is not None:
            progress(name, seconds[name])

    with step("order"):
        rows = steps.place_rows(work, order)
    with step("sketch"):
        sketches = steps.sketch_rows(work, rows, columns)
    with step("clock"):
        clock = steps.tell_times(work, sketches)
    with step("buckets"):
        found = steps.find_pairs(work, sketches)
    with step("compare"):
        edges = steps.compare(work, found, sketches)
    with step("components"):
        components = steps.connected_components(edges.select("a", "b"), work.store)
    with step("judge"):
        judged = steps.judge(work, found, edges, components, sketches, clock)
    with step("count"):
        report = _count_all(work, sketches, found, edges, judged)
    duplicates = judged.where("matches IS NOT NULL")
    frame = _with_verdicts(work, rows, sketches, duplicates)
    return Backfill(frame, _kept_sketches(work, sketches, duplicates), report, seconds)


def _count_all(
    work: Workspace, sketches: DataFrame, found: DataFrame, edges: DataFrame, judged: DataFrame
) -> dict[str, int]:
    """Count documents by outcome, pairs and buckets; docs/backfill.md explains each count."""
    is_rejected = sf.col("reason").isNotNull()
    is_blank = sf.col("grp").isNull() & ~is_rejected
    duplicates = judged.where("matches IS NOT NULL").count()
    [(rejected, blank)] = sketches.agg(sf.count_if(is_rejected), sf.count_if(is_blank)).collect()
    # Buckets with more kept documents than the index would hold are truncated.
    full = told(found, buckets.FULL).withColumnRenamed("b", "grp")
    kept = sf.count_if(sf.col("matches").isNull())
    dropped = judged.groupBy("grp").agg(kept.alias("kept")).where("kept = 0")
    sizes = full.join(dropped, "grp", "left_anti").groupBy("a").count()
    return {
        "documents": work.documents,
        "kept": work.documents - duplicates - rejected,
        "duplicates": duplicates,
        "rejected": rejected,
        "without_text": blank,
        "candidates": work.table("pairs").count(),
        "matches": edges.count(),
        "buckets_truncated": sizes.where(sf.col("count") > work.rule.bucket_size).count(),
        "buckets_bounded": told(found, buckets.BOUNDED).count(),
    }


def _with_verdicts(
    work: Workspace, rows: DataFrame, sketches: DataFrame, duplicates: DataFrame
) -> DataFrame:
    rejection = sf.struct("stage", "reason", "message").alias("rejection")
    rejected = sketches.where(sf.col("reason").isNotNull()).select(PLACE, rejection)
    matched = duplicates.select(PLACE, "matches")
    others = matched.unionByName(rejected, allowMissingColumns=True)
    outcome = (
        sf.when(sf.col("matches").isNotNull(), "duplicate")
        .when(sf.col("rejection").isNotNull(), "rejected")
        .otherwise("kept")
    )
    return rows.join(others, PLACE, "left").select(
        *map(named, work.frame.columns),
        sf.col(PLACE).alias("place"),
        outcome.alias("outcome"),
        *("matches", "rejection"),
    )


def _kept_sketches(work: Workspace, sketches: DataFrame, duplicates: DataFrame) -> DataFrame:
    """Return the kept sketches that the window needs, in order.

    A join would bring all sketches together by their places, and another step would sort them.
    """
    documents = sketches.where(sf.col("reason").isNull()).select(
        PLACE, sf.lit(True).alias("is_document"), *parts.SKETCHED
    )
    marks = duplicates.select(PLACE, sf.lit(False).alias("is_document"))
    both = documents.unionByName(marks, allowMissingColumns=True)
    rule, fingerprint = work.rule, work.parameters.fingerprint()
    keep = parts.keep(work.clocks, rule.allowances, rule.reach_ms, fingerprint)
    return work.in_parts(both, "is_document").mapInArrow(keep, parts.KEPT)
