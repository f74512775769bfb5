"""What brokers, disks, clocks and operators do to a worker, with one oracle for all of it."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from tests.support import topics
from tests.support.corpora import stream_of_documents
from tests.support.faulty import Fault
from tests.support.oracle import assert_undisturbed
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.topics import Message

pytestmark = [pytest.mark.kafka, pytest.mark.faults]

FAULTY = "tests.support.faulty"


def documents(first: int, end: int) -> list[dict[str, Any]]:
    """Return documents by their numbers; every fourth repeats the text of the one before."""
    texts = stream_of_documents(1000)
    return [
        {"id": f"d{number}", "text": texts[(number - (number % 4 == 3)) % 1000]["text"][:500]}
        for number in range(first, end)
    ]


def small(stage: Stage) -> Stage:
    """Let a few hundred documents reach the disk."""
    stage.configure(
        batch={"documents": 50}, index={"delta_documents": 64, "window_documents": 1000}
    )
    return stage


def cut(path: Path) -> None:
    """Lose the second half of a file."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def empty(path: Path) -> None:
    """Lose the content of a file."""
    path.write_bytes(b"")


def flip(path: Path) -> None:
    """Change some bytes in the middle of a file."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = random.Random(1).randbytes(64)
    path.write_bytes(content)


@pytest.mark.damages_index
@pytest.mark.parametrize("damage", [cut, empty, flip], ids=["cut", "empty", "flipped"])
@pytest.mark.parametrize("name", ["manifest/data.mdb", "segments"])
def test_a_damaged_index_is_refused_and_rebuilt(
    name: str, damage: Callable[[Path], None], broker: Broker, tmp_path: Path
) -> None:
    """The worker ends with the remedy; without the directory it starts again from the changelog."""
    stage = small(Stage(broker.bootstrap, tmp_path))
    stage.create_topics()
    stage.produce_json(documents(0, 300))
    stage.run_until_judged(300)
    if name == "segments":
        files = [path for path in stage.index.rglob("*") if path.parent.name.isdigit()]
        damage(max(files, key=lambda path: path.stat().st_size))
    else:
        damage(stage.index / name)
    stage.produce_json(documents(300, 400))
    with stage.start_worker() as worker:
        # Damage in a part that nothing needs at the start is found when it is read.
        wait_until(
            lambda: worker.process.poll() is not None or len(stage.outcomes()) == 400, "an end"
        )
        if worker.process.poll() is not None:
            worker.assert_ends(12, "damaged", "remove")
            shutil.rmtree(stage.index)
    stage.run_until_judged(400)
    assert_undisturbed(stage)


def test_a_signal_during_a_replay(broker: Broker, tmp_path: Path) -> None:
    """The worker ends at once and with 0; the next one replays from the same offset."""
    stage = small(Stage(broker.bootstrap, tmp_path))
    stage.create_topics()
    stage.produce_json(documents(0, 400))
    stage.run_until_judged(400)
    shutil.rmtree(stage.index)
    fault = Fault("replay", 3, "delay", 2.0, str(tmp_path / "fault"))
    with stage.start_worker(env=fault.environment(), module=FAULTY) as worker:
        wait_until(lambda: bool(fault.processes()), "a replay")
        worker.drain()
    stage.produce_json(documents(400, 500))
    stage.run_until_judged(500)
    assert_undisturbed(stage)


@pytest.mark.parametrize("step_s", [-3500, 3500], ids=["back", "ahead"])
def test_a_clock_that_jumps_changes_no_verdict(step_s: int, broker: Broker, tmp_path: Path) -> None:
    """The worker's own clock decides about no document, within the hour that topics allow."""
    stage = small(Stage(broker.bootstrap, tmp_path))
    stage.create_topics(2)
    stage.produce_json(documents(0, 200))
    env = {"CLOCK_STEP": json.dumps([0.5, step_s])}
    with stage.start_worker(env=env, module=FAULTY) as worker:
        stage.wait_for(200, worker)
        stage.produce_json(documents(200, 400), partition=1)
        stage.wait_for(400, worker)
        worker.drain()
    assert_undisturbed(stage)


def test_a_clock_that_jumps_ten_years_ends_the_worker(broker: Broker, tmp_path: Path) -> None:
    """The broker refuses the timestamps of its records; with a right clock it continues."""
    stage = small(Stage(broker.bootstrap, tmp_path))
    after_max = {"message.timestamp.after.max.ms": "3600000"}
    stage.create_topics(duplicates=after_max, changelog=after_max)
    stage.produce_json(documents(0, 100))
    env = {"CLOCK_STEP": json.dumps([0, 10 * 365 * 86_400])}
    with stage.start_worker(env=env, module=FAULTY) as worker:
        worker.assert_ends(15, "clock")
    stage.run_until_judged(100)
    assert_undisturbed(stage)


def test_partitions_added_while_the_worker_is_away(broker: Broker, tmp_path: Path) -> None:
    """New partitions of the source and of the outputs are read and written from their start."""
    stage = small(Stage(broker.bootstrap, tmp_path))
    stage.create_topics(2)
    stage.produce_json(documents(0, 100), partition=1)
    stage.run_until_judged(100)
    for role in ("source", "clean", "duplicates", "dead_letter"):
        stage.add_partitions(role, 5)
    for partition in range(5):
        first = 100 + 50 * partition
        stage.produce_json(documents(first, first + 50), partition)
    stage.run_until_judged(350)
    stage.add_partitions("source", 7)
    stage.produce_json(documents(350, 400), partition=6)
    stage.run_until_judged(400)
    outcomes = assert_undisturbed(stage)
    assert outcomes["duplicates"] > 50
    assert {record.partition for record in stage.read("clean")} >= set(range(5))


def test_gaps_of_aborted_transactions_and_of_deleted_records(
    broker: Broker, tmp_path: Path
) -> None:
    """Offsets without records are normal: aborted records and markers, and a late begin."""
    stage = small(Stage(broker.bootstrap, tmp_path))
    stage.create_topics()
    stage.produce_json(documents(0, 50))
    stage.delete_records("source", 20)
    for turn in range(1, 4):
        stage.produce_in_transaction(documents(1000 * turn, 1000 * turn + 7), aborts=True)
        stage.produce_in_transaction(documents(50 * turn, 50 * turn + 50))
    stage.run_until_judged(180)
    assert_undisturbed(stage)


@pytest.mark.timeout(240)
def test_a_compacted_source(broker: Broker, tmp_path: Path) -> None:
    """The broker removes records in the middle of a partition; the worker continues over them."""
    stage = small(Stage(broker.bootstrap, tmp_path))
    compacted = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "100",
        "max.compaction.lag.ms": "100",
    }
    stage.create_topics(source=compacted)
    content = documents(0, 300)
    for first in range(0, 300, 30):
        # Ten keys: most records are replaced by later ones.
        stage.produce(
            Message(json.dumps(one).encode(), f"k{number % 10}".encode())
            for number, one in enumerate(content[first : first + 30])
        )
        time.sleep(0.2)
    stage.produce([Message(json.dumps(one).encode(), b"last") for one in documents(300, 301)])

    def is_compacted() -> bool:
        stage.produce([Message(json.dumps(documents(400, 401)[0]).encode(), b"last")])
        return len(stage.read("source")) < 200

    wait_until(is_compacted, "the broker to compact the source", 150)
    end = asyncio.run(topics.end_offsets(broker.bootstrap, [stage.topics["source"]]))
    stage.run_until_committed({0: end[stage.topics["source"]]})
    remaining = {record.offset for record in stage.read("source")}
    judged = {offset for _, offset in stage.outcomes()}
    assert remaining <= judged


def test_a_source_that_is_recreated_under_a_running_worker(broker: Broker, tmp_path: Path) -> None:
    """Its offsets name other records: the worker ends with the remedy, and judges none of them."""
    stage = small(Stage(broker.bootstrap, tmp_path))
    stage.create_topics()
    stage.produce_json(documents(0, 100))
    with stage.start_worker() as worker:
        stage.wait_for(100, worker)
        stage.delete_topic("source")
        stage.create_topics()
        stage.produce_json(documents(100, 150))
        worker.assert_ends(5, stage.topics["source"], "recreated")
    assert len(stage.outcomes()) == 100


def test_twins_in_one_batch_over_partitions(broker: Broker, tmp_path: Path) -> None:
    """The first in the order of judgement is kept, and a replay decides the same."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(6)
    texts = [one["text"][:500] for one in stream_of_documents(400) if len(one["text"]) > 100][:50]
    for partition in range(6):
        stage.produce_json(
            [{"id": f"{partition}-{n}", "text": text} for n, text in enumerate(texts)], partition
        )
    stage.run_until_judged(6 * len(texts))
    outcomes = assert_undisturbed(stage)
    assert outcomes["clean"] <= len(texts)


def test_a_bucket_with_a_hundred_thousand_documents(broker: Broker, tmp_path: Path) -> None:
    """Boilerplate fills buckets: they stay at their size, and every document has a verdict."""
    count = 100_000
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(dedup={"threshold": 0.85})
    stage.create_topics(4)
    template = " ".join(f"word{number}" for number in range(60))
    rng = random.Random(1)
    for partition in range(4):
        stage.produce_json(
            (
                {
                    "id": f"{partition}-{number}",
                    "text": f"{template} {' '.join(rng.randbytes(4).hex() for _ in range(18))}",
                }
                for number in range(count // 4)
            ),
            partition,
        )
    with stage.start_worker() as worker:
        stage.wait_for(count, worker)
        assert worker.metric("buckets_truncated_total") > 0
        worker.drain()
    outcomes = assert_undisturbed(stage)
    assert outcomes.total() == count
