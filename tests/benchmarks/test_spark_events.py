"""The event log of Spark is summed up; its lines are those of Spark 4."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.spark_events import read


def _end(reason: str, shuffled: int, spilled: int, collection_ms: int) -> str:
    return json.dumps(
        {
            "Event": "SparkListenerTaskEnd",
            "Task End Reason": {"Reason": reason},
            "Task Metrics": {
                "JVM GC Time": collection_ms,
                "Disk Bytes Spilled": spilled,
                "Shuffle Write Metrics": {"Shuffle Bytes Written": shuffled},
            },
        },
        separators=(",", ":"),
    )


def test_only_ends_of_tasks_count(tmp_path: Path) -> None:
    """A failed task may have no metrics."""
    lost = {"Event": "SparkListenerTaskEnd", "Task End Reason": {"Reason": "ExecutorLostFailure"}}
    lines = [
        '{"Event":"SparkListenerLogStart","Spark Version":"4.3.0"}',
        _end("Success", 100, 7, 1500),
        '{"Event":"SparkListenerStageCompleted","Stage Info":{"Stage ID":0}}',
        _end("ExceptionFailure", 11, 0, 250),
        json.dumps(lost, separators=(",", ":")),
    ]
    (tmp_path / "local-1").write_text("\n".join(lines) + "\n")
    assert read(tmp_path) == (3, 2, 111, 7, 1.75)
