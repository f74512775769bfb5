"""Mode split under faults: kills of all roles, lost brokers, and a fault at each step of a role."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from tests.support.checker import Checker
from tests.support.corpora import RealDocuments
from tests.support.faulty import Action, Fault
from tests.support.feed import PARTITIONS, Feed
from tests.support.oracle import assert_undisturbed
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.split import ENDINGS, Split, split_on
from tests.support.stage import Stage

pytestmark = [pytest.mark.kafka, pytest.mark.faults]

SEEDS = int(os.environ.get("STREAMDEDUP_TEST_SEEDS", "3"))
FAULTY = "tests.support.faulty"
SETTINGS: dict[str, dict[str, Any]] = {
    "batch": {"documents": 60},
    "index": {"delta_documents": 64, "window_documents": 1500},
    "kafka": {"transaction_timeout": "5s", "session_timeout": "6s"},
}
ACTIONS: tuple[Action, ...] = ("kill", "stop", "kill later", "error", "kill", "delay")
STEPS = [
    *[("edge", point) for point in ("poll", "pool", "append", "lane", "pair")],
    *[("edge", point) for point in ("begin", "produce", "offsets", "write")],
    *[("judge", point) for point in ("poll", "judge", "stage", "begin", "produce", "offsets")],
    *[("judge", point) for point in ("commit", "confirm", "start", "replay")],
]
ONCE = frozenset({"lane", "start", "replay"})
"""Points that a role reaches at its start."""
ENDS_OF_ERRORS = frozenset({12, 16})
"""Exit codes of an injected error that is not one of a broker."""


class Strikes:
    """One stream of documents, and the faults that one role meets.

    Attributes:
        feed: the documents.
        happened: the faults so far, by action.
    """

    def __init__(self, split: Split, role: str, point: str) -> None:
        self._split = split
        self._role, self._point = role, point
        self.feed = Feed(split.stage)
        self.happened: Counter[str] = Counter()

    def strike(self, number: int) -> None:
        """Run the role until the fault of this number has happened, and end it."""
        rng = random.Random(f"{self._role} {self._point} {number}")
        action = ACTIONS[(number + STEPS.index((self._role, self._point))) % len(ACTIONS)]
        fault = Fault(
            point=self._point,
            turn=1 if self._point in ONCE else rng.randint(1, 4),
            action=action,
            seconds=rng.uniform(0, 0.02) if action == "kill later" else rng.uniform(0.1, 1),
            record=str(self._split.stage.folder / f"fault-{number}"),
        )
        name = f"{self._role}-0"
        self.feed.add()
        if self._point == "replay":
            shutil.rmtree(self._split.stage.folder / name / "index")
        worker = self._split.start(name, env=fault.environment(), module=FAULTY)
        limit = time.monotonic() + PATIENCE_S
        while not (processes := fault.processes()):
            assert time.monotonic() < limit, f"{fault} does not happen:\n{worker.log()}"
            assert worker.process.poll() is None, worker.log()
            if self.feed.is_committed():
                self.feed.add()
            time.sleep(0.05)
        self.happened[action] += 1
        if action == "stop":
            time.sleep(fault.seconds)
            os.kill(processes[0], signal.SIGCONT)
        time.sleep(rng.uniform(0, 1))
        if worker.process.poll() is None:
            worker.process.send_signal(rng.choice((signal.SIGKILL, signal.SIGTERM)))
        code = worker.wait()
        assert code in ENDINGS | ENDS_OF_ERRORS, worker.log()
        assert not worker.has_traceback(), worker.log()
        del self._split.workers[name]


@pytest.mark.timeout(120 + 40 * SEEDS)
@pytest.mark.parametrize(("role", "point"), STEPS)
def test_a_fault_loses_doubles_and_changes_nothing(
    role: str, point: str, broker: Broker, tmp_path: Path
) -> None:
    """Kills, stops, delays and errors at a fail-point of a role, while the other one runs."""
    stage = Stage(broker.bootstrap, tmp_path, mode="split")
    stage.configure(**SETTINGS)
    stage.create_topics(PARTITIONS)
    with ExitStack() as running:
        split = Split(stage, running)
        other = "judge" if role == "edge" else "edge"
        split.start(f"{other}-0")
        strikes = Strikes(split, role, point)
        if point == "replay":
            strikes.feed.add()
            split.start("judge-0")
            split.wait(strikes.feed)
            split.drain("judge-0")
        for number in range(SEEDS):
            strikes.strike(number)
        # SIGTERM ends a process that has not begun yet with another code.
        split.start(f"{role}-0").wait_for_event("running")
        split.wait(strikes.feed)
        split.drain()
    outcomes = assert_undisturbed(stage)
    report = {
        "role": role,
        "point": point,
        "faults": sum(strikes.happened.values()),
        "actions": strikes.happened,
        "documents": strikes.feed.fed,
        "outcomes": outcomes,
    }
    print(json.dumps(report))  # noqa: T201 - the report of the strikes
    assert sum(strikes.happened.values()) == SEEDS
    assert outcomes["duplicates"] > 0
    assert outcomes["dead_letter"] == 0


@pytest.mark.timeout(1200)
def test_a_storm_over_all_roles(own_broker: Broker, tmp_path: Path) -> None:
    """100,000 documents, 9 partitions, 3 edges, 2 judges, 30 SIGKILLs, 3 bounces of the broker."""
    partitions, documents, kills = 9, 100_000, 30
    rng = random.Random(SEEDS)
    bounces = set(rng.sample(range(kills), 3))
    settings: dict[str, Any] = {
        "batch": {"documents": 500},
        "index": {"delta_documents": 4096},
        "kafka": {"session_timeout": "6s", "transaction_timeout": "10s"},
    }
    with split_on(own_broker.bootstrap, tmp_path, partitions, 3, 2, **settings) as split:
        stage, made = split.stage, RealDocuments()
        checker = Checker(stage)
        checker.start()

        def written() -> int:
            return sum(stage.committed().values())

        def produce(count: int) -> None:
            block = [one for _ in range(0, count, 500) for one in made.block(500)]
            for partition in range(partitions):
                stage.produce_json(block[partition::partitions], partition)

        produce(documents // 2)
        wait_until(lambda: written() > 0, "the first records to be written")
        for number in range(kills):
            time.sleep(rng.uniform(0.1, 1))
            if number in bounces:
                own_broker.kill()
                time.sleep(rng.uniform(0.1, 1))
                own_broker.start()
            if number == kills // 2:
                produce(documents // 2)
            name = rng.choice(sorted(split.workers))
            split.workers[name].kill()
            split.restart()

        def all_written() -> bool:
            split.restart()
            return written() == documents

        wait_until(all_written, f"{documents} records to be written", 300)
        wait_until(lambda: len(checker.seen) == documents, "the checker to see them all")
        checker.stopping.set()
        checker.join()
        split.drain()
    assert checker.twice == []
    assert split.ends[-signal.SIGKILL] == kills
    outcomes = assert_undisturbed(stage)
    print(json.dumps({"kills": kills, "bounces": 3, "outcomes": outcomes}))  # noqa: T201 - its report
    assert sum(outcomes.values()) == documents
