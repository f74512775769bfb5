"""*Blocking* (runs Spark jobs). Deduplicates an archive on Apache Spark.

The public names are loaded on first use, so that most modules need no PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamdedup.spark.plan import Backfill, backfill, dedup

__all__ = ["Backfill", "backfill", "dedup"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("streamdedup.spark.plan"), name)
