"""Exactly once: the outcomes of a stream whose worker is killed repeatedly."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from tests.support.corpora import stream_of_documents
from tests.support.oracle import assert_undisturbed
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka

PARTITIONS = 3
KILLS = 5
DOCUMENTS = 20_000


def kill_repeatedly(stage: Stage, random_: random.Random) -> None:
    """Kill the worker at random moments: during replay, read, commit or index update."""
    for turn in range(KILLS):
        threshold = DOCUMENTS * (turn + random_.random()) / (KILLS + 2)
        with stage.start_worker() as worker:
            while sum(stage.ends().values()) < threshold:
                worker.assert_running()
            time.sleep(random_.uniform(0.0, 0.4))
            worker.kill()


@pytest.mark.timeout(420)
@pytest.mark.long
def test_a_repeatedly_killed_worker_gives_every_record_one_verdict(
    broker: Broker, tmp_path: Path
) -> None:
    """Each position has one outcome, none matches itself, and the verdicts are undisturbed."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(batch={"documents": 500})
    stage.create_topics(PARTITIONS)
    documents = stream_of_documents(DOCUMENTS)
    for partition in range(PARTITIONS):
        stage.produce_json(documents[partition::PARTITIONS], partition)
    kill_repeatedly(stage, random.Random(20261121))
    stage.run_until_judged(len(documents))

    outcomes = assert_undisturbed(stage)
    assert outcomes.total() == len(documents)
    assert outcomes["duplicates"] > len(documents) // 100
