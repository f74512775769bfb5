"""Committed offsets against what was judged: no record is skipped, and none is judged twice.

Each case is one row of the table "Offsets of the source" in docs/guarantees.md, in both modes. A
test takes the remedies from the message, and then checks that records flow again.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from streamdedup.admin.checks import check
from streamdedup.admin.findings import Finding
from streamdedup.formats import verdicts
from streamdedup.kafka.cluster import create_topics
from streamdedup.kafka.offsets import LaneProgress
from streamdedup.kafka.topics import NEW_SOURCE
from tests.support import topics
from tests.support.corpora import documents
from tests.support.faulty import Fault
from tests.support.oracle import assert_all_judged_once
from tests.support.outcomes import POSITION_IN
from tests.support.patience import wait_until
from tests.support.split import split_on
from tests.support.stage import Stage
from tests.support.topics import Message
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.kafka

COMMAND = re.compile(r"'kafka-consumer-groups.sh --bootstrap-server (\S+) --group (\S+) (.*?)'")
RESET = re.compile(
    r"--topic (\S+):(\d+) --reset-offsets (--to-offset (\d+)|--to-earliest) --execute"
)
FAULTY = "tests.support.faulty"
MODES = pytest.mark.parametrize("mode", ["single", "split"])


@dataclass
class Reading:
    """A stage, and the role that reads its source; with mode split a judge runs beside it."""

    stage: Stage

    def start(self, module: str = "streamdedup", **environment: str) -> WorkerProcess:
        """Start the role that reads the source."""
        flags = ["--role", "edge"] if self.stage.mode == "split" else []
        return self.stage.start_worker(*flags, env=environment, module=module)

    def run_until_committed(self, offsets: Mapping[int, int], **environment: str) -> None:
        """Run it until the group's offsets are these, and drain it."""
        with self.start(**environment) as reader:
            self.stage.wait_until_committed(offsets, reader)
            reader.drain()

    def reset(self, message: str) -> None:
        """Do what the command in a message does."""
        bootstrap, group, flags = COMMAND.findall(message)[0]
        topic, partition, to, offset = RESET.fullmatch(flags).groups()  # type: ignore[union-attr]
        stage = self.stage
        assert (bootstrap, group, topic) == (stage.bootstrap, stage.name, stage.topics["source"])
        number = int(partition)
        first = asyncio.run(topics.first_offsets(stage.bootstrap, topic))
        stage.commit({number: first[number] if to == "--to-earliest" else int(offset)})

    def refused(self, *fragments: str) -> str:
        """Start the role, which must end with exit code 5; return its message."""
        with self.start() as reader:
            reader.assert_ends(5, *fragments)
            return reader.complaint()


@contextmanager
def reading(mode: str, broker: Broker, folder: Path, partitions: int = 1) -> Iterator[Reading]:
    """Yield a new stage of a mode."""
    if mode == "single":
        stage = Stage(broker.bootstrap, folder)
        stage.create_topics(partitions)
        yield Reading(stage)
        return
    with split_on(broker.bootstrap, folder, partitions, edges=0) as split:
        yield Reading(split.stage)
        split.drain()


def findings_of(stage: Stage, name: str) -> list[Finding]:
    """Return what ``config check`` says under this name."""
    return [one for one in asyncio.run(check(stage.settings())) if one.check == name]


def offsets_in(stage: Stage, partition: int) -> set[int]:
    """Return the offsets of the records of a partition that have an outcome, each of them once."""
    return {offset for number, offset in stage.outcomes() if number == partition}


@MODES
@pytest.mark.long
def test_transaction_markers_at_the_end_are_passed(
    mode: str, broker: Broker, tmp_path: Path
) -> None:
    """The group shows no lag behind markers and aborted records; retention may delete them all."""
    with reading(mode, broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_in_transaction(documents(0, 20))
        with roles.start() as reader:
            stage.wait_until_committed({0: 21}, reader)
            stage.produce_in_transaction(documents(20, 25), aborts=True)
            stage.wait_until_committed({0: 27}, reader)
            reader.drain()
        stage.delete_records("source", 27)
        if mode == "single":
            assert findings_of(stage, "group offsets")[0].exit_code == 0
        stage.produce_json(documents(27, 30))
        roles.run_until_committed({0: 30})
        assert offsets_in(stage, 0) == {*range(20), *range(27, 30)}


@MODES
@pytest.mark.long
def test_deleted_records_that_were_not_read(mode: str, broker: Broker, tmp_path: Path) -> None:
    """The start is refused; the command in the message continues without them."""
    with reading(mode, broker, tmp_path, 2) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20), partition=1)
        roles.run_until_committed({0: 0, 1: 20})
        stage.produce_json(documents(20, 40), partition=1)
        stage.delete_records("source", 30, partition=1)
        message = roles.refused("partition 1", "at offset 20, the topic begins at 30")
        roles.reset(message)
        roles.run_until_committed({0: 0, 1: 40})
        assert offsets_in(stage, 1) == {*range(20), *range(30, 40)}
        stage.produce_json(documents(40, 50), partition=1)
        roles.run_until_committed({0: 0, 1: 50})
        assert offsets_in(stage, 1) == {*range(20), *range(30, 50)}


@MODES
@pytest.mark.long
def test_records_are_deleted_before_a_running_role_reads_them(
    mode: str, broker: Broker, tmp_path: Path
) -> None:
    """It ends as if it had started then, and the same command continues."""
    with reading(mode, broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20))
        with roles.start() as reader:
            stage.wait_until_committed({0: 20}, reader)
            reader.process.send_signal(signal.SIGSTOP)
            # An answer to its last request may bring the first ones of these.
            stage.produce_json(documents(20, 30))
            stage.produce_json(documents(30, 50))
            stage.delete_records("source", 45)
            reader.process.send_signal(signal.SIGCONT)
            reader.assert_ends(5, "the topic begins at 45")
            message = reader.complaint()
        roles.reset(message)
        roles.run_until_committed({0: 50})
        assert {*range(20), *range(45, 50)} <= offsets_in(stage, 0)


@MODES
@pytest.mark.long
def test_offsets_past_unjudged_records_are_refused(
    mode: str, broker: Broker, tmp_path: Path
) -> None:
    """As after commits of another consumer: a command judges the records, a setting skips them."""
    with reading(mode, broker, tmp_path, 2) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20), partition=1)
        roles.run_until_committed({0: 0, 1: 20})
        stage.produce_json(documents(20, 40), partition=1)
        stage.commit({1: 30})
        message = roles.refused("partition 1: committed 30, judged up to 20", "skip_unjudged")
        if mode == "single":
            [finding] = findings_of(stage, "group offsets")
            assert (finding.exit_code, finding.message) == (
                5,
                message.removeprefix("streamdedup: "),
            )
        roles.reset(message)
        roles.run_until_committed({0: 0, 1: 40})
        assert offsets_in(stage, 1) == {*range(40)}

        stage.produce_json(documents(40, 60), partition=1)
        stage.commit({1: 45})
        with roles.start(STREAMDEDUP_KAFKA__SKIP_UNJUDGED="true") as reader:
            skipped = reader.wait_for_event("skipping records that were not judged")
            assert (skipped["partition"], skipped["begin"], skipped["end"]) == (1, 40, 45)
            stage.wait_until_committed({0: 0, 1: 60}, reader)
            reader.drain()
        stage.produce_json(documents(60, 70), partition=1)
        roles.run_until_committed({0: 0, 1: 70})
        assert offsets_in(stage, 1) == {*range(40), *range(45, 70)}


@pytest.mark.long
def test_skipped_records_count_as_judged_without_later_ones(broker: Broker, tmp_path: Path) -> None:
    """The setting is for one start, although no record follows the skipped ones."""
    with reading("split", broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 40))
        stage.commit({0: 20})
        roles.run_until_committed({0: 40})
        stage.produce_json(documents(40, 50))
        stage.commit({0: 50})
        with roles.start(STREAMDEDUP_KAFKA__SKIP_UNJUDGED="true") as edge:
            edge.wait_for_event("lane begins")
            wait_until(lambda: judged_to(stage) == 50, "the skipped records to be passed")
            edge.drain()
        with roles.start() as edge:
            edge.wait_for_event("lane begins")
            edge.drain()


def judged_to(stage: Stage) -> int:
    """Return the end of the last verdicts on partition 0."""
    return max(
        verdicts.decode(record.value).source.next_offset
        for record in stage.read("verdicts")
        if LaneProgress.read(record) is None
    )


@pytest.mark.long
def test_a_judge_whose_verdicts_are_deleted_says_where_it_is(
    broker: Broker, tmp_path: Path
) -> None:
    """An edge cannot know then that its offset is past what was judged: the judge answers."""
    with reading("split", broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20))
        roles.run_until_committed({0: 20})
        stage.delete_records("verdicts", -1)
        stage.produce_json(documents(20, 40))
        stage.commit({0: 30})
        message = roles.refused("partition 0: committed 30, judged up to 20")
        roles.reset(message)
        roles.run_until_committed({0: 40})
        assert offsets_in(stage, 0) == {*range(40)}


@MODES
@pytest.mark.long
def test_kill_after_offsets_were_set_back(mode: str, broker: Broker, tmp_path: Path) -> None:
    """The next start continues where the killed one was: the brokers have not lost that offset."""
    with reading(mode, broker, tmp_path) as roles:
        stage = roles.stage
        stage.configure(batch={"documents": 10})
        stage.produce_json(documents(0, 60))
        roles.run_until_committed({0: 60})
        stage.commit({0: 5})
        # The first transaction only commits where it begins.
        fault = Fault("produce", 3, "kill", 0, str(tmp_path / "fault"))
        with roles.start(module=FAULTY, **fault.environment()) as reader:
            assert reader.wait() == -signal.SIGKILL
        assert 5 < stage.committed()[0] < 60
        roles.run_until_committed({0: 60})
        written = Counter(
            json.loads(record.value)["id"]
            for role in ("clean", "duplicates")
            for record in stage.read(role)
        )
        assert Counter(written.values()) == {1: 5, 2: 55}


@MODES
@pytest.mark.long
def test_offsets_that_were_set_back(mode: str, broker: Broker, tmp_path: Path) -> None:
    """The records are written again, with the verdicts that they had."""
    with reading(mode, broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20))
        roles.run_until_committed({0: 20})
        stage.commit({0: 5})
        stage.produce_json(documents(20, 30))
        roles.run_until_committed({0: 30})
        written = Counter(
            (role, record.key, record.value)
            for role in ("clean", "duplicates")
            for record in stage.read(role)
        )
        assert Counter(written.values()) == {1: 15, 2: 15}


@pytest.mark.long
def test_offsets_set_back_before_deleted_verdicts(broker: Broker, tmp_path: Path) -> None:
    """Only the judge knew these verdicts: the message says how to leave the records out."""
    with reading("split", broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20))
        roles.run_until_committed({0: 20})
        stage.delete_records("verdicts", -1)
        stage.commit({0: 5})
        message = roles.refused("the verdicts on offsets 5 to 20 are missing")
        roles.reset(message)
        stage.produce_json(documents(20, 30))
        roles.run_until_committed({0: 30})
        assert_all_judged_once(stage, 30)


def test_a_group_without_its_offsets_continues(broker: Broker, tmp_path: Path) -> None:
    """Brokers delete the offsets of a group that is not used; the changelog knows them."""
    with reading("single", broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20))
        roles.run_until_committed({0: 20})
        stage.produce_json(documents(20, 30))
        stage.configure(kafka={"group_id": f"{stage.name}-other"})
        with roles.start() as worker:
            stage.wait_for(30, worker)
            worker.drain()
        assert_all_judged_once(stage, 30)


@MODES
@pytest.mark.long
def test_offsets_that_a_broker_has_lost(mode: str, broker: Broker, tmp_path: Path) -> None:
    """A coordinator that is killed may come back with earlier offsets: no record comes out twice.

    The offsets are those that were committed then, with their metadata.
    """
    with reading(mode, broker, tmp_path, 2) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20))
        roles.run_until_committed({0: 20, 1: 0})
        source = stage.topics["source"]
        earlier = asyncio.run(topics.committed_entries(stage.bootstrap, stage.name, source))
        stage.produce_json(documents(20, 40))
        roles.run_until_committed({0: 40, 1: 0})
        for start in (40, 50):
            stage.commit(earlier)
            stage.produce_json(documents(start, start + 10))
            roles.run_until_committed({0: start + 10, 1: 0})
            assert_all_judged_once(stage, start + 10)


@pytest.mark.long
def test_offsets_and_progress_that_the_brokers_have_deleted(broker: Broker, tmp_path: Path) -> None:
    """Only the outputs know what was written: the message says where to look."""
    with reading("split", broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20))
        roles.run_until_committed({0: 20})
        judged = [one.value for one in stage.read("verdicts") if LaneProgress.read(one) is None]
        stage.delete_records("verdicts", -1)
        asyncio.run(
            topics.produce(
                stage.bootstrap, stage.topics["verdicts"], [Message(one) for one in judged]
            )
        )
        stage.produce_json(documents(20, 30))
        group, source = f"{stage.name}-other", stage.topics["source"]
        stage.configure(kafka={"group_id": group})
        roles.refused(
            "has no offset, but there are verdicts", f"--topic {source}:0 --reset-offsets"
        )
        written = max(offset for _, offset in stage.outcomes())
        asyncio.run(topics.commit_offsets(stage.bootstrap, group, source, {0: written + 1}))
        with roles.start() as edge:
            stage.wait_for(30, edge)
            edge.drain()
        assert_all_judged_once(stage, 30)


@pytest.mark.long
def test_edges_without_the_offsets_of_their_group(broker: Broker, tmp_path: Path) -> None:
    """The topic of the verdicts has the last offset too, and they continue there."""
    with reading("split", broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20))
        roles.run_until_committed({0: 20})
        stage.produce_json(documents(20, 30))
        stage.configure(kafka={"group_id": f"{stage.name}-other"})
        with roles.start() as edge:
            stage.wait_for(30, edge)
            edge.drain()
        assert_all_judged_once(stage, 30)


@MODES
@pytest.mark.long
def test_a_recreated_source_is_refused_whatever_its_offsets(
    mode: str, broker: Broker, tmp_path: Path
) -> None:
    """A refilled topic has the offsets of the old one, and other records.

    The remedy is another group, changelog and index. The old changelog's claim ends with its topic.
    """
    with reading(mode, broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20))
        roles.run_until_committed({0: 20})
        assert findings_of(stage, "recreated topics") == []
        stage.delete_topic("source")
        stage.create_topics()
        stage.produce_json(documents(20, 60))
        message = roles.refused(stage.topics["source"], "recreated")
        assert NEW_SOURCE in message
        if mode == "single":
            assert [one.exit_code for one in findings_of(stage, "recreated topics")] == [5]
        stage.delete_topic("changelog")
        shared = {role: stage.topics[role] for role in ("source", *POSITION_IN)}
        other = Stage(broker.bootstrap, tmp_path / "renewed", mode=mode)
        other.configure(topics=other.topics | shared)
        asyncio.run(create_topics(other.settings(), 1, 1))
        with other.start_worker() as worker:
            group, source = other.name, shared["source"]
            wait_until(
                lambda: (
                    asyncio.run(topics.committed_offsets(broker.bootstrap, group, source))
                    == {0: 40}
                ),
                "the records of the new topic to be judged",
            )
            worker.drain()
        assert sum(len(stage.read(role)) for role in POSITION_IN) == 60


@pytest.mark.long
def test_a_source_that_is_recreated_under_an_edge(broker: Broker, tmp_path: Path) -> None:
    """Its offsets name other records, even if there are more of them: the edge ends."""
    with reading("split", broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20))
        with roles.start() as edge:
            stage.wait_until_committed({0: 20}, edge)
            stage.delete_topic("source")
            stage.create_topics()
            stage.produce_json(documents(20, 70))
            edge.assert_ends(5, stage.topics["source"], "recreated")
        assert len(stage.outcomes()) == 20


@MODES
def test_latest_applies_to_every_partition_of_the_first_start(
    mode: str, broker: Broker, tmp_path: Path
) -> None:
    """The history of no partition is judged, although partitions begin one after another."""
    with reading(mode, broker, tmp_path, 12) as roles:
        stage = roles.stage
        stage.configure(kafka={"start": "latest"})
        for partition in range(12):
            stage.produce_json(documents(0, 10), partition)
        with roles.start() as reader:
            stage.wait_until_committed(dict.fromkeys(range(12), 10), reader)
            stage.produce_json(documents(10, 20), 3)
            stage.wait_until_committed(dict.fromkeys(range(12), 10) | {3: 20}, reader)
            reader.drain()
        assert stage.outcomes().keys() == {(3, offset) for offset in range(10, 20)}


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


@pytest.mark.long
def test_a_standby_is_as_careful(broker: Broker, tmp_path: Path) -> None:
    """Each worker of a pair refuses to skip records; after the remedy one of them judges them."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(standby={"enabled": True})
    stage.create_topics()
    pair = [stage.variant("first"), stage.variant("second")]
    stage.produce_json(documents(0, 20))
    with pair[0].start_worker() as first, pair[1].start_worker() as second:
        stage.wait_until_committed({0: 20}, first)
        stage.produce_in_transaction(documents(20, 25), aborts=True)
        stage.wait_until_committed({0: 26}, first)
        stage.delete_records("source", 26)
        first.drain()
        stage.produce_json(documents(26, 30))
        stage.wait_until_committed({0: 30}, second)
        second.drain()
    stage.produce_json(documents(30, 40))
    stage.commit({0: 35})
    for each in pair:
        with each.start_worker() as worker:
            worker.assert_ends(5, "partition 0: committed 35, judged up to 30")
            message = worker.complaint()
    Reading(stage).reset(message)
    with pair[0].start_worker() as first, pair[1].start_worker() as second:
        stage.wait_until_committed({0: 40}, second)
        first.drain()
        second.drain()
    assert offsets_in(stage, 0) == {*range(20), *range(26, 40)}


@MODES
@pytest.mark.long
def test_an_expired_changelog_of_an_idle_stream(mode: str, broker: Broker, tmp_path: Path) -> None:
    """Retention deletes its entries and the markers behind them: the index lacks nothing."""
    with reading(mode, broker, tmp_path) as roles:
        stage = roles.stage
        stage.produce_json(documents(0, 20))
        roles.run_until_committed({0: 20})
    # A session reads the changelog to its end, and so passes the markers.
    owner = stage if mode == "single" else stage.variant("judge-0")
    flags = ["--role", "judge"] if mode == "split" else []
    for _ in range(2):
        with owner.start_worker(*flags) as worker:
            worker.wait_until_ready()
            stage.delete_records("changelog", -1)
            worker.drain()


@pytest.mark.long
def test_a_worker_that_is_idle_for_longer_than_its_changelog(
    broker: Broker, tmp_path: Path
) -> None:
    """It passes the marker of its last transaction while it runs, so any later start finds it."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(changelog={"retention.ms": "4000", "cleanup.policy": "delete"})
    stage.produce_json(documents(0, 20))
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 20}, worker)
        end = asyncio.run(topics.end_offsets(broker.bootstrap, [stage.topics["changelog"]]))
        [expected] = end.values()
        wait_until(
            lambda: worker.metric("index_durable_offset") == expected,
            "the index to pass the marker",
        )
        worker.kill()
    stage.delete_records("changelog", -1)
    with stage.start_worker() as worker:
        worker.wait_until_ready()
        worker.drain()
