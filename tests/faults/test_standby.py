"""Two workers of which one stands by: whichever is killed, stopped or drained, nothing changes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from tests.support.feed import PARTITIONS, Feed
from tests.support.oracle import assert_undisturbed
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.kafka, pytest.mark.faults]

SEEDS = int(os.environ.get("STREAMDEDUP_TEST_SEEDS", "3"))
SETTINGS: dict[str, dict[str, Any]] = {
    "batch": {"documents": 60},
    "index": {"delta_documents": 64},
    "kafka": {"transaction_timeout": "10s", "session_timeout": "6s"},
    "standby": {"enabled": True},
}
ENDINGS = frozenset({0, -signal.SIGKILL, -signal.SIGTERM})
"""Exit codes of a worker: it was drained, killed, or ended before it could be drained."""


class Pair:
    """Two workers, each with its own index; one that has ended is started again.

    Attributes:
        feed: their documents.
        ends: their exit codes so far.
    """

    def __init__(self, stages: list[Stage], feed: Feed, running: ExitStack) -> None:
        self._stages = stages
        self._running = running
        self.feed = feed
        self.ends: Counter[int] = Counter()
        self.workers = [self._start(number) for number in range(2)]

    def _start(self, number: int) -> WorkerProcess:
        return self._running.enter_context(self._stages[number].start_worker())

    def restart(self) -> None:
        """Start the workers that have ended."""
        for number, worker in enumerate(self.workers):
            if (code := worker.process.poll()) is not None:
                assert code in ENDINGS, worker.log()
                self.ends[code] += 1
                self.workers[number] = self._start(number)

    def judge(self) -> None:
        """Wait until all documents are judged, by whichever worker."""

        def judged() -> bool:
            self.restart()
            return self.feed.is_committed()

        wait_until(judged, f"{self.feed.fed} documents to be judged")

    def strike(self, rng: random.Random, target: int) -> None:
        """Kill, drain or stop a worker at a random moment; a stopped one continues later."""
        process = self.workers[target].process
        how = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP))
        time.sleep(rng.uniform(0, 2))
        if process.poll() is None:
            process.send_signal(how)
        if how == signal.SIGSTOP:
            time.sleep(rng.uniform(0, 10))
            process.send_signal(signal.SIGCONT)
        else:
            process.wait(60)


@pytest.mark.timeout(300 + 60 * SEEDS)
def test_whichever_worker_fails(broker: Broker, tmp_path: Path) -> None:
    """The other one takes over, and every document is judged once."""
    rng = random.Random(SEEDS)
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(PARTITIONS)
    stages = [stage.variant(name, **SETTINGS) for name in ("first", "second")]
    with ExitStack() as running:
        pair = Pair(stages, Feed(stage), running)
        pair.feed.add()
        pair.judge()
        for number in range(4 * SEEDS):
            pair.feed.add()
            pair.strike(rng, rng.randint(0, 1))
            pair.restart()
            if number % 2:
                pair.judge()
        pair.judge()
        for worker in pair.workers:
            worker.wait_until_ready()
            worker.drain()
    assert pair.ends.total() >= SEEDS
    assert_undisturbed(stages[0])
