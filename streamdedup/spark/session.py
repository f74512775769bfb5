"""*Blocking.* The Spark session of a command, and the files of its file systems."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from streamdedup.errors import InputError, SettingsError

_LOCAL = {
    "spark.driver.memory": "4g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile="
    + Path(__file__).with_name("log4j2.properties").as_uri(),
    "spark.ui.enabled": "false",
}
"""What replaces Spark's defaults if it runs on this machine alone. Its own 1 GB is too little to
sort documents, it would listen on all addresses, and log more than errors."""
DEFAULTS = {
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64MB",
    "spark.sql.maxConcurrentOutputFileWriters": "3",
}
"""What replaces Spark's defaults everywhere. The last two save sorting whole documents: for a join
with the few duplicates, and for the folders of the outcomes."""
_JSON_LINES = (".jsonl", ".json", ".ndjson")
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".zstd")
_FIRST_LINE = 300
"""Characters of Spark's message that are shown."""


@contextmanager
def session(master: str | None, options: Mapping[str, str]) -> Iterator[SparkSession]:
    """Start Spark, or use the session of spark-submit; errors of Spark become our own.

    Args:
        master: where Spark runs; default: as configured, else in this process.
        options: of Spark.

    Raises:
        SettingsError: Spark does not start.
        InputError: Spark cannot read or write a file, or a step failed.
    """
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName("streamdedup backfill")
    chosen = {**DEFAULTS, "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    if not is_submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        is_local = (master or os.environ.get("MASTER", "local")).startswith("local")
        chosen |= _LOCAL if is_local and "SPARK_CONF_DIR" not in os.environ else {}
    if master is not None:
        builder = builder.master(master)
    for name, value in {**chosen, **options}.items():
        builder = builder.config(name, value)
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        # They would print errors with their stack trace, beside the line of this command.
        PySparkLogger.getLogger(name).disabled = True
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise SettingsError(
            f"Spark does not start ({_line(error)}); it needs Java 17 or newer, and a master that "
            "answers"
        ) from None
    try:
        yield spark
    except (PySparkException, Py4JError) as error:
        raise InputError(f"Spark: {_line(error)}") from None
    finally:
        spark.stop()


def _line(error: Exception) -> str:
    """Return the first line of a message; that of an exception in Python is its last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Traceback" in str(error):
        lines.reverse()
    return (lines[0] if lines else type(error).__name__)[:_FIRST_LINE]


def read(spark: SparkSession, inputs: list[str]) -> DataFrame:
    """Return the documents of Parquet or JSON Lines files, or of directories of them.

    Raises:
        InputError: the files are of both kinds.
    """
    kinds = {_is_json_lines(name) for name in inputs}
    if len(kinds) > 1:
        raise InputError("the inputs are JSON Lines and Parquet; give files of one kind")
    if kinds == {True}:
        return spark.read.json(inputs)
    return spark.read.parquet(*inputs)


def _is_json_lines(name: str) -> bool:
    for suffix in _COMPRESSIONS:
        name = name.removesuffix(suffix)
    return name.rstrip("/*").endswith(_JSON_LINES)


class Folder:
    """A folder on a file system that Spark knows.

    Args:
        spark: the session.
        path: the folder.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        gateway: Any = spark.sparkContext._jvm  # noqa: SLF001 # PySpark has no other way
        configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._path = gateway.org.apache.hadoop.fs.Path(path)
        self._files = self._path.getFileSystem(configuration)

    def exists(self) -> bool:
        """Tell whether it exists."""
        return bool(self._files.exists(self._path))

    def remove(self) -> None:
        """Remove it, with everything in it."""
        self._files.delete(self._path, True)
