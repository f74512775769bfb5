"""Recovery: after any loss of the index the verdicts are those of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from streamdedup.admin.checks import check
from streamdedup.admin.findings import Severity
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.errors import BrokerUnavailable
from streamdedup.formats import changelog
from streamdedup.kafka.readers import ChangelogReader
from streamdedup.model import Document
from tests.support import topics
from tests.support.corpora import stream_of_documents
from tests.support.outcomes import POSITION_IN
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.topics import Message

pytestmark = pytest.mark.kafka

PART = 500
Matches = list[tuple[str, float, float | None]]
"""Id, estimate and computed similarity (None without texts) of each match of a verdict; empty for a
kept document."""


def stream(count: int) -> list[dict[str, Any]]:
    """Return documents of which every third repeats an earlier one, some over a long distance."""
    fresh = stream_of_documents(count)
    documents = []
    for number in range(count):
        document = fresh[number]
        if number % 3 == 2:
            original = number - 1 if number % 2 else number // 2
            document = {"id": document["id"], "text": fresh[original]["text"] + " again"}
        documents.append(document)
    return documents


def expected(stage: Stage, documents: Sequence[dict[str, Any]]) -> list[Matches]:
    """Judge the documents in the same order in this process."""
    with Deduplicator(stage.settings()) as deduplicator:
        verdicts = deduplicator.process(
            Document(document["text"], document["id"]) for document in documents
        )
    return [
        [
            (
                match.id,
                round(match.jaccard_estimate, 6),
                None if match.jaccard is None else round(match.jaccard, 6),
            )
            for match in verdict.matches
        ]
        for verdict in verdicts
    ]


def verdicts(stage: Stage) -> dict[int, list[Matches]]:
    """Return the verdicts on each offset; there are two after its offset was reset."""
    by_offset: dict[int, list[Matches]] = {}
    for role in ("clean", "duplicates"):
        for record in stage.read(role):
            content = json.loads(record.value)
            matches = content["matches"] if role == "duplicates" else []
            _, offset = POSITION_IN[role](record)
            by_offset.setdefault(offset, []).append(
                [
                    (match["id"], match["jaccard_estimate"], match.get("jaccard"))
                    for match in matches
                ]
            )
    return by_offset


def test_a_lost_index_is_rebuilt_from_the_changelog(broker: Broker, tmp_path: Path) -> None:
    """After the loss of the index, and a reset of the offsets, the verdicts are unchanged.

    The texts that decide verdicts near the threshold are restored from the changelog too.
    """
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(batch={"documents": 64}, dedup={"verify": "exact", "threshold": 0.95})
    stage.create_topics()
    documents = stream(2 * PART)
    undisturbed = expected(stage, documents)

    stage.produce_json(documents[:PART])
    stage.run_until_committed({0: PART})
    shutil.rmtree(stage.index)
    stage.produce_json(documents[PART:])
    stage.run_until_committed({0: 2 * PART})
    once = dict(enumerate([matches] for matches in undisturbed))
    assert verdicts(stage) == once
    compared = [
        match for matches in undisturbed[PART:] for match in matches if match[2] is not None
    ]
    assert compared
    assert sum(bool(matches) for matches in undisturbed) > PART // 3

    # After an offset reset each position gets its earlier verdict, and none is indexed again.
    entries = len(stage.read("changelog"))
    stage.commit({0: 0})
    stage.run_until_committed({0: 2 * PART})
    assert verdicts(stage) == {offset: matches * 2 for offset, matches in once.items()}
    assert kept_documents(stage, since=entries) == []


@pytest.mark.long
def test_a_group_without_offsets_continues_at_the_index(broker: Broker, tmp_path: Path) -> None:
    """Brokers delete old offsets, but the changelog has them: no record gets a second verdict."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    documents = stream(30)
    stage.produce_json(documents[:20])
    stage.run_until_committed({0: 20})
    stage.produce_json(documents[20:])
    renamed = stage.variant("renamed", kafka={"group_id": f"{stage.name}-new"})
    with renamed.start_worker() as worker:
        stage.wait_for(30, worker)
        worker.drain()
    undisturbed = expected(stage, documents)
    assert verdicts(stage) == dict(enumerate([matches] for matches in undisturbed))


@pytest.mark.long
def test_a_slow_stream_needs_only_recent_entries(broker: Broker, tmp_path: Path) -> None:
    """Checkpoints follow the changelog's retention, so a restart never needs a deleted entry."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(changelog={"retention.ms": "4000"})
    documents = stream(20)
    stage.produce_json(documents[:10])
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 10}, worker)
        # The commit comes before the index applies the batch.
        wait_until(lambda: worker.metric("index_applied_offset") > 0, "an applied batch")
        applied = worker.metric("index_applied_offset")
        wait_until(lambda: worker.metric("index_durable_offset") >= applied, "a checkpoint by time")
        stage.delete_records("changelog", int(applied))
        worker.kill()
    stage.produce_json(documents[10:])
    stage.run_until_committed({0: 20})
    undisturbed = expected(stage, documents)
    assert verdicts(stage) == dict(enumerate([matches] for matches in undisturbed))


def test_an_empty_changelog_after_a_silence(broker: Broker, tmp_path: Path) -> None:
    """Its retention deletes all entries of a quiet stream; the index still has their documents."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    documents = stream(20)
    stage.produce_json(documents[:10])
    stage.run_until_committed({0: 10})
    stage.delete_records("changelog", stage.end("changelog"))
    stage.produce_json(documents[10:])
    stage.run_until_committed({0: 20})
    undisturbed = expected(stage, documents)
    assert verdicts(stage) == dict(enumerate([matches] for matches in undisturbed))
    # The start above left markers, too.
    stage.delete_records("changelog", stage.end("changelog"))
    with stage.start_worker() as worker:
        worker.wait_until_ready()
        worker.drain()


@pytest.mark.long
def test_a_changelog_that_lacks_an_entry(broker: Broker, tmp_path: Path) -> None:
    """No index can be rebuilt from it; the message says how to give up what is before the gap."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(batch={"documents": 10})
    stage.create_topics()
    documents = stream(30)
    stage.produce_json(documents)
    stage.run_until_committed({0: 30})
    entries = [record.value for record in stage.read("changelog")]
    assert len(entries) >= 3
    stage.delete_topic("changelog")
    stage.create_topics()
    stage.produce_to("changelog", [entries[0], *entries[2:]])  # as from a backup
    shutil.rmtree(stage.index)
    with stage.start_worker() as worker:
        worker.assert_ends(12, "at offset 1", "kafka-delete-records.sh")
    stage.delete_records("changelog", 1)
    shutil.rmtree(stage.index)
    stage.produce_json(documents[-5:])
    with stage.start_worker() as worker:
        worker.wait_for_event(
            "the changelog has lost its beginning, and copies of its documents pass as new"
        )
        stage.wait_for(35, worker)
        worker.drain()
    assert stage.outcomes()[0, 30] == "duplicates"  # of the last entry


@pytest.mark.long
def test_records_of_another_program_in_the_changelog(broker: Broker, tmp_path: Path) -> None:
    """A running worker warns and continues, and a rebuild leaves them out."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    documents = stream(40)
    log = stage.topics["changelog"]
    stage.produce_json(documents[:10])
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 10}, worker)
        asyncio.run(topics.produce(broker.bootstrap, log, [Message(b"hello"), Message(None)]))
        stage.produce_json(documents[10:20])
        warned = worker.wait_for_event("another program writes to the changelog")
        assert warned["topic"] == log
        stage.produce_json(documents[20:30])
        stage.wait_until_committed({0: 30}, worker)
        worker.drain()
    asyncio.run(topics.produce(broker.bootstrap, log, [Message(b"hello again")]))
    assert_check_finds_strangers(stage)
    shutil.rmtree(stage.index)
    stage.produce_json(documents[30:])
    stage.run_until_committed({0: 40})
    undisturbed = expected(stage, documents)
    assert verdicts(stage) == dict(enumerate([matches] for matches in undisturbed))


def assert_check_finds_strangers(stage: Stage) -> None:
    """Check that ``config check`` warns of the records that a start would leave out."""
    findings = asyncio.run(check(stage.settings()))
    [finding] = [one for one in findings if one.check == "changelog records"]
    assert finding.level is Severity.WARNING
    assert "another program" in finding.message
    assert stage.topics["changelog"] in finding.message


async def test_a_broker_that_is_lost_during_a_replay(own_broker: Broker, tmp_path: Path) -> None:
    """The replay ends at once, so that the worker reports it and waits for the broker."""
    stage = Stage(own_broker.bootstrap, tmp_path)
    await asyncio.to_thread(stage.create_topics)
    stage.configure(kafka={"request_timeout": "1h"})
    reader = ChangelogReader(stage.settings())
    await reader.start()
    reader.end = 5

    async def replay_all() -> None:
        async for _ in reader.entries(0):
            pass

    try:
        replay = asyncio.create_task(replay_all())
        await asyncio.to_thread(own_broker.kill)
        with pytest.raises(BrokerUnavailable, match="cannot connect to"):
            await replay
    finally:
        await reader.close()


def kept_documents(stage: Stage, since: int) -> list[str]:
    """Return the ids in the entries of the changelog, from the entry ``since`` on."""
    fingerprint = stage.settings().fingerprint
    return [
        document
        for record in stage.read("changelog")[since:]
        for document in changelog.decode(record.value, fingerprint).documents.ids
    ]


@pytest.mark.long
def test_an_index_behind_the_changelog_catches_up(broker: Broker, tmp_path: Path) -> None:
    """A crash after a commit leaves the index behind, here with split entries and a window."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(
        batch={"documents": 100, "changelog_entry_bytes": 10_000},
        index={"window_documents": PART // 2},
    )
    stage.create_topics()
    documents = stream(4 * PART)
    parts = [documents[start : start + PART] for start in range(0, 4 * PART, PART)]
    backup = tmp_path / "backup"
    for turn, part in enumerate(parts, start=1):
        stage.produce_json(part)
        stage.run_until_committed({0: turn * PART})
        if turn == 1:
            shutil.copytree(stage.index, backup)
        elif turn == 2:
            shutil.rmtree(stage.index)
            shutil.copytree(backup, stage.index)
        elif turn == 3:
            shutil.rmtree(stage.index)
    undisturbed = expected(stage, documents)
    assert verdicts(stage) == dict(enumerate([matches] for matches in undisturbed))
    assert len(stage.read("changelog")) > 2 * 4 * PART // 100
