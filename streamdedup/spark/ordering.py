"""*Blocking* (runs Spark jobs). The first steps: the archive in order, sketches and times."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from streamdedup.engine.arrow import TableFields
from streamdedup.errors import InputError
from streamdedup.settings.sections import RecordSettings, Settings
from streamdedup.spark import times
from streamdedup.spark.sketching import PLACE, SKETCHES, sketch
from streamdedup.spark.workspace import Workspace, named

_PART, _ROW, _START = "_part", "_row", "_start"
_OWN = (PLACE, _PART, _ROW, _START, "place", "outcome", "matches", "rejection")
"""Columns that the tables have in addition to those of the archive."""
_ROW_BITS = 33
"""The lower bits of ``monotonically_increasing_id``, which count the rows of a partition."""


def check_columns(frame: DataFrame, settings: Settings, order: Sequence[str]) -> list[str]:
    """Return the columns that hold the fields of documents."""
    for name in frame.columns:
        if name.lower() in _OWN:  # Spark takes no notice of case
            raise InputError(
                f"the archive has a column {name!r}, as the result has; rename it first"
            )
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
    summaries = ordered.mapInArrow(times.summarise, times.SUMMARY).orderBy("part").collect()
    work.clocks = times.chain(tuple(row) for row in summaries)
    if work.rule.window_ms < 0:
        return None
    told = ordered.mapInArrow(times.tell(work.clocks, work.rule.allowances), times.TIMES)
    return work.store(told, "times")


def _has_hash(kind: DataType) -> bool:
    """Tell whether Spark computes hashes of a type: not of maps, whose entries have no order."""
    if isinstance(kind, StructType):
        return all(_has_hash(each.dataType) for each in kind)
    if isinstance(kind, ArrayType):
        return _has_hash(kind.elementType)
    return not isinstance(kind, MapType | VariantType)
