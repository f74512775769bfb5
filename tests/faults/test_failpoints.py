"""A fault at each step of a batch's life, many times: nothing is lost, doubled or judged otherwise.

``make test-faults`` runs a few seeds per fail-point, ``make test-faults SEEDS=20`` more.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from tests.support import topics
from tests.support.faulty import Action, Fault
from tests.support.feed import PARTITIONS, Feed
from tests.support.oracle import assert_undisturbed
from tests.support.patience import PATIENCE_S
from tests.support.points import POINTS
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.kafka, pytest.mark.faults]

SEEDS = int(os.environ.get("STREAMDEDUP_TEST_SEEDS", "3"))
OFTEN = frozenset(
    {"poll", "pool", "judge", "stage", "begin", "produce", "offsets", "commit", "confirm"}
)
"""Points that every batch reaches; the others are hit at their first turn."""
OF_EDGES = frozenset({"append", "lane", "pair", "write"})
"""Points that a worker never reaches; tests/faults/test_split.py has them."""
ACTIONS: tuple[Action, ...] = ("kill", "stop", "kill later", "error", "kill", "delay")
FAULTY = "tests.support.faulty"

SETTINGS: dict[str, dict[str, Any]] = {
    "batch": {"documents": 60},
    "index": {"delta_documents": 64, "window_documents": 1500},
    "kafka": {"transaction_timeout": "5s"},
}
"""With these a few hundred documents reach every point."""


class Storm:
    """One stream of documents, and the faults that its workers meet.

    Attributes:
        source: the documents in the source topic.
        happened: the faults so far, by action.
        ends: the exit codes of the workers; negative ones are signals.
    """

    def __init__(self, stage: Stage, point: str) -> None:
        self._stage = stage
        self._point = point
        self.source = Feed(stage)
        self.happened: Counter[str] = Counter()
        self.ends: Counter[int] = Counter()

    def feed(self) -> None:
        """Append a block of documents to the source topic."""
        # An update without a kept document makes no segment, but a checkpoint.
        self.source.add(copies_only=self._point == "checkpoint" and self.source.fed > 0)

    def strike(self, number: int) -> None:
        """Run a worker until the fault of this number has happened, and end it."""
        rng = random.Random(f"{self._point} {number}")
        action = ACTIONS[(number + list(POINTS).index(self._point)) % len(ACTIONS)]
        fault = Fault(
            point=self._point,
            turn=rng.randint(1, 4) if self._point in OFTEN else 1,
            action=action,
            seconds=rng.uniform(0, 0.02) if action == "kill later" else rng.uniform(0.1, 1),
            record=str(self._stage.folder / f"fault-{number}"),
        )
        self.feed()
        if self._point == "replay":
            shutil.rmtree(self._stage.index)
        with self._stage.start_worker(env=fault.environment(), module=FAULTY) as worker:
            process = self._wait_for(fault, worker)
            self.happened[action] += 1
            if action == "stop":
                time.sleep(fault.seconds)
                os.kill(process, signal.SIGCONT)
            time.sleep(rng.uniform(0, 1))
            if worker.process.poll() is None:
                worker.process.send_signal(rng.choice((signal.SIGKILL, signal.SIGTERM)))
            self.ends[worker.wait()] += 1
            assert not worker.has_traceback(), worker.log()

    def _wait_for(self, fault: Fault, worker: WorkerProcess) -> int:
        """Return the process in which the fault happens; feed until it does."""
        limit = time.monotonic() + PATIENCE_S
        while not (processes := fault.processes()):
            assert time.monotonic() < limit, f"{fault} does not happen:\n{worker.log()}"
            assert worker.process.poll() is None, worker.log()
            if self.source.is_committed():
                self.feed()
            time.sleep(0.05)
        return processes[0]


@pytest.mark.timeout(120 + 30 * SEEDS)
@pytest.mark.parametrize("point", [point for point in POINTS if point not in OF_EDGES])
def test_a_fault_loses_doubles_and_changes_nothing(
    point: str, broker: Broker, tmp_path: Path
) -> None:
    """Kills, stops, delays and errors at a fail-point, one after the other, over one stream."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(**SETTINGS)
    if point == "checkpoint":
        # Checkpoints by time follow the retention of the changelog.
        changelog = {stage.topics["changelog"]: {"retention.ms": "4000"}}
        asyncio.run(topics.create(stage.bootstrap, changelog, 1))
    stage.create_topics(PARTITIONS)
    storm = Storm(stage, point)
    if point == "replay":
        storm.feed()
        stage.run_until_judged(storm.source.fed)
    for number in range(SEEDS):
        storm.strike(number)
    stage.run_until_judged(storm.source.fed)
    outcomes = assert_undisturbed(stage)
    report = {
        "point": point,
        "faults": sum(storm.happened.values()),
        "actions": storm.happened,
        "exit codes": storm.ends,
        "documents": storm.source.fed,
        "outcomes": outcomes,
    }
    print(json.dumps(report))  # noqa: T201 - the report of the storm
    assert sum(storm.happened.values()) == SEEDS
    assert outcomes["duplicates"] > 0
    assert outcomes["dead_letter"] == 0
