"""Starts, stops and interruptions: no record is lost or written twice."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from deploy.broker.broker import Broker
from tests.support.corpora import documents
from tests.support.oracle import assert_all_judged_once
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.kafka

MANY = 3_000


def test_a_drain_does_not_wait_for_records(broker: Broker, tmp_path: Path) -> None:
    """A poll may wait for longer than the budget of the drain."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(batch={"linger": "1h"})
    stage.create_topics()
    with stage.start_worker() as worker:
        worker.wait_until_ready()
        stage.produce_json(documents(0, 10))
        stage.wait_until_committed({0: 10}, worker)
        worker.drain()
    assert "stopping without a drain" not in worker.log()


@pytest.mark.parametrize("library", ["typer", "aiokafka", "numba"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_program_is_imported(
    number: signal.Signals, library: str, tmp_path: Path
) -> None:
    """The worker has done nothing yet, and ends with 0."""
    Stage("127.0.0.1:1", tmp_path)
    command = [sys.executable, "-X", "importtime", "-m", "streamdedup", "run", "--config"]
    with subprocess.Popen(
        [*command, tmp_path / "streamdedup.yaml"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        # Python prints each module after its import.
        next(line for line in process.stderr if line.split("|")[-1].strip().startswith(library))
        process.send_signal(number)
        process.stderr.close()
        assert process.wait(PATIENCE_S) == 0


def wait_for_some(stage: Stage, least: int, worker: WorkerProcess) -> None:
    """Wait until this number of records of the first partition is committed."""

    def committed() -> bool:
        worker.assert_running()
        return stage.committed().get(0, 0) >= least

    wait_until(committed, f"{least} records to be judged")


@contextmanager
def suspended(broker: Broker) -> Iterator[None]:
    """Suspend the broker during the context."""
    broker.suspend()
    try:
        yield
    finally:
        broker.resume()


def test_a_drained_worker_continues_at_its_offsets(broker: Broker, tmp_path: Path) -> None:
    """SIGTERM ends an idle or a busy worker with 0, and the next start continues."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(kafka={"start": "latest"}, batch={"documents": 100})
    stage.create_topics()
    stage.produce_json(documents(10_000, 10_003))
    with stage.start_worker() as worker:
        worker.wait_until_ready()
        assert stage.committed() == {0: 3}
        worker.drain()
    assert stage.outcomes() == {}

    stage.produce_json(documents(10_003, 10_005))
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 5}, worker)
        assert stage.outcomes() == {(0, 3): "clean", (0, 4): "clean"}
        # A partition that is added while the worker runs is read from its first offset.
        stage.add_partitions("source", 2)
        stage.produce_json(documents(0, 100), partition=1)
        stage.wait_until_committed({0: 5, 1: 100}, worker)
        stage.produce_json(documents(100, MANY), partition=1)
        stage.produce_json(documents(10_005, 10_006))
        wait_until(lambda: stage.committed()[1] > 300, "more than 300 records")
        worker.drain()
    committed = stage.committed()
    assert 300 < committed[1] < MANY
    assert {offset for number, offset in stage.outcomes() if number == 1} == set(
        range(committed[1])
    )

    stage.run_until_committed({0: 6, 1: MANY})
    assert_all_judged_once(stage, MANY, partition=1)


@pytest.mark.parametrize("group", ["the-same", "another"])
def test_a_second_worker_takes_over(broker: Broker, tmp_path: Path, group: str) -> None:
    """The first is fenced, even during a commit, and ends with 8; no record is judged twice.

    A changelog has one writer, whatever consumer groups the workers are configured with.
    """
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(kafka={"group_id": f"{stage.name}-the-same"})
    stage.create_topics()
    stage.produce_json(documents(0, 20))
    second = stage.variant("second", kafka={"group_id": f"{stage.name}-{group}"})
    with stage.start_worker() as old:
        stage.wait_for(1, old)
        with second.start_worker() as new:
            limit = time.monotonic() + PATIENCE_S
            for start in itertools.count(20, 20):  # it is fenced at its next commit
                stage.produce_json(documents(start, start + 20))
                if old.process.poll() is not None or time.monotonic() > limit:
                    break
            old.assert_ends(8, "topics.changelog", "taken over")
            stage.wait_for(start + 20, new)
            new.drain()
    assert_all_judged_once(stage, start + 20)


@pytest.mark.long
@pytest.mark.parametrize("group", ["the-same", "another"])
def test_a_worker_with_another_changelog_is_refused(
    broker: Broker, tmp_path: Path, group: str
) -> None:
    """It would write each record twice. It is accepted when the first changelog is deleted."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(kafka={"group_id": f"{stage.name}-the-same"})
    stage.create_topics()
    other = stage.variant(
        "other",
        kafka={"group_id": f"{stage.name}-{group}"},
        topics={"changelog": f"{stage.name}-other"},
    )
    other.create_topics()
    stage.produce_json(documents(0, 20))
    with stage.start_worker() as worker:
        stage.wait_for(20, worker)
        with other.start_worker() as refused:
            refused.assert_ends(5, "topics.changelog", stage.topics["changelog"], "--delete")
        stage.produce_json(documents(20, 40))
        stage.wait_for(40, worker)
        worker.drain()
    assert_all_judged_once(stage, 40)

    stage.delete_topic("changelog")
    with other.start_worker() as accepted:
        accepted.wait_until_ready()
        accepted.drain()


@pytest.mark.long
def test_a_broker_that_goes_away_is_waited_for(own_broker: Broker, tmp_path: Path) -> None:
    """It is down at the start, killed in a stream, and killed when idle; the worker continues."""
    stage = Stage(own_broker.bootstrap, tmp_path)
    stage.configure(batch={"documents": 100})
    stage.create_topics()
    own_broker.stop()
    with stage.start_worker() as worker:
        worker.wait_until_waiting()
        own_broker.start()
        worker.wait_until_ready()

        stage.produce_json(documents(0, MANY))
        wait_for_some(stage, 300, worker)
        own_broker.kill()
        worker.wait_until_waiting()
        own_broker.start()
        wait_for_some(stage, MANY // 2, worker)
        kill_the_pool(worker)
        stage.wait_until_committed({0: MANY}, worker)
        assert worker.metric("sessions_total", reason="broker") >= 1

        # The worker is idle, so only its own request can find that the broker is gone.
        own_broker.kill()
        worker.wait_until_waiting()
        own_broker.start()
        worker.wait_until_ready()
        worker.drain()
    assert_all_judged_once(stage, MANY)


@pytest.mark.long
def test_a_transaction_left_open_stays_invisible(own_broker: Broker, tmp_path: Path) -> None:
    """A restarted broker may end a transaction without a marker in a partition without a leader.

    Its records must not become visible with the next commit of the same transactional id.
    """
    stage = Stage(own_broker.bootstrap, tmp_path)
    stage.create_topics()
    for first in (0, 10):
        stage.produce_json(documents(first, first + 10))
        stage.leave_transaction_open("clean", b"never committed", timeout_s=1)
        own_broker.kill()
        own_broker.start()
        stage.run_until_committed({0: first + 10})
    assert all(record.value != b"never committed" for record in stage.read("clean"))
    assert_all_judged_once(stage, 20)


def kill_the_pool(worker: WorkerProcess) -> None:
    """Kill the pool's process, as the OOM killer would."""
    before = worker.metric("pool_restarts_total")
    main = psutil.Process(worker.process.pid)
    for child in main.children():
        if "spawn_main" in " ".join(child.cmdline()):
            child.kill()
    wait_until(lambda: worker.metric("pool_restarts_total") > before, "the pool to restart")


@pytest.mark.long
def test_a_worker_that_cannot_drain_still_ends(own_broker: Broker, tmp_path: Path) -> None:
    """A second signal ends it at once, or the budget ends the drain; no record is lost."""
    stage = Stage(own_broker.bootstrap, tmp_path)
    stage.configure(batch={"documents": 50})
    stage.create_topics()
    stage.produce_json(documents(0, MANY))
    with stage.start_worker() as worker:
        wait_for_some(stage, 100, worker)
        with suspended(own_broker):
            worker.terminate()
            worker.wait_for_event("draining")
            worker.terminate()
            assert worker.wait(5) == 128 + signal.SIGTERM
    with stage.start_worker(env={"STREAMDEDUP_DRAIN_BUDGET": "1s"}) as worker:
        wait_for_some(stage, stage.committed()[0] + 50, worker)
        with suspended(own_broker):
            worker.terminate()
            assert worker.wait(20) == 0, worker.log()
            assert worker.wait_for_event("stopping without a drain")
    assert stage.committed()[0] < MANY
    stage.run_until_committed({0: MANY})
    assert_all_judged_once(stage, MANY)


@pytest.mark.long
def test_a_worker_whose_process_hangs_still_ends(broker: Broker, tmp_path: Path) -> None:
    """A stopped sketch process does not prevent the end; the next worker judges its batch."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.produce_json(documents(0, 10))
    with stage.start_worker(env={"STREAMDEDUP_DRAIN_BUDGET": "100ms"}) as worker:
        stage.wait_until_committed({0: 10}, worker)
        children = psutil.Process(worker.process.pid).children()
        (pool,) = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        pool.suspend()
        stage.produce_json(documents(10, 20))
        wait_until(
            lambda: worker.metric("consumer_position", partition="0") >= 20, "the batch to be read"
        )
        worker.drain()
    stage.run_until_judged(20)
