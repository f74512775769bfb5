"""*Blocking.* Spark in processes of their own: what they run, how they end, and who must die."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from deploy.processes import Child
from streamdedup import Settings
from tests.support.paths import ROOT

LIMIT_S = 240.0
"""How long a process may take."""
EXECUTOR, PYTHON = "executor", "Python worker"
"""Whom a test kills: the JVM of an executor, or a process of PySpark's daemon."""
DISTURBED = Settings.model_validate(
    {
        "dedup": {"verify": "exact"},
        "index": {"window": "2h", "allowed_lateness": "30s"},
        "records": {"event_time_field": "time"},
    }
)
"""The settings of runs that are disturbed: all steps have something to do."""


ENDED = "ended: "
"""The begin of the line that a run prints when a step has ended."""


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a process that runs Spark on the loopback interface only."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **changes,
    }


def family(process: psutil.Process) -> list[psutil.Process]:
    """Return the processes that a process has started, and those that these have started."""
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def command_line(process: psutil.Process) -> str:
    """Return the command of a process; nothing if it has ended."""
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return " ".join(process.cmdline())
    return ""


def end_all(processes: list[psutil.Process]) -> None:
    """Kill processes that a test has started, and that have not ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


class Run(Child):
    """``tests.spark.run_archive`` in a process of its own, which ends with the context.

    Args:
        master: where Spark runs.
        archive: Parquet files.
        out: a folder that does not exist.
        env: changes to the environment.
    """

    def __init__(self, master: str, archive: Path, out: Path, **env: str) -> None:
        command = [sys.executable, "-m", "tests.spark.run_archive", master, str(archive), str(out)]
        self._out = out
        super().__init__(command, out.with_suffix(".log"), environment(**env))

    def __exit__(self, *_: object) -> None:
        # The processes of PySpark's daemon lead a group of their own.
        started = self._family()
        self.kill()
        end_all(started)

    def _family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return family(psutil.Process(self.pid))
        return []

    @property
    def step(self) -> int:
        """The number of steps that have ended; 0 before Spark has started."""
        return sum(line.startswith(ENDED) for line in self.log().splitlines())

    def victims(self, kind: str) -> list[psutil.Process]:
        """Return the processes of a kind that are alive."""
        if kind == EXECUTOR:
            return [
                process
                for process in self._family()
                if "CoarseGrainedExecutorBackend" in command_line(process)
            ]
        return [
            worker
            for process in self._family()
            if "pyspark.daemon" in command_line(process)
            for worker in family(process)
        ]

    def finish(self) -> None:
        """Wait until the process has ended well."""
        assert self.wait(LIMIT_S) == 0, self.log()

    def lost_tasks(self) -> Counter[str]:
        """Return how many tasks were lost in each step, as Spark tells."""
        steps: dict[int, str] = {}
        lost: Counter[str] = Counter()
        for event in self._events():
            if event["Event"] == "SparkListenerStageSubmitted":
                step = event["Properties"].get("spark.job.description") or "write"
                steps[event["Stage Info"]["Stage ID"]] = step.removeprefix("streamdedup: ")
            elif (
                event["Event"] == "SparkListenerTaskEnd"
                and event["Task End Reason"]["Reason"] != "Success"
            ):
                lost[steps[event["Stage ID"]]] += 1
        return lost

    def lost_executors(self) -> int:
        """Return how many executors died, as Spark tells."""
        return sum(event["Event"] == "SparkListenerExecutorRemoved" for event in self._events())

    def _events(self) -> Iterator[dict[str, Any]]:
        [log] = (self._out / "events").iterdir()
        for line in log.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def is_busy(process: psutil.Process, seconds: dict[int, float]) -> bool:
    """Tell whether a process has used the processor since the last look at it."""
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        now, before = times.user + times.system, seconds.get(process.pid)
        seconds[process.pid] = now
        return before is not None and now > before
    return False


def kill(process: psutil.Process) -> None:
    """End a process at once, wherever it is."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)
