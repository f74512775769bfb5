"""*Blocking.* The Spark session of a command, and the files of its file systems."""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from streamdedup.errors import InputError, SettingsError, StreamdedupError

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
_JSON_LINES = re.compile(r"\.(?:jsonl|json|ndjson)[/*]*(?:\.(?:gz|bz2|zst|zstd))?\Z")
_SHOWN_CHARACTERS = 300  # of Spark's message


@contextmanager
def session(master: str | None, options: Mapping[str, str]) -> Iterator[SparkSession]:
    """Start Spark, or use the session of spark-submit; errors of Spark become our own.

    Without a master it runs as configured, else in this process.

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
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise SettingsError(
            f"Spark does not start ({_line(error)}); it needs Java 17 or newer, and a master and "
            "options that it knows"
        ) from None
    for number, handler in handlers.items():
        signal.signal(number, handler)  # Spark's own prints a traceback
    try:
        yield spark
        spark.stop()
    except (PySparkException, Py4JError) as error:
        spark.stop()
        raise InputError(f"Spark: {_line(error)}") from None
    except StreamdedupError:
        spark.stop()
        raise
    except BaseException:
        _end_java(spark)
        raise


def _end_java(spark: SparkSession) -> None:
    """End Java without a call, since the connection may be in the middle of one."""
    process: Any = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001
    if process is not None:  # else spark-submit's
        process.terminate()
        process.wait()


def _line(error: Exception) -> str:
    """Return the line of a message that says most: of a Python traceback the last one.

    Java's message is a list of causes. The last one that names an error of Spark counts, or else
    the last one.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Traceback (most recent call last)" in str(error):
        return lines[-1][:_SHOWN_CHARACTERS]
    causes = [line for line in lines if line.startswith((": ", "Caused by: "))]
    named = [line for line in causes if ": [" in line]
    line = [*lines[:1], *causes, *named][-1] if lines else type(error).__name__
    return line.removeprefix("Caused by").removeprefix(": ")[:_SHOWN_CHARACTERS]


def read(spark: SparkSession, inputs: list[str]) -> DataFrame:
    """Return the documents of Parquet or JSON Lines files, all of one kind, or of directories."""
    kinds = {_JSON_LINES.search(name) is not None for name in inputs}
    if len(kinds) > 1:
        raise InputError("the inputs are JSON Lines and Parquet; give files of one kind")
    if kinds == {True}:
        return spark.read.json(inputs)
    return spark.read.parquet(*inputs)


class Folder:
    """A folder on a file system that Spark knows."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        gateway: Any = spark.sparkContext._jvm  # noqa: SLF001 # PySpark has no other way
        configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._path = gateway.org.apache.hadoop.fs.Path(path)
        self._files = self._path.getFileSystem(configuration)

    def exists(self) -> bool:
        """Return whether it exists."""
        return bool(self._files.exists(self._path))

    def contains(self, other: Folder) -> bool:
        """Return whether another folder is this one, or below it."""
        return f"{other.qualified()}/".startswith(f"{self.qualified()}/")

    def qualified(self) -> str:
        """Return its whole path, with the file system."""
        return str(self._files.makeQualified(self._path))

    def remove(self) -> None:
        """Remove it, with everything in it."""
        self._files.delete(self._path, True)


@contextmanager
def removed(folder: Folder) -> Iterator[None]:
    """Remove a folder after the block, unless a signal has ended it."""
    try:
        yield
    except Exception:
        with suppress(Exception):  # the error of the block is the one to show
            folder.remove()
        raise
    folder.remove()
