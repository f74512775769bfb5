"""*Blocking.* What the tasks of a Spark application did, from its event log.

The log has a line of JSON for each event (Spark's ``JsonProtocol``); only the ends of tasks count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

_TASK_END = '{"Event":"SparkListenerTaskEnd"'


class Tasks(NamedTuple):
    """Sums over all tasks.

    Attributes:
        tasks: their number, failed ones too.
        failed: the number of failed ones.
        shuffled_bytes: written by shuffles, as they are on disk: compressed.
        spilled_bytes: written to disk because memory was short, apart from shuffles.
        collection_s: seconds of garbage collection.
    """

    tasks: int
    failed: int
    shuffled_bytes: int
    spilled_bytes: int
    collection_s: float


def read(folder: Path) -> Tasks:
    """Sum up the tasks of the one application whose log is in a folder."""
    tasks = failed = shuffled = spilled = collection_ms = 0
    (path,) = folder.iterdir()
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith(_TASK_END):
                continue
            event = json.loads(line)
            tasks += 1
            failed += event["Task End Reason"]["Reason"] != "Success"
            metrics = event.get("Task Metrics") or {}
            shuffled += metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0)
            spilled += metrics.get("Disk Bytes Spilled", 0)
            collection_ms += metrics.get("JVM GC Time", 0)
    return Tasks(tasks, failed, shuffled, spilled, collection_ms / 1000)
