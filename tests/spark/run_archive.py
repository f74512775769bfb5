"""Deduplicates an archive in a process of its own, which tests disturb.

``python -m tests.spark.run_archive MASTER INPUT OUT`` prints a line for each step as it ends. It
writes ``OUT/documents.parquet`` in order, ``OUT/sketches.parquet``, and Spark's events in
``OUT/events``.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from pyarrow import parquet
from pyspark.sql import SparkSession

from streamdedup.spark import backfill
from tests.spark.processes import DISTURBED, ENDED

STARTED = "start"
"""The step that ends when Spark has started."""
OPTIONS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.eventLog.compress": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.log.level": "OFF",
    # Else Spark would join the partitions of a small archive, and have few tasks to lose.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.files.maxPartitionBytes": "200k",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main(master: str, archive: str, out: Path) -> None:
    """Run."""
    warnings.simplefilter("ignore")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for name in ("events", "local"):
        (out / name).mkdir(parents=True)
    builder = SparkSession.builder.master(master)
    folders = {"spark.eventLog.dir": str(out / "events"), "spark.local.dir": str(out / "local")}
    for name, value in {**OPTIONS, **folders}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    report(STARTED)
    frame = spark.read.parquet(archive)
    result = backfill(frame, DISTURBED, "number", str(out / "work"), progress=report)
    parquet.write_table(result.frame.orderBy("place").toArrow(), out / "documents.parquet")
    parquet.write_table(result.sketches.toArrow(), out / "sketches.parquet")
    report("write")
    spark.stop()


def report(step: str, _seconds: float = 0.0) -> None:
    """Tell that a step has ended."""
    sys.stdout.write(f"{ENDED}{step}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
