"""Committed offsets against what was judged: no record is skipped, and none is judged twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from streamdedup.admin.checks import check
from streamdedup.admin.findings import Finding
from tests.support import topics
from tests.support.numbered import assert_all_judged_once, documents
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka


def findings_of(stage: Stage, name: str) -> list[Finding]:
    """Return what ``config check`` says under this name."""
    return [one for one in asyncio.run(check(stage.settings())) if one.check == name]


@pytest.mark.long
def test_offsets_past_unjudged_records_are_refused(broker: Broker, tmp_path: Path) -> None:
    """As after commits of another consumer; a setting skips the records, for one start."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(2)
    stage.produce_json(documents(0, 20), partition=1)
    stage.run_until_committed({0: 0, 1: 20})
    stage.produce_json(documents(20, 40), partition=1)
    stage.commit({1: 30})
    facts = ("partition 1: committed 30, judged up to 20", f"{stage.topics['source']}:1 --delete")
    with stage.start_worker() as worker:
        worker.assert_ends(5, *facts, "kafka.skip_unjudged")
    (finding,) = findings_of(stage, "group offsets")
    assert finding.exit_code == 5
    assert facts[0] in finding.message

    stage.commit({1: 25})
    with stage.start_worker(env={"STREAMDEDUP_KAFKA__SKIP_UNJUDGED": "true"}) as worker:
        skipped = worker.wait_for_event("skipping records that were not judged")
        assert (skipped["partition"], skipped["begin"], skipped["end"]) == (1, 20, 25)
        stage.wait_until_committed({0: 0, 1: 40}, worker)
        worker.drain()
    with stage.start_worker() as worker:
        worker.wait_until_ready()
        worker.drain()
    assert {offset for _, offset in stage.outcomes()} == {*range(20), *range(25, 40)}


def test_a_recreated_source_is_refused_whatever_its_offsets(broker: Broker, tmp_path: Path) -> None:
    """A refilled topic has the offsets of the old one, and other records."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.produce_json(documents(0, 20))
    stage.run_until_committed({0: 20})
    assert findings_of(stage, "recreated topics") == []
    stage.delete_topic("source")
    stage.create_topics()
    stage.produce_json(documents(20, 60))
    with stage.start_worker() as worker:
        worker.assert_ends(5, stage.topics["source"], "recreated", "another kafka.group_id")
    assert [one.exit_code for one in findings_of(stage, "recreated topics")] == [5]


def test_the_changelog_knows_where_latest_began(broker: Broker, tmp_path: Path) -> None:
    """If brokers delete the offset of one idle partition, its old records stay unjudged."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(kafka={"start": "latest"})
    stage.create_topics(2)
    stage.produce_json(documents(100, 110), partition=1)
    with stage.start_worker() as worker:
        worker.wait_until_ready()
        stage.produce_json(documents(0, 10))
        stage.wait_until_committed({0: 10, 1: 10}, worker)
        worker.drain()

    group = f"{stage.name}-without-partition-1"
    source = stage.topics["source"]
    asyncio.run(topics.commit_offsets(broker.bootstrap, group, source, {0: 10}))
    stage.produce_json(documents(10, 20))
    with stage.variant("expired", kafka={"group_id": group}).start_worker() as worker:
        stage.wait_for(20, worker)
        worker.drain()
    committed = asyncio.run(topics.committed_offsets(broker.bootstrap, group, source))
    assert committed == {0: 20, 1: 10}
    assert {number for number, _ in stage.outcomes()} == {0}
    assert_all_judged_once(stage, 20)
