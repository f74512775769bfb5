"""Workers that were idle until the brokers forgot their producers, in both modes."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.broker.obtain import own_broker
from tests.support.corpora import documents
from tests.support.oracle import assert_all_judged_once
from tests.support.split import split_on
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

pytestmark = [pytest.mark.kafka, pytest.mark.long]

FORGETFUL = {
    "transactional.id.expiration.ms": "9000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    "producer.id.expiration.ms": "8000",
    "producer.id.expiration.check.interval.ms": "1000",
}
"""Settings of a broker that forgets producers in seconds; the defaults are a week and a day."""

SILENCE_S = 20.0


def test_records_flow_after_a_silence(tmp_path: Path) -> None:
    """Each role starts a new session with one warning and no error, and every record is judged."""
    with own_broker(special=FORGETFUL) as broker, ExitStack() as running:
        single = Stage(broker.bootstrap, tmp_path / "single")
        single.create_topics()
        worker = running.enter_context(single.start_worker())
        split = running.enter_context(split_on(broker.bootstrap, tmp_path / "split", 1))
        stages = [(single, [worker]), (split.stage, list(split.workers.values()))]
        for part in range(3):
            if part:
                time.sleep(SILENCE_S)
            for stage, _ in stages:
                stage.produce_json(documents(10 * part, 10 * part + 10))
            for stage, workers in stages:
                stage.wait_for(10 * part + 10, workers[-1])
        for stage, workers in stages:
            assert_all_judged_once(stage, 30)
            for reader in workers:
                reader.drain()
                assert_ended_sessions(reader, 2)


def assert_ended_sessions(worker: WorkerProcess, sessions: int) -> None:
    """Check that a role logged one warning for each silence, and no error."""
    lines = [line for line in worker.events() if line["level"] in ("warning", "error")]
    assert len(lines) == sessions, worker.log()
    assert all("have forgotten this producer" in str(line) for line in lines), worker.log()
