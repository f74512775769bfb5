"""Mode split: edges and a judge give the verdicts of one worker, every record once."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka.structs import OffsetAndMetadata

from deploy.broker.broker import Broker
from streamdedup.kafka.offsets import Metadata
from tests.support import topics
from tests.support.corpora import RealDocuments, documents
from tests.support.faulty import Fault
from tests.support.feed import BLOCK, PARTITIONS, Feed, Feeder
from tests.support.oracle import assert_all_judged_once, assert_undisturbed
from tests.support.patience import wait_until
from tests.support.split import Split, split_on
from tests.support.stage import Stage
from tests.support.topics import Message
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.kafka

FAULTY = "tests.support.faulty"
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
BY_TIME: dict[str, Any] = {
    "records": {"event_time_field": "at"},
    "index": {"window": "1h", "clock": "event", "delta_documents": 4096},
}
BY_NUMBER: dict[str, Any] = {"index": {"window_documents": 9_000, "delta_documents": 4096}}
EXACT: dict[str, Any] = {"dedup": {"verify": "exact"}}


def stream(count: int) -> Iterator[dict[str, Any]]:
    """Yield documents over six hours; some are late."""
    documents = RealDocuments()
    made = (document for _ in range(0, count, BLOCK) for document in documents.block(BLOCK))
    for number, document in enumerate(islice(made, count)):
        late_ms = HOUR_MS // 2 if number % 11 == 0 else 0
        at = START_MS + 6 * HOUR_MS * number // count - late_ms
        yield {**document, "at": at}


def produce(stage: Stage, documents: list[dict[str, Any]], partitions: int) -> None:
    """Append documents to the partitions of the source in turn."""
    for partition in range(partitions):
        stage.produce_json(documents[partition::partitions], partition)


def wait_until_written(split: Split, count: int) -> None:
    """Wait until so many records of the source are written."""

    def written() -> bool:
        split.assert_running()
        return sum(split.stage.committed().values()) == count

    wait_until(written, f"{count} records to be written")


def test_documents_and_poison(broker: Broker, tmp_path: Path) -> None:
    """Kept, duplicate and rejected records, with full headers, as a single worker writes them."""
    settings: Any = {
        "output": {"headers": "full", "include_value": True},
        "batch": {"documents": 70},
        "quality": {"shadow_sample": 1},
    }
    with split_on(broker.bootstrap, tmp_path, 2, **settings) as split:
        stage = split.stage
        documents = list(stream(600))
        produce(stage, documents, 2)
        poison = [b"{", b'{"text": 1}', None, b'{"id": "blank", "text": ""}']
        stage.produce([Message(value, b"key", 1) for value in poison])
        wait_until_written(split, 604)
        assert_quality(split)
        split.drain()
        outcomes = assert_undisturbed(stage)
        assert outcomes["dead_letter"] == 3
        assert outcomes["duplicates"] > 30
        for record in stage.read("clean"):
            headers = dict(record.headers)
            document = json.loads(record.value)
            assert headers["streamdedup-id"] == document["id"].encode()
        stage.mode = "single"  # its worker continues with the same changelog and the same offsets
        stage.configure()
        index = split.stage.folder / "judge-0" / "index"
        index.rename(stage.index)
        produce(stage, [{"id": "again", "text": documents[0]["text"]}], 1)
        stage.run_until_judged(605)
        assert stage.outcomes()[0, 300] == "duplicates"


def assert_quality(split: Split) -> None:
    """Check that the judge estimates, and that the edge samples what it writes."""
    states = {name: json.loads(worker.get("/status")[1]) for name, worker in split.workers.items()}
    judged = {name: sum(state["judged"].values()) for name, state in states.items()}
    assert judged.pop("judge-0") == 601
    assert sum(judged.values()) == 604
    described = {name: state["quality"] for name, state in states.items()}
    judge, edge = described["judge-0"], described["edge-0"]
    assert judge["shadow"] is edge["estimate"] is None
    assert judge["estimate"]["documents"] == 601
    assert 0.9 < judge["estimate"]["recall"]["value"] <= 1.0
    # One batch may be audited at this moment, and the first takes long: it loads the kernels.
    assert sum(edge["shadow"]["documents"].values()) > 0


CASES = [
    pytest.param("single", 1, BY_TIME, id="single, by time"),
    pytest.param("single", 1, BY_NUMBER | EXACT, id="single, by number, exact"),
    pytest.param("split", 1, BY_NUMBER, id="one edge, by number"),
    pytest.param("split", 2, BY_TIME | EXACT, id="two edges, by time, exact"),
    pytest.param("split", 4, BY_TIME, id="four edges, by time"),
    pytest.param("split", 4, BY_NUMBER | EXACT, id="four edges, by number, exact"),
]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "edges", "settings"), CASES)
def test_many_documents(
    mode: str, edges: int, settings: dict[str, Any], broker: Broker, tmp_path: Path
) -> None:
    """24,000 documents: the verdicts of a replay of the order in which they were accepted."""
    documents = list(stream(24_000))
    if mode == "single":
        stage = Stage(broker.bootstrap, tmp_path)
        stage.configure(**settings)
        stage.create_topics(4)
        produce(stage, documents, 4)
        stage.run_until_committed(dict.fromkeys(range(4), 6_000))
    else:
        with split_on(broker.bootstrap, tmp_path, 4, edges, **settings) as split:
            stage = split.stage
            produce(stage, documents, 4)
            wait_until_written(split, 24_000)
            split.drain()
    outcomes = assert_undisturbed(stage)
    assert outcomes["clean"] > 12_000
    assert outcomes["duplicates"] > 1_200


@pytest.mark.long
def test_a_stopped_edge_writes_nothing_any_more(broker: Broker, tmp_path: Path) -> None:
    """Its partition goes to another edge; what it appends when it continues is left out."""
    settings: Any = {"kafka": {"session_timeout": "6s"}, "batch": {"documents": 60}}
    with split_on(broker.bootstrap, tmp_path, 1, edges=0, **settings) as split:
        feed = Feed(split.stage, 1)
        fault = Fault("append", 3, "stop", 0, str(tmp_path / "fault"))
        zombie = split.start("edge-0", env=fault.environment(), module=FAULTY)

        def has_stopped() -> bool:
            split.assert_running()
            if feed.is_committed():
                feed.add()
            return bool(fault.processes())

        wait_until(has_stopped, "the edge to stop")
        feed.add()
        split.start("edge-1")
        split.wait(feed)
        zombie.process.send_signal(signal.SIGCONT)
        feed.add()
        split.wait(feed)
        judge = split.workers["judge-0"]
        wait_until(lambda: repeated(judge) > 0, "rows of the stopped edge")
        split.drain()
    assert_undisturbed(split.stage)


def repeated(judge: WorkerProcess) -> float:
    """Return how many sketched records a judge has left out."""
    return judge.metric("sketched_records_total", result="repeated")


@pytest.mark.long
def test_edges_come_and_go(broker: Broker, tmp_path: Path) -> None:
    """One, four, two edges, while records arrive: nothing is lost, and nothing stays behind."""
    with split_on(broker.bootstrap, tmp_path, 4) as split, Feeder(split.stage, 4, 400) as feeder:
        wait_until(lambda: sum(split.stage.committed().values()) > 500, "the first edge to work")
        for number in (1, 2, 3):
            split.start(f"edge-{number}")
        for name in ("edge-1", "edge-2", "edge-3"):
            split.workers[name].wait_for_event("lane begins")
        split.drain("edge-0", "edge-2")
        sent = feeder.finish()
        wait_until_written(split, sent)
        split.drain()
    assert assert_undisturbed(split.stage).total() == sent


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True])
def test_from_single_to_split_and_back(killed: bool, broker: Broker, tmp_path: Path) -> None:
    """With the same changelog and group, under load: no record is lost or written twice."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(PARTITIONS)
    with Feeder(stage, PARTITIONS) as feeder:
        for more, mode in enumerate(("single", "split", "single"), start=1):
            wait_until(partial(has_sent, feeder, 600 * more), "documents")
            if mode == "single":
                stage.mode = mode
                stage.configure()
                with stage.start_worker() as worker:
                    wait_until_some_are_written(stage, feeder, worker)
                    worker.kill() if killed else worker.drain()
                continue
            with split_on(broker.bootstrap, tmp_path, PARTITIONS, name=stage.name) as split:
                wait_until_some_are_written(stage, feeder, *split.workers.values())
                if killed:
                    for worker in split.workers.values():
                        worker.kill()
                else:
                    split.drain()
        sent = feeder.finish()
    stage.run_until_committed(dict.fromkeys(range(PARTITIONS), sent // PARTITIONS))
    assert assert_undisturbed(stage, mode_changed=True).total() == sent


def run_until_an_edge_is_killed(stage: Stage, point: str) -> None:
    """Let a worker write 20 documents, a judge judge 10 more, and an edge be killed at a point."""
    stage.create_topics()
    stage.produce_json(documents(0, 20))
    stage.run_until_committed({0: 20})
    # The first transaction of a lane only commits where it begins.
    turn = 1 if point == "pair" else 2
    fault = Fault(point, turn, "kill", 0, str(stage.folder / "fault"))
    with split_on(stage.bootstrap, stage.folder, 1, edges=0, name=stage.name) as split:
        stage.produce_json(documents(20, 30))
        edge = split.start("edge-0", env=fault.environment(), module=FAULTY)
        assert edge.wait() == -signal.SIGKILL
        del split.workers["edge-0"]
        split.drain()
    stage.mode = "single"
    stage.configure()
    stage.produce_json(documents(30, 40))


@pytest.mark.long
@pytest.mark.parametrize("point", ["pair", "offsets"])
def test_a_worker_after_an_edge_was_killed(point: str, broker: Broker, tmp_path: Path) -> None:
    """Before or in a transaction: readers see each record once, as soon as it is written."""
    stage = Stage(broker.bootstrap, tmp_path)
    run_until_an_edge_is_killed(stage, point)
    stage.run_until_committed({0: 40})
    assert_all_judged_once(stage, 40)


@pytest.mark.long
def test_a_worker_after_a_judge_was_ahead(broker: Broker, tmp_path: Path) -> None:
    """An offset that a worker has committed counts, although later records have a verdict."""
    stage = Stage(broker.bootstrap, tmp_path)
    run_until_an_edge_is_killed(stage, "pair")
    source = stage.topics["source"]
    [entry] = asyncio.run(topics.committed_entries(stage.bootstrap, stage.name, source)).values()
    note = Metadata.read(entry.metadata).tally.note()
    stage.commit({0: OffsetAndMetadata(20, note)})
    stage.run_until_committed({0: 40})
    assert_all_judged_once(stage, 40)


@pytest.mark.long
def test_a_worker_without_the_offsets_of_an_edge(broker: Broker, tmp_path: Path) -> None:
    """Only the outputs know what was written: the message says where to look."""
    stage = Stage(broker.bootstrap, tmp_path)
    run_until_an_edge_is_killed(stage, "pair")
    group, source = f"{stage.name}-other", stage.topics["source"]
    stage.configure(kafka={"group_id": group})
    with stage.start_worker() as worker:
        worker.assert_ends(5, "has no offset, but there are verdicts", f"--topic {source}:0")
    written = max(offset for _, offset in stage.outcomes())
    asyncio.run(topics.commit_offsets(stage.bootstrap, group, source, {0: written + 1}))
    with stage.start_worker() as worker:
        stage.wait_for(40, worker)
        worker.drain()
    assert_all_judged_once(stage, 40)


def has_sent(feeder: Feeder, least: int) -> bool:
    """Return whether a feeder has sent at least a number of documents."""
    return feeder.sent >= least


def wait_until_some_are_written(stage: Stage, feeder: Feeder, *workers: WorkerProcess) -> None:
    """Wait until all records that are in the source now are written; more follow."""
    sent = feeder.sent

    def written() -> bool:
        for worker in workers:
            worker.assert_running()
        return sum(stage.committed().values()) >= sent

    wait_until(written, f"{sent} records to be written")


def test_all_roles_of_one_command(broker: Broker, tmp_path: Path) -> None:
    """``--role all``, the default, runs an edge and a judge, and ends both."""
    stage = Stage(broker.bootstrap, tmp_path, mode="split")
    stage.create_topics()
    produce(stage, list(stream(50)), 1)
    with stage.start_worker() as worker:
        stage.wait_for(50, worker)
        worker.drain()
    assert_undisturbed(stage)


@pytest.mark.long
def test_what_the_operator_did_wrong(broker: Broker, tmp_path: Path) -> None:
    """Each ends with one line that says what to do."""
    stage = Stage(broker.bootstrap, tmp_path, mode="split")
    with stage.start_worker("--role", "edge") as edge:
        edge.assert_ends(5, "missing topics", stage.topics["verdicts"])
    stage.create_topics(2)
    stage.add_partitions("source", 3)
    with stage.start_worker("--role", "judge") as judge:
        judge.assert_ends(5, "has 2 partitions, but", "has 3; it must have at least as many")
    stage.add_partitions("verdicts", 3)
    with stage.start_worker("--role", "judge") as judge:
        judge.wait_until_ready()
        other = stage.variant("other", dedup={"shingle_size": 9})
        produce(stage, list(stream(10)), 1)
        with other.start_worker("--role", "edge") as edge:
            judge.assert_ends(11, "an edge sketches with parameters", "give both the same settings")
            edge.drain()
    single = Stage(broker.bootstrap, tmp_path / "single")
    with single.start_worker("--role", "edge") as edge:
        edge.assert_ends(3, "--role edge needs mode split")


@pytest.mark.long
def test_new_partitions_are_read(broker: Broker, tmp_path: Path) -> None:
    """Once the topic of the verdicts has them too; without them the roles end and say so."""
    with split_on(broker.bootstrap, tmp_path, 1) as split:
        stage = split.stage
        documents = list(stream(90))
        produce(stage, documents[:30], 1)
        wait_until_written(split, 30)
        stage.add_partitions("verdicts", 2)
        stage.add_partitions("source", 2)
        produce(stage, documents[30:], 2)
        wait_until_written(split, 90)
        stage.add_partitions("source", 3)
        split.workers["edge-0"].assert_ends(5, "has 2 partitions, but", "at least as many")
        del split.workers["edge-0"]
        split.drain()
    assert_undisturbed(stage)


def test_what_another_program_writes(broker: Broker, tmp_path: Path) -> None:
    """Its records are left out with a warning, unless they look like those of a role."""
    with split_on(broker.bootstrap, tmp_path, 1) as split:
        stage = split.stage
        stage.produce_to("sketches", [b"hello"])
        stage.produce_to("verdicts", [b"hello"])
        produce(stage, list(stream(20)), 1)
        wait_until_written(split, 20)
        judge, edge = split.workers["judge-0"], split.workers["edge-0"]
        judge.wait_for_event("another program writes to the topic of the sketches")
        edge.wait_for_event("another program writes to the topic of the verdicts")
        damaged = msgspec.msgpack.encode({"version": 1})
        stage.produce_to("sketches", [damaged])
        judge.assert_ends(5, f"{stage.topics['sketches']} offset", "kafka-delete-records.sh")
        stage.produce_to("verdicts", [damaged])
        edge.assert_ends(
            5, f"{stage.topics['verdicts']} partition 0 offset", "only judge and edges"
        )
