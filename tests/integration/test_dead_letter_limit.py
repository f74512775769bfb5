"""A worker stops at a limit on dead letters or with a wrong clock, before the topic is drained."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
import structlog

from deploy.broker.broker import Broker
from streamdedup.errors import ClockWrong
from streamdedup.kafka.cluster import inspect
from streamdedup.kafka.messages import Messages, Outgoing, Transaction
from streamdedup.kafka.writer import ChangelogWriter
from streamdedup.settings.sections import Settings
from tests.support.paths import ROOT
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000

NEAR_FUTURE = {"message.timestamp.after.max.ms": str(HOUR_MS)}
"""The default of Kafka 4.0; older releases have no limit."""


@pytest.mark.long
def test_a_wrong_setting_does_not_drain_the_topic(broker: Broker, tmp_path: Path) -> None:
    """Restarts count on from the committed batches; with the right setting, all are judged."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(2)
    wrong = {"text_fields": ["body"]}
    stage.configure(records=wrong, limits={"dead_letter_run": 5}, batch={"documents": 2})
    for partition in (0, 1):
        stage.produce_json(
            [{"id": str(number), "text": f"text {number}"} for number in range(6)], partition
        )
    for _ in range(2):
        with stage.start_worker() as worker:
            worker.assert_ends(14, "limits.dead_letter_run 5", "MissingText 2", "records.*")
        # Two batches of two were below the limit, before the first stop.
        assert set(stage.outcomes().values()) == {"dead_letter"}
        assert len(stage.outcomes()) == 4
    stage.configure(records={"text_fields": ["text"]}, batch={"documents": 100})
    stage.run_until_judged(12)
    assert sorted(stage.outcomes().values()).count("dead_letter") == 4


def test_a_worker_with_a_wrong_clock_ends(broker: Broker, tmp_path: Path) -> None:
    """It compares its clock with the broker's before it judges a record."""
    behind = (
        "import time\n"
        "true = time.time_ns\n"
        f"time.time_ns = lambda: true() - {2 * HOUR_MS * 1_000_000}\n"
    )
    (tmp_path / "sitecustomize.py").write_text(behind)
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(clean=NEAR_FUTURE)
    stage.produce_json([{"id": "a", "text": "A story."}])
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    with stage.start_worker(env={"PYTHONPATH": path}) as worker:
        worker.assert_ends(15, "behind the brokers' clock", "message.timestamp", "NTP")
    assert stage.outcomes() == {}


@pytest.mark.parametrize(("ahead_ms", "is_wrong"), [(2 * HOUR_MS, True), (HOUR_MS // 2, False)])
def test_a_producer_compares_its_clock(
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ahead_ms: int,
    is_wrong: bool,
) -> None:
    """A smaller difference is a warning."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(clean=NEAR_FUTURE)
    monkeypatch.setattr(
        "streamdedup.kafka.writer._now_ms", lambda: time.time_ns() // 1_000_000 + ahead_ms
    )
    with structlog.testing.capture_logs() as events:
        if is_wrong:
            with pytest.raises(ClockWrong, match="ahead of the brokers' clock"):
                asyncio.run(_start(stage.settings()))
        else:
            asyncio.run(_start(stage.settings()))
    assert len(events) == (not is_wrong), events


async def _start(settings: Settings) -> None:
    writer = ChangelogWriter(settings, await inspect(settings), 0)
    try:
        await writer.start()
    finally:
        await writer.close()


def test_a_timestamp_that_the_broker_refuses_is_an_error_of_its_own(
    broker: Broker, tmp_path: Path
) -> None:
    """Waiting for the broker would not fix it."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(clean=NEAR_FUTURE)
    asyncio.run(_commit_in_the_future(stage.settings()))


async def _commit_in_the_future(settings: Settings) -> None:
    writer = ChangelogWriter(settings, await inspect(settings), 0)
    in_two_hours = time.time_ns() // 1_000_000 + 2 * HOUR_MS
    try:
        await writer.start()
        message = Outgoing(settings.topics.clean, b"k", b"v", (), in_two_hours)
        with pytest.raises(ClockWrong, match="the broker refuses a timestamp"):
            await writer.commit(
                writer.build(Transaction([Messages.of(message.topic, [message])], [], {}))
            )
    finally:
        await writer.close()
