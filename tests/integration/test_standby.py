"""Hot standby: of two workers with one changelog one judges, and the other one takes over."""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from tests.support import topics
from tests.support.faulty import Fault
from tests.support.feed import PARTITIONS, Feed
from tests.support.oracle import assert_undisturbed
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.kafka

SESSION_S = 6
STANDBY: dict[str, dict[str, Any]] = {
    "kafka": {"session_timeout": f"{SESSION_S}s"},
    "standby": {"enabled": True},
    "index": {"delta_documents": 64},
}
Start = Callable[[Stage], WorkerProcess]


class Pair:
    """Two workers on one stage, each with its own index.

    Attributes:
        feed: their documents.
        active: the worker that judges.
        standby: the other one.
    """

    def __init__(self, stages: list[Stage], feed: Feed, start: Start) -> None:
        self._stages = stages
        self.feed = feed
        self.active = start(stages[0])
        self.active.wait_for_event("running")
        self.standby = stages[1].start_worker()
        self.standby.wait_for_event("standing by")

    def judge(self, worker: WorkerProcess) -> None:
        """Let a worker judge a block of documents."""
        self.feed.add()
        self.feed.wait(worker)

    def assert_takes_over(self, worker: WorkerProcess) -> None:
        """Check that a new standby judges once the active worker is gone, and drain it."""
        worker.wait_for_event("standing by")
        self.active.drain()
        self.judge(worker)
        worker.drain()
        assert len(self._stages[0].outcomes()) == self.feed.fed

    def close(self) -> None:
        """End both workers."""
        self.active.process.send_signal(signal.SIGCONT)
        for worker in (self.active, self.standby):
            worker.kill()


@contextmanager
def pair_on(
    broker: Broker,
    folder: Path,
    start: Start = Stage.start_worker,
    keep_s: int | None = None,
) -> Iterator[tuple[Stage, Pair]]:
    """Yield a stage with two workers that have judged a block of documents.

    Args:
        broker: the broker.
        folder: of the stage.
        start: starts the first worker.
        keep_s: seconds for which the changelog keeps an entry; by default it keeps all.
    """
    stage = Stage(broker.bootstrap, folder)
    if keep_s is not None:
        kept = {stage.topics["changelog"]: {"retention.ms": f"{keep_s}000"}}
        asyncio.run(topics.create(broker.bootstrap, kept, partitions=1))
    stage.create_topics(PARTITIONS)
    stages = [stage.variant(name, **STANDBY) for name in ("first", "second")]
    pair = Pair(stages, Feed(stage), start)
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


@pytest.mark.long
def test_a_standby_needs_no_entry_that_it_has_applied(broker: Broker, tmp_path: Path) -> None:
    """After a silence the changelog is empty: the standby starts again, and takes over."""
    with pair_on(broker, tmp_path) as (stage, pair):
        end = stage.end("changelog")
        wait_until(lambda: pair.standby.metric("index_applied_offset") == end, "the last marker")
        pair.standby.drain()
        stage.delete_records("changelog", end)
        with stage.variant("../second", **STANDBY).start_worker() as again:
            pair.assert_takes_over(again)


@pytest.mark.long
def test_a_standby_behind_the_changelog(broker: Broker, tmp_path: Path) -> None:
    """It ends and says what to do, the other one judges; with a new index it takes over."""
    with pair_on(broker, tmp_path) as (stage, pair):
        pair.standby.drain()
        for _ in range(2):
            pair.judge(pair.active)
        stage.delete_records("changelog", stage.end("changelog"))
        pair.judge(pair.active)
        second = stage.variant("../second", **STANDBY)
        with second.start_worker() as again:
            again.assert_ends(
                5, "the entries in between were deleted", "remove the index directory"
            )
        pair.judge(pair.active)
        shutil.rmtree(second.index)
        with second.start_worker() as again:
            pair.assert_takes_over(again)


@pytest.mark.long
def test_a_fenced_worker_writes_its_index_while_it_stands_by(
    broker: Broker, tmp_path: Path
) -> None:
    """It was stopped in a transaction; the changelog then keeps entries for seconds only."""
    fault = Fault("offsets", 3, "stop", 0, str(tmp_path / "fault"))
    start = functools.partial(
        Stage.start_worker, env=fault.environment(), module="tests.support.faulty"
    )
    with pair_on(broker, tmp_path, start, keep_s=4) as (stage, pair):
        feed, first = pair.feed, pair.active

        def has_stopped() -> bool:
            if feed.is_committed():
                feed.add()
            return bool(fault.processes())

        wait_until(has_stopped, "the worker to stop in a transaction")
        pair.standby.wait_for_event("running")
        first.process.send_signal(signal.SIGCONT)
        pair.judge(pair.standby)
        wait_until(lambda: first.metric("active") == 0, "the first worker to stand by")
        end = stage.end("changelog")
        wait_until(lambda: first.metric("index_durable_offset") == end, "the index to be on disk")


@pytest.mark.long
def test_a_paused_worker_passes_no_entry_of_its_successor(broker: Broker, tmp_path: Path) -> None:
    """When it continues, a checkpoint is due before it hears that it was replaced."""
    with pair_on(broker, tmp_path, keep_s=4) as (stage, pair):
        first, second, end = pair.active, pair.standby, stage.end("changelog")
        wait_until(lambda: first.metric("index_durable_offset") == end, "a quiet stream")
        first.process.send_signal(signal.SIGSTOP)
        pair.feed.add()
        taken_over(second, time.monotonic())
        pair.judge(second)
        first.process.send_signal(signal.SIGCONT)
        first.wait_for_event("fenced")
        pair.judge(second)
        documents = second.metric("index_documents")
        wait_until(lambda: first.metric("index_documents") == documents, "the first to follow")
        first.wait_until_ready()
        second.kill()
        pair.judge(first)
        first.drain()
        assert len(stage.outcomes()) == pair.feed.fed


def test_a_session_timeout_that_the_brokers_refuse(broker: Broker, tmp_path: Path) -> None:
    """The worker ends with 3 and one line."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.configure(standby={"enabled": True}, kafka={"session_timeout": "1h"})
    with stage.start_worker() as worker:
        worker.assert_ends(3, "kafka.session_timeout is 1h", "group.min.session.timeout.ms")
