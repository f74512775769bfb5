"""*Blocking* (writes tables). What the steps of one run share."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from streamdedup.dedup.resolve import Rule
from streamdedup.settings.sections import Settings
from streamdedup.spark.sketching import PLACE
from streamdedup.spark.times import chain

_PART_DOCUMENTS, _MOST_PARTS = 1 << 17, 10_000
"""Consecutive documents that a task goes through in order; more if there were too many parts for
the driver, which knows the clock before each."""


class Workspace:
    """The settings of a run, its folder, and what is known so far.

    Args:
        frame: the archive.
        settings: all settings.
        path: an empty folder, on a file system that all executors share.

    Attributes:
        frame: the archive.
        settings: all settings.
        spark: the session.
        rule: what makes a duplicate.
        parameters: what the bits of a sketch depend on.
        documents: the number of rows, once they are counted.
        clocks: the clock before each part, see :func:`streamdedup.spark.times.chain`.
    """

    def __init__(self, frame: DataFrame, settings: Settings, path: str) -> None:
        self.frame = frame
        self.settings = settings
        self.spark = frame.sparkSession
        self.rule = Rule.from_settings(settings)
        self.parameters = settings.dedup.sketch_parameters()
        self.documents = 0
        self.clocks: Mapping[int, bytes] = chain([])
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
        parts = math.ceil(self.documents / size) or 1
        part = sf.floor(sf.col(PLACE) / size).cast("int").alias("part")
        divided = table.select(part, "*").repartitionById(parts, "part")
        return divided.sortWithinPartitions(PLACE, *ties)


def named(name: str) -> Column:
    """Return a column by its whole name, whatever characters that has."""
    return sf.col(f"`{name.replace('`', '``')}`")
