"""A full disk: the worker reports it early, stops before damage, and continues later."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from tests.support.corpora import documents
from tests.support.oracle import assert_all_judged_once
from tests.support.patience import wait_until
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka


@pytest.mark.long
def test_a_budget_that_runs_out(broker: Broker, tmp_path: Path) -> None:
    """Near the budget it is unready, at the budget it ends; a larger budget lets it continue."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(batch={"documents": 50}, index={"delta_documents": 256, "disk_budget": "2MiB"})
    stage.create_topics()
    produced = 0

    def produce(count: int) -> None:
        nonlocal produced
        stage.produce_json(documents(produced, produced + count))
        produced += count

    with stage.start_worker() as worker:
        worker.wait_until_ready()

        def is_short() -> bool:
            produce(100)
            return worker.get("/readyz")[0] == 503

        wait_until(is_short, "the worker to run out of disk space")
        assert "bytes left" in worker.get("/readyz")[1]
        assert "index.disk_budget" in worker.get("/readyz")[1]
        produce(3000)
        worker.assert_ends(13, "no room left", "raise index.disk_budget")
    stage.configure(index={"disk_budget": "1GiB"})
    stage.run_until_committed({0: produced})
    assert_all_judged_once(stage, produced)
