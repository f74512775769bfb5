"""Hot standby: of two workers with one changelog one judges, and the other one takes over."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from tests.support.feed import PARTITIONS, Feed
from tests.support.oracle import assert_undisturbed
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.kafka

SESSION_S = 6


class Pair:
    """Two workers on one stage, each with its own index.

    Attributes:
        feed: their documents.
        active: the worker that judges.
        standby: the other one.
    """

    def __init__(self, stages: list[Stage], feed: Feed) -> None:
        self._stages = stages
        self.feed = feed
        self.active = stages[0].start_worker()
        self.active.wait_for_event("running")
        self.standby = stages[1].start_worker()
        self.standby.wait_for_event("standing by")

    def judge(self, worker: WorkerProcess) -> None:
        """Let a worker judge a block of documents."""
        self.feed.add()
        self.feed.wait(worker)

    def close(self) -> None:
        """End both workers."""
        self.active.process.send_signal(signal.SIGCONT)
        for worker in (self.active, self.standby):
            worker.kill()


@contextmanager
def pair_on(broker: Broker, folder: Path) -> Iterator[tuple[Stage, Pair]]:
    """Yield a stage with two workers that have judged a block of documents."""
    stage = Stage(broker.bootstrap, folder)
    stage.create_topics(PARTITIONS)
    stages = [
        stage.variant(
            name,
            kafka={"session_timeout": f"{SESSION_S}s"},
            standby={"enabled": True},
            index={"delta_documents": 64},
        )
        for name in ("first", "second")
    ]
    pair = Pair(stages, Feed(stage))
    try:
        pair.judge(pair.active)
        yield stages[0], pair
    finally:
        pair.close()


def taken_over(worker: WorkerProcess, began: float) -> float:
    """Wait until a standby judges; return the seconds since ``began``."""
    worker.wait_for_event("running")
    return time.monotonic() - began


def test_a_standby_says_what_it_is(broker: Broker, tmp_path: Path) -> None:
    """It is ready, not active, and close behind."""
    with pair_on(broker, tmp_path) as (_, pair):
        for worker, is_active in ((pair.active, True), (pair.standby, False)):
            status = json.loads(worker.get("/status")[1])
            assert (status["active"], status["ready"]) == (is_active, True)
            assert worker.metric("active") == is_active
        standby = pair.standby
        wait_until(
            lambda: standby.metric("index_documents") == pair.active.metric("index_documents"),
            "the standby to follow",
        )
        wait_until(lambda: standby.metric("standby_behind") == 0, "the standby to see the end")
        assert standby.get("/readyz") == (200, "standby: 0 offsets behind\n")
        pair.standby.drain()


def test_a_standby_takes_over_from_a_worker_that_stops(broker: Broker, tmp_path: Path) -> None:
    """At once: a worker that stops leaves the group."""
    with pair_on(broker, tmp_path) as (stage, pair):
        began = time.monotonic()
        pair.active.terminate()
        seconds = taken_over(pair.standby, began)
        assert pair.active.wait() == 0
        assert seconds < SESSION_S
        pair.judge(pair.standby)
        pair.standby.drain()
        assert_undisturbed(stage)


@pytest.mark.long
def test_a_standby_takes_over_from_a_worker_that_is_killed(broker: Broker, tmp_path: Path) -> None:
    """After the session timeout; the killed worker then stands by."""
    with pair_on(broker, tmp_path) as (stage, pair):
        pair.active.kill()
        pair.feed.add()
        taken_over(pair.standby, time.monotonic())
        pair.feed.wait(pair.standby)
        with stage.start_worker() as again:
            again.wait_for_event("standing by")
            pair.standby.assert_running()
            pair.judge(pair.standby)
            again.drain()
        pair.standby.drain()
        assert_undisturbed(stage)


@pytest.mark.long
def test_a_worker_that_continues_stands_by(broker: Broker, tmp_path: Path) -> None:
    """One that was stopped for longer than its session may not take over again."""
    with pair_on(broker, tmp_path) as (stage, pair):
        pair.active.process.send_signal(signal.SIGSTOP)
        pair.feed.add()
        taken_over(pair.standby, time.monotonic())
        pair.active.process.send_signal(signal.SIGCONT)
        pair.active.wait_for_event("fenced")
        pair.active.wait_until_ready()
        for _ in range(3):
            pair.judge(pair.standby)
        assert pair.active.metric("active") == 0
        pair.active.drain()
        pair.standby.drain()
        assert_undisturbed(stage)


def test_a_session_timeout_that_the_brokers_refuse(broker: Broker, tmp_path: Path) -> None:
    """The worker ends with 3 and one line."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.configure(standby={"enabled": True}, kafka={"session_timeout": "1h"})
    with stage.start_worker() as worker:
        worker.assert_ends(3, "kafka.session_timeout is 1h", "group.min.session.timeout.ms")
