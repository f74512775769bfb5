"""*Blocking.* Deduplicates an archive in a Spark process of its own, and prints what it cost.

    python -m benchmarks.spark_job streamdedup DOCUMENTS OUTPUT --documents 1000000

``streamdedup`` writes what the command ``backfill`` writes, with default settings. ``minhashlsh``
is Spark's own ``MinHashLSH``: sets of hashed shingles, a similarity join of the documents with
themselves, and the later document of each pair is a duplicate. OUTPUT has the columns id and
original; the original is null for a kept document. At the end this prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
from pyspark.ml.feature import HashingTF, MinHashLSH, NGram
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from benchmarks.measured import busy_seconds
from streamdedup.settings.sections import Settings
from streamdedup.spark.session import DEFAULTS
from tests.testkit.texts import SIZE

THRESHOLD = 0.8
CORES = 2
_FEATURES = 2**20
"""Numbers of hashed shingles: few shingles of two documents share one by chance."""


class Job(NamedTuple):
    """One job.

    Attributes:
        documents: the archive's documents.
        size: their number.
        work: an empty folder.
        tables: hash tables of ``MinHashLSH``.
        verify: how ``streamdedup`` compares documents, see ``dedup.verify``.
    """

    documents: DataFrame
    size: int
    work: Path
    tables: int
    verify: str


class Outcome(NamedTuple):
    """What a job found.

    Attributes:
        found: columns id and original.
        report: seconds by step, and counts; the steps do not include the writing of ``found``.
    """

    found: DataFrame
    report: dict[str, object]


def streamdedup(job: Job) -> Outcome:
    """Run the backfill with a window for all documents, and write what the command writes."""
    from streamdedup.spark import backfill  # noqa: PLC0415 - not for the peer

    settings = Settings.model_validate(
        {
            "dedup": {"verify": job.verify},
            "index": {"window_documents": job.size},
            "records": {"event_time_field": "time"},
        }
    )
    done = backfill(job.documents, settings, "time", str(job.work / "tables"))
    seconds = dict(done.seconds)
    for name, writer in (
        ("documents", done.frame.write.partitionBy("outcome")),
        ("sketches", done.sketches.write),
    ):
        started_at = time.perf_counter()
        writer.parquet(str(job.work / name))
        seconds[f"write {name}"] = time.perf_counter() - started_at
    written = job.documents.sparkSession.read.parquet(str(job.work / "documents"))
    original = F.when(F.col("outcome") == "duplicate", F.col("matches")[0]["id"])
    found = written.select("id", original.alias("original"))
    return Outcome(found, {"seconds": seconds, "counts": done.report})


def minhashlsh(job: Job) -> Outcome:
    """Join with Spark's own class: each table has one hash function, and any table finds a pair."""
    characters = F.split(F.lower("text"), "")
    grams = NGram(n=SIZE, inputCol="characters", outputCol="shingles")
    hashing = HashingTF(
        numFeatures=_FEATURES, binary=True, inputCol="shingles", outputCol="features"
    )
    shingled = grams.transform(job.documents.select("id", characters.alias("characters")))
    features = hashing.transform(shingled).select("id", "features")
    lsh = MinHashLSH(inputCol="features", outputCol="hashes", numHashTables=job.tables, seed=1)
    model = lsh.fit(features)
    hashed = model.transform(features).persist()
    # The distance must be less than the given one.
    joined = model.approxSimilarityJoin(hashed, hashed, 1 - THRESHOLD + 1e-9)
    pairs = joined.select(
        F.col("datasetA.id").alias("original"), F.col("datasetB.id").alias("id")
    ).where("original < id")
    return Outcome(pairs.groupBy("id").agg(F.min("original").alias("original")), {})


JOBS: dict[str, Callable[[Job], Outcome]] = {"streamdedup": streamdedup, "minhashlsh": minhashlsh}


def session(work: Path, memory: str, more: list[str]) -> SparkSession:
    """Start Spark in this process and a Java one, on this machine alone."""
    events = work / "events"
    events.mkdir(parents=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.local.dir": str(work / "scratch"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("benchmark")
    for name, value in (DEFAULTS | settings | dict(one.split("=", 1) for one in more)).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def processor_seconds() -> float:
    """Return the processor time of this process and its descendants, also of those that ended."""
    own = psutil.Process()
    times = [process.cpu_times() for process in [own, *own.children(recursive=True)]]
    return sum(one.user + one.system + one.children_user + one.children_system for one in times)


def main() -> None:
    """Run a job, and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("program", choices=JOBS)
    parser.add_argument("archive", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--documents", type=int, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--tables", type=int, default=3)
    parser.add_argument("--verify", default="estimate")
    parser.add_argument("--memory", default="4g")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    launched_at = psutil.Process().create_time()
    spark = session(arguments.work, arguments.memory, arguments.conf)
    job = Job(
        spark.read.parquet(str(arguments.archive)),
        arguments.documents,
        arguments.work,
        arguments.tables,
        arguments.verify,
    )
    start_s, started_at = time.time() - launched_at, time.perf_counter()
    spent_s, busy_s = processor_seconds(), busy_seconds()
    outcome = JOBS[arguments.program](job)
    outcome.found.write.parquet(str(arguments.output))
    seconds, cpu_s = time.perf_counter() - started_at, processor_seconds() - spent_s
    figures = {
        "start_s": start_s,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "other_load": max(0.0, busy_seconds() - busy_s - cpu_s) / seconds,
        "report": outcome.report,
    }
    spark.stop()
    print(json.dumps(figures, default=str), flush=True)


if __name__ == "__main__":
    main()
