"""*Blocking* (runs Spark jobs). Deduplicates an archive, to the verdicts of a stream in its order.

The steps, each a table in the work folder, so that nothing is computed twice and a lost executor
costs only its own part:

1. ``sketched``: sketches in Python, by the kernels of the worker.
2. ``documents``: sorted by the order, and numbered: the place is the offset in the stream.
3. ``buckets``: documents that share a band key, in pairs.
4. ``edges``: pairs with at least the threshold's similarity, from signatures joined once.
5. ``components``, ``judged``: inside a component the order decides.

Nothing that grows with the corpus comes to the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from streamdedup.dedup.resolve import Rule
from streamdedup.settings.sections import Settings
from streamdedup.spark import executors
from streamdedup.spark.components import connected_components

SKETCHED = (
    "id string, time_ms long, namespace long, signature binary, keys array<long>, grp long, "
    "text binary, blank boolean, reason string, message string"
)
_ROW_KEY = "row_a long, row_b long"


@dataclass(frozen=True)
class Archive:
    """The tables of a finished run.

    Attributes:
        verdicts: a row for each document.
        kept: the sketches of the kept documents.
        report: counts.
    """

    verdicts: DataFrame
    kept: DataFrame
    report: dict[str, int]


class _Run:
    """One run: the settings, and the work folder.

    Args:
        frame: the documents.
        settings: all settings; ``records`` names the columns.
        order: columns that order the documents.
        work: an empty folder, on any file system that all executors see.
    """

    def __init__(
        self, frame: DataFrame, settings: Settings, order: Sequence[str], work: str
    ) -> None:
        self._frame = frame
        self._settings = settings
        self._order = list(order)
        self._work = work
        self._rule = Rule.from_settings(settings)
        self._spark = frame.sparkSession

    def store(self, table: DataFrame, name: str) -> DataFrame:
        """Write a table to the work folder, and return it as it was written."""
        path = f"{self._work}/{name}"
        table.write.parquet(path)
        return self._spark.read.parquet(path)

    def sketched(self) -> DataFrame:
        names = self._settings.records.text_fields
        text = [F.col(name) for name in names]
        keyed = self._frame.select(
            *[F.col(name).alias(f"order_{number}") for number, name in enumerate(self._order)],
            F.xxhash64(*self._identity(text)).alias("row_a"),
            F.xxhash64(F.lit(1), *self._identity(text)).alias("row_b"),
            *self._columns(),
        )
        carried = [*(f"order_{number}" for number in range(len(self._order))), "row_a", "row_b"]
        kinds = [f"{name} {keyed.schema[name].dataType.simpleString()}" for name in carried]
        sketch = executors.sketch(self._settings, carried)
        return self.store(keyed.mapInArrow(sketch, ", ".join([*kinds, SKETCHED])), "sketched")

    def _columns(self) -> list[Column]:
        records = self._settings.records
        names = [*records.text_fields, records.id_field, records.event_time_field]
        names.append(records.namespace_field)
        tops = dict.fromkeys(name.split(".")[0] for name in names if name)
        return [F.col(name) for name in tops if name in self._frame.columns]

    def _identity(self, text: list[Column]) -> list[Column]:
        id_field = self._settings.records.id_field
        ids = [F.col(id_field)] if id_field and id_field in self._frame.columns else []
        return [*(F.col(name) for name in self._order), *ids, *text]

    def documents(self, sketched: DataFrame) -> DataFrame:
        """Number the documents in their order."""
        order = [f"order_{number}" for number in range(len(self._order))]
        ordered = sketched.orderBy(*order, "id", "row_a", "row_b").select(
            *[column for column in sketched.columns if column not in order],
            F.spark_partition_id().alias("part"),
            F.monotonically_increasing_id().bitwiseAND(F.lit(2**33 - 1)).alias("row"),
        )
        stored = self.store(ordered, "ordered")
        counts = stored.groupBy("part").count().orderBy("part").collect()
        starts, total = [], 0
        for part, count in counts:
            starts.append((part, total))
            total += count
        offsets = self._spark.createDataFrame(starts, "part int, start long")
        return stored.join(F.broadcast(offsets), "part").withColumn(
            "seq", F.col("start") + F.col("row")
        )
