"""Three brokers die, hang, restart and return under a worker, which judges every record once."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.broker.broker import Broker
from deploy.broker.cluster import NUMBERS, Cluster
from tests.support import replicas
from tests.support.corpora import RealDocuments
from tests.support.faulty import Fault
from tests.support.feed import Feeder
from tests.support.oracle import assert_undisturbed
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.faults,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("cluster"),  # one process starts it, once
]

PARTITIONS = 3
OUTAGE_S = float(os.environ.get("STREAMDEDUP_TEST_OUTAGE_S", "30"))
"""How long all brokers are away while the worker runs."""
LOG_S = 10
"""The log counts equal lines of so many seconds at the next one."""
HANG_S = 4.0
"""Longer than the brokers' session timeout, so that leaders move."""
BACKLOG = 600
"""Documents that are in the topic before a worker starts."""
FAULTY = "tests.support.faulty"

SETTINGS: dict[str, dict[str, Any]] = {
    "batch": {"documents": 60},
    "index": {"delta_documents": 256, "window_documents": 1500},
}

ROLES: Mapping[str, Callable[[Stage], int]] = {
    "leader of the changelog": lambda stage: asyncio.run(
        replicas.leader(stage.bootstrap, stage.topics["changelog"])
    ),
    "leader of the clean topic": lambda stage: asyncio.run(
        replicas.leader(stage.bootstrap, stage.topics["clean"])
    ),
    "transaction coordinator": lambda stage: asyncio.run(
        replicas.transaction_coordinator(stage.bootstrap, stage.settings().topics.transactional_id)
    ),
    "group coordinator": lambda stage: asyncio.run(
        replicas.group_coordinator(stage.bootstrap, stage.name)
    ),
}
"""Functions from a stage to the number of the broker that has this role now."""


class Scene:
    """A worker on a cluster, and the stream that it judges."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.stage = Stage(cluster.bootstrap, folder, replication=len(NUMBERS))
        self.stage.configure(**SETTINGS)
        self.stage.create_topics(PARTITIONS)

    def broker(self, role: str) -> Broker:
        """Return the broker that has a role."""
        return self.cluster.brokers[ROLES[role](self.stage)]

    def restore(self) -> None:
        """Let all brokers run, with all replicas in sync."""
        self.cluster.restore()
        asyncio.run(replicas.wait_until_in_sync(self.cluster.bootstrap))

    def produce_backlog(self) -> None:
        """Append documents before a worker starts."""
        block = RealDocuments(prefix="early").block(BACKLOG)
        for partition in range(PARTITIONS):
            self.stage.produce_json(block[partition::PARTITIONS], partition)

    @contextmanager
    def flow(self, worker: WorkerProcess, fed_before: int = 0) -> Iterator[None]:
        """Feed documents during the context; then judge what it and others did.

        Raises:
            AssertionError: the worker has ended, or the oracle objects.
        """
        with Feeder(self.stage, PARTITIONS) as feeder:
            yield
            self.restore()
            fed = feeder.finish()
        self.stage.wait_for(fed + fed_before, worker)
        report = {
            "documents": fed + fed_before,
            "committed": worker.metric("transactions_total", result="committed"),
            "unknown": worker.metric("transactions_total", result="unknown"),
            "sessions": 1 + worker.metric("sessions_total", reason="broker"),
        }
        assert worker.metric("pool_restarts_total") == 0
        worker.drain()
        assert not worker.has_traceback(), worker.log()
        outcomes = assert_undisturbed(self.stage)
        print(json.dumps(report | {"outcomes": outcomes}))  # noqa: T201 - what was tried
        assert sum(outcomes.values()) == fed + fed_before
        assert outcomes["duplicates"] > fed // 20
        assert outcomes["dead_letter"] == 0


def wait_for_commits(worker: WorkerProcess, more: int = 5) -> None:
    """Wait until the worker has committed more transactions than now."""

    def committed() -> float:
        worker.assert_running()
        return worker.metric("transactions_total", result="committed")

    before = committed()
    started = time.monotonic()
    wait_until(lambda: committed() >= before + more, f"{more} more transactions")
    print(f"{more} transactions after {time.monotonic() - started:.1f} s")  # noqa: T201


def stay_waiting(worker: WorkerProcess, seconds: float) -> None:
    """Check for some seconds that the worker lives, is not ready, and retries without haste."""
    process = psutil.Process(worker.process.pid)
    before, cpu_before_s = retries(worker), sum(process.cpu_times()[:2])
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        worker.assert_running()
        assert worker.get("/livez")[0] == 200
        assert worker.get("/readyz")[0] == 503
        time.sleep(0.5)
    assert sum(process.cpu_times()[:2]) - cpu_before_s < seconds / 2
    assert retries(worker) - before <= seconds + LOG_S


def retries(worker: WorkerProcess) -> int:
    """Return how often the worker has logged that it waits, or would have."""
    waits = [event for event in worker.events() if event["event"] == "waiting for the broker"]
    return sum(1 + event.get("suppressed", 0) for event in waits)


@pytest.mark.parametrize("role", ROLES)
def test_leaders_and_coordinators_move(role: str, cluster: Cluster, tmp_path: Path) -> None:
    """The broker of this role is killed, returns, and the one that replaced it hangs."""
    scene = Scene(cluster, tmp_path)
    with scene.stage.start_worker() as worker, scene.flow(worker):
        worker.wait_until_ready()
        wait_for_commits(worker)
        scene.broker(role).kill()
        wait_for_commits(worker)
        scene.restore()
        hanging = scene.broker(role)
        hanging.suspend()
        wait_for_commits(worker)
        hanging.resume()
        wait_for_commits(worker)


@pytest.mark.parametrize(
    ("point", "role"),
    [
        ("produce", "transaction coordinator"),
        ("produce", "group coordinator"),
        ("offsets", "transaction coordinator"),
        ("offsets", "leader of the clean topic"),
    ],
)
def test_a_broker_dies_within_a_transaction(
    point: str, role: str, cluster: Cluster, tmp_path: Path
) -> None:
    """The worker holds a transaction open while the broker of this role dies."""
    scene = Scene(cluster, tmp_path)
    fault = Fault(point, 8, "delay", HANG_S, str(tmp_path / "fault"))
    faulty = scene.stage.start_worker(env=fault.environment(), module=FAULTY)
    with faulty as worker, scene.flow(worker):
        wait_until(lambda: bool(fault.processes()), "a transaction to be held open")
        scene.broker(role).kill()
        wait_for_commits(worker)


def test_a_rolling_restart(cluster: Cluster, tmp_path: Path) -> None:
    """Each broker is restarted after the others, then the controller, as an upgrade would."""
    scene = Scene(cluster, tmp_path)
    with scene.stage.start_worker() as worker, scene.flow(worker):
        worker.wait_until_ready()
        for broker in cluster.brokers.values():
            broker.stop()
            wait_for_commits(worker)
            broker.start()
            asyncio.run(replicas.wait_until_in_sync(cluster.bootstrap))
        cluster.controller.restart()
        wait_for_commits(worker)


def test_two_of_three_brokers_die_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """One replica of each partition is left, which takes no writes; the worker waits for one."""
    scene = Scene(cluster, tmp_path)
    with scene.stage.start_worker() as worker, scene.flow(worker):
        worker.wait_until_ready()
        wait_for_commits(worker)
        first = NUMBERS.index(ROLES["transaction coordinator"](scene.stage))
        one, another = (NUMBERS[(first + step) % len(NUMBERS)] for step in range(2))
        cluster.kill(one, another)
        worker.wait_until_waiting()
        stay_waiting(worker, 5)
        cluster.start(another)
        wait_for_commits(worker)


def test_all_brokers_are_away_at_the_start(cluster: Cluster, tmp_path: Path) -> None:
    """The worker starts before the brokers do."""
    scene = Scene(cluster, tmp_path)
    scene.produce_backlog()
    cluster.kill()
    with scene.stage.start_worker() as worker:
        worker.wait_until_waiting()
        stay_waiting(worker, 5)
        wait_until(lambda: retries(worker) > 1, "a second retry")
        cluster.start()
        worker.wait_until_ready()
        with scene.flow(worker, BACKLOG):
            wait_for_commits(worker)


def test_all_brokers_die_during_a_replay(cluster: Cluster, tmp_path: Path) -> None:
    """The worker rebuilds its index from the changelog, and waits in the middle."""
    scene = Scene(cluster, tmp_path)
    scene.produce_backlog()
    scene.stage.run_until_judged(BACKLOG)
    shutil.rmtree(scene.stage.index)
    fault = Fault("replay", 5, "delay", HANG_S, str(tmp_path / "fault"))
    with scene.stage.start_worker(env=fault.environment(), module=FAULTY) as worker:
        wait_until(lambda: bool(fault.processes()), "the replay")
        assert worker.get("/readyz")[1].startswith("replaying the changelog")
        cluster.kill()
        worker.wait_until_waiting()
        stay_waiting(worker, 5)
        cluster.start()
        worker.wait_until_ready()
        with scene.flow(worker, BACKLOG):
            wait_for_commits(worker)


def test_all_brokers_are_away_for_a_while(cluster: Cluster, tmp_path: Path) -> None:
    """All die at once in a stream; the worker lives, is not ready, and judges when they return."""
    scene = Scene(cluster, tmp_path)
    with scene.stage.start_worker() as worker, scene.flow(worker):
        worker.wait_until_ready()
        wait_for_commits(worker)
        cluster.kill()
        worker.wait_until_waiting()
        stay_waiting(worker, OUTAGE_S)
        cluster.start()
        wait_for_commits(worker)
