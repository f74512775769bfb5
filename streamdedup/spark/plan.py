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

from streamdedup.errors import SettingsError
from streamdedup.settings.sections import Settings
from streamdedup.spark import matching, ordering, results
from streamdedup.spark.components import connected_components
from streamdedup.spark.workspace import Workspace

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
            "the order of the archive is unknown; name its columns, or set records.event_time_field"
        )
    columns = ordering.check_columns(frame, settings, order)
    workspace = Workspace(frame, settings, work or _temporary(frame))
    return _run(workspace, columns, order, progress)


def _temporary(frame: DataFrame) -> str:
    master = frame.sparkSession.conf.get("spark.master", "")
    if not str(master).startswith("local["):
        raise SettingsError(
            f"Spark runs on {master}; name a work folder on a file system that all executors share"
        )
    return tempfile.mkdtemp(prefix="streamdedup-backfill-")


def _run(
    work: Workspace, columns: Sequence[str], order: Sequence[str], progress: Progress
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
        progress(name, seconds[name])

    with step("order"):
        rows = ordering.place_rows(work, order)
    with step("sketch"):
        sketches = ordering.sketch_rows(work, rows, columns)
    with step("clock"):
        clock = ordering.tell_times(work, sketches)
    with step("buckets"):
        found = matching.find_pairs(work, sketches)
    with step("compare"):
        edges = matching.compare(work, found, sketches)
    with step("components"):
        components = connected_components(edges.select("a", "b"), work.store)
    with step("judge"):
        judged = matching.judge(work, found, edges, components, sketches, clock)
    with step("count"):
        report = results.count_all(work, sketches, found, edges, judged)
    return Backfill(
        results.with_verdicts(work, rows, sketches, judged),
        results.kept_sketches(work, sketches, judged),
        report,
        seconds,
    )
