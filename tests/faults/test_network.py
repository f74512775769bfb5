"""Faults of the network between a worker and its broker: delays, interruptions, lost responses.

Every stream ends with all documents judged once, as without the faults. The broker is reached
through a proxy; the tests themselves read the topics directly.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from tests.support.feed import PARTITIONS, Feed
from tests.support.network import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Ending,
    Loss,
    Network,
)
from tests.support.oracle import assert_undisturbed
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.kafka, pytest.mark.faults]

SEEDS = int(os.environ.get("STREAMDEDUP_TEST_SEEDS", "3"))
SHORT = {"request_timeout": "3s", "transaction_timeout": "3s"}
"""A transaction with a lost response reaches its timeout before the request is repeated."""
PATIENT = {"request_timeout": "1s", "transaction_timeout": "10s"}
"""A request with a lost response is repeated within the transaction."""


@contextmanager
def worker_behind(
    network: Network, broker: Broker, folder: Path, timeouts: dict[str, str]
) -> Iterator[tuple[WorkerProcess, Feed]]:
    """Yield a ready worker that reaches the broker through a network; judge it afterwards."""
    stage = Stage(broker.bootstrap, folder)
    stage.configure(
        batch={"documents": 60},
        index={"delta_documents": 64},
        kafka={"bootstrap_servers": network.bootstrap, **timeouts},
    )
    stage.create_topics(PARTITIONS)
    feed = Feed(stage)
    with stage.start_worker() as worker:
        worker.wait_until_ready()
        yield worker, feed
        feed.add()
        feed.wait(worker)
        worker.wait_until_ready()
        worker.drain()
        assert not worker.has_traceback(), worker.log()
    outcomes = assert_undisturbed(stage)
    assert outcomes["duplicates"] > feed.fed // 20
    assert outcomes["dead_letter"] == 0


def test_a_slow_and_narrow_network(broker: Broker, tmp_path: Path) -> None:
    """Round trips of 200 to 500 ms, then 100 kB/s: the worker starts and continues, only slower."""
    with Network(broker.bootstrap, random.Random(1)) as network:
        network.latency_s = 0.1, 0.25
        with worker_behind(network, broker, tmp_path, {}) as (worker, feed):
            feed.add()
            feed.wait(worker)
            network.latency_s = 0.0, 0.05
            network.bytes_per_second = 100_000
            feed.add()
            feed.wait(worker)
            assert worker.metric("sessions_total", reason="broker") == 0


def test_an_interruption_longer_than_every_timeout(broker: Broker, tmp_path: Path) -> None:
    """The worker stays alive, is not ready, and recovers; what was on the way arrives late."""
    rng = random.Random(2)
    with (
        Network(broker.bootstrap, rng) as network,
        worker_behind(network, broker, tmp_path, SHORT) as (worker, feed),
    ):
        for _ in range(2):
            feed.add()
            time.sleep(rng.uniform(0, 0.3))
            with network.interrupted():
                wait_until(lambda: worker.get("/readyz")[0] == 503, "the worker to notice")
                for _ in range(8):
                    time.sleep(1)
                    assert worker.get("/livez")[0] == 200
                    assert worker.get("/readyz")[0] == 503
            worker.wait_until_ready()
        assert worker.metric("sessions_total", reason="broker") >= 2


def test_connections_are_reset_again_and_again(broker: Broker, tmp_path: Path) -> None:
    """At any moment, also during the start of a session."""
    rng = random.Random(3)
    connections = 0
    with (
        Network(broker.bootstrap, rng) as network,
        worker_behind(network, broker, tmp_path, SHORT) as (worker, feed),
    ):
        for _ in range(10 * SEEDS):
            feed.add_if_committed(worker)
            time.sleep(rng.expovariate(2))
            connections += network.reset()
    assert connections > 10 * SEEDS


def test_the_other_end_of_all_connections_disappears(broker: Broker, tmp_path: Path) -> None:
    """A busy and an idle worker notice it by their timeouts only, and connect again."""
    rng = random.Random(4)
    with (
        Network(broker.bootstrap, rng) as network,
        worker_behind(network, broker, tmp_path, SHORT) as (worker, feed),
    ):
        for turn in range(SEEDS + 1):
            if turn % 2:
                feed.add()
                time.sleep(rng.uniform(0, 0.3))
            assert network.desert() > 0
            feed.add_if_committed(worker)
            feed.wait(worker)


@pytest.mark.parametrize(
    ("api_key", "timeouts"),
    [
        pytest.param(PRODUCE, SHORT, id="Produce"),
        pytest.param(ADD_PARTITIONS, SHORT, id="AddPartitionsToTxn"),
        pytest.param(ADD_OFFSETS, SHORT, id="AddOffsetsToTxn"),
        pytest.param(TXN_OFFSET_COMMIT, SHORT, id="TxnOffsetCommit"),
        pytest.param(END_TXN, SHORT, id="EndTxn"),
        pytest.param(END_TXN, PATIENT, id="EndTxn-repeated"),
        pytest.param(INIT_PRODUCER_ID, SHORT, id="InitProducerId"),
    ],
)
def test_a_response_is_lost_although_the_request_was_executed(
    api_key: int, timeouts: dict[str, str], broker: Broker, tmp_path: Path
) -> None:
    """The outcome is unknown: either a repeated request or a new session finds it out."""
    rng = random.Random(api_key)
    with (
        Network(broker.bootstrap, rng) as network,
        worker_behind(network, broker, tmp_path, timeouts) as (worker, feed),
    ):
        for number in range(SEEDS):
            ending: Ending = "reset" if number % 2 else "silence"
            network.losses[api_key] = Loss(rng.randint(1, 4), ending)
            if api_key == INIT_PRODUCER_ID:  # only a new session sends it
                network.losses |= {api_key: Loss(1, ending), END_TXN: Loss(1, "silence")}
            while network.losses:
                feed.add_if_committed(worker)
                time.sleep(0.02)
            feed.wait(worker)
        unknown = worker.metric("transactions_total", result="unknown")
        assert unknown == 0 if timeouts is PATIENT else unknown > 0, worker.log()
