"""A worker that was paused while another one took over: it may not write any more."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from tests.support.faulty import Fault
from tests.support.feed import PARTITIONS, Feed
from tests.support.oracle import assert_undisturbed
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.kafka, pytest.mark.faults]

SEEDS = int(os.environ.get("STREAMDEDUP_TEST_SEEDS", "3"))
FAULTY = "tests.support.faulty"
SETTINGS: dict[str, dict[str, Any]] = {
    "batch": {"documents": 60},
    "index": {"delta_documents": 64},
}


class Workers:
    """Workers with the same settings that take over from one another.

    Attributes:
        feed: their documents.
    """

    def __init__(self, broker: Broker, folder: Path, transaction_timeout: str) -> None:
        stage = Stage(broker.bootstrap, folder)
        stage.create_topics(PARTITIONS)
        kafka = {"transaction_timeout": transaction_timeout}
        self.stages = [stage.variant(name, **SETTINGS, kafka=kafka) for name in ("even", "odd")]
        self.feed = Feed(stage)

    @contextmanager
    def started(self, number: int, fault: Fault | None) -> Iterator[WorkerProcess]:
        """Yield a worker that has taken over; even and odd numbers have an index each."""
        stage = self.stages[number % 2]
        env = fault.environment() if fault else {}
        with stage.start_worker(env=env, module=FAULTY) as worker:
            worker.wait_for_event("running")
            yield worker

    def fault(self, number: int, point: str) -> Fault:
        """Return the fault that stops a worker at a fail-point, in the middle of the stream."""
        turn = random.Random(f"{point} {number}").randint(2, 5)
        record = self.stages[number % 2].folder / f"fault-{number}"
        return Fault(point, turn, "stop", 0, str(record))

    def wait_until_paused(self, worker: WorkerProcess, fault: Fault) -> None:
        """Feed a worker until its fault has happened."""

        def is_paused() -> bool:
            self.feed.add_if_committed(worker)
            return bool(fault.processes())

        wait_until(is_paused, f"{fault} to happen")


def resume(zombie: WorkerProcess) -> None:
    """Let a stopped process continue."""
    zombie.process.send_signal(signal.SIGCONT)


@pytest.mark.timeout(240 + 30 * SEEDS)
@pytest.mark.parametrize("point", ["poll", "stage", "begin", "produce", "offsets", "commit"])
def test_a_zombie_is_fenced(point: str, broker: Broker, tmp_path: Path) -> None:
    """It ends with 8 and one line; so does its successor, and later their indexes are used again.

    Each zombie continues while its successor judges documents or has become a zombie itself.
    """
    workers = Workers(broker, tmp_path, "60s")
    with ExitStack() as running:
        zombie: WorkerProcess | None = None
        for number in range(SEEDS):
            fault = workers.fault(number, point)
            worker = running.enter_context(workers.started(number, fault))
            if zombie is not None:
                resume(zombie)
            workers.wait_until_paused(worker, fault)
            if zombie is not None:
                zombie.assert_ends(8, "topics.changelog", "taken over")
            zombie = worker
        assert zombie is not None
        last = running.enter_context(workers.started(SEEDS, None))
        resume(zombie)
        workers.feed.add()
        zombie.assert_ends(8, "topics.changelog", "taken over")
        workers.feed.wait(last)
        last.drain()
    assert_undisturbed(workers.stages[0])


def test_a_zombie_beyond_its_timeout(broker: Broker, tmp_path: Path) -> None:
    """Its outcome is unknown to it, so it begins a new session: one of the two is fenced."""
    workers = Workers(broker, tmp_path, "3s")
    fault = workers.fault(0, "offsets")
    with workers.started(0, fault) as zombie:
        workers.wait_until_paused(zombie, fault)
        with workers.started(1, None) as successor:
            workers.feed.wait(successor)
            time.sleep(3)
            resume(zombie)

            def has_ended() -> bool:
                if workers.feed.is_committed():
                    workers.feed.add()
                return any(each.process.poll() is not None for each in (zombie, successor))

            wait_until(has_ended, "one of the workers to end")
            fenced, left = sorted((zombie, successor), key=lambda each: each.process.poll() is None)
            fenced.assert_ends(8, "topics.changelog", "taken over")
            workers.feed.wait(left)
            left.drain()
    assert_undisturbed(workers.stages[0])
