"""Claims of changelogs on a source and a clean topic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from streamdedup.errors import TopicError
from streamdedup.kafka.claim import check_claims, claim
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka


def changelogs(broker: Broker, tmp_path: Path, count: int) -> list[Stage]:
    """Return stages that differ in the changelog only, and create their topics."""
    stage = Stage(broker.bootstrap, tmp_path)
    stages = [
        stage.variant(str(number), topics={"changelog": f"{stage.name}-{number}"})
        for number in range(count)
    ]
    for stage in stages:
        stage.create_topics()
    return stages


def claims(*stages: Stage) -> list[bool]:
    """Let the changelogs of these stages claim at the same time; return who succeeded."""

    async def all_claim() -> list[BaseException | None]:
        return await asyncio.gather(
            *(claim(stage.settings()) for stage in stages), return_exceptions=True
        )

    outcomes = asyncio.run(all_claim())
    assert all(outcome is None or isinstance(outcome, TopicError) for outcome in outcomes)
    return [outcome is None for outcome in outcomes]


def test_at_most_one_of_those_that_start_together_succeeds(broker: Broker, tmp_path: Path) -> None:
    """Those that fail leave no claim behind."""
    stages = changelogs(broker, tmp_path, 5)
    accepted = claims(*stages)
    assert sum(accepted) <= 1
    chosen = stages[accepted.index(True) if any(accepted) else 0]
    assert claims(chosen) == [True]


def test_only_the_same_source_and_clean_topic_are_refused(broker: Broker, tmp_path: Path) -> None:
    """Several sources may share a clean topic. A claim may be renewed."""
    first, second = changelogs(broker, tmp_path, 2)
    assert claims(first) == [True]
    assert claims(first) == [True]
    with pytest.raises(TopicError, match=first.settings().topics.changelog):
        asyncio.run(check_claims(second.settings()))
    assert claims(second) == [False]
    assert claims(first) == [True]
    clean = second.settings().topics.clean
    second.configure(topics={"clean": f"{clean}-2"})
    second.create_topics()
    assert claims(second) == [True]
    second.configure(topics={"clean": clean, "source": f"{clean}-source"})
    second.create_topics()
    assert claims(second) == [True]
