"""*Blocking* (runs Spark jobs). Deduplicates an archive on Apache Spark."""

from streamdedup.spark.plan import Backfill, backfill, dedup

__all__ = ["Backfill", "backfill", "dedup"]
