"""Requirements on the topics, and the retention of the changelog."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from typing import Any

import pytest

from streamdedup.kafka.messages import TopicFacts
from streamdedup.kafka.topics import (
    FOREVER,
    changelog_retention_ms,
    checkpoint_interval,
    recreated_topics,
    retention_warning,
    topic_names,
    topic_notes,
    topic_problems,
)
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings

DAY_MS = 86_400_000
WINDOW = {"window": "7d", "allowed_lateness": "1d"}


def facts(**changes: Any) -> TopicFacts:
    """Return a usable topic, with changes."""
    return replace(TopicFacts("documents-changelog", 1, 1_048_588, 2**62, 2**62), **changes)


def problems(role: str, **changes: Any) -> list[str]:
    """Return the problems of five usable topics after changes to one of them."""
    settings = Settings()
    name = getattr(settings.topics, role)
    topics = {topic: facts(name=topic) for topic in topic_names(settings)}
    topics[name] = facts(name=name, **changes)
    return topic_problems(settings, topics)


def test_usable_topics_have_no_problems() -> None:
    """Five topics as `topics create` makes them pass."""
    assert problems("source", partitions=12) == []


def with_ids(**ids: bytes) -> dict[str, TopicFacts]:
    """Return the source and the changelog, by name, with these ids by role."""
    names = Settings().topics
    return {name: facts(name=name, id=ids[role]) for role in ids if (name := getattr(names, role))}


@pytest.mark.parametrize(
    ("now", "recreated"),
    [
        ({"source": b"s", "changelog": b"c"}, []),
        ({"source": b"new", "changelog": b"c"}, ["another kafka.group_id"]),
        ({"source": b"s", "changelog": b"new"}, ["remove the index directory"]),
        ({"source": b"", "changelog": b""}, []),
    ],
    ids=["the same", "source", "changelog", "not reported"],
)
def test_a_recreated_topic_is_known_by_its_id(now: dict[str, bytes], recreated: list[str]) -> None:
    """An index notes the ids of its topics; brokers before 2.8 do not report any."""
    settings = Settings()
    noted = topic_notes(settings, with_ids(source=b"s", changelog=b"c"))
    found = recreated_topics(settings, with_ids(**now), noted.get)
    assert len(found) == len(recreated)
    assert all(words in problem for words, problem in zip(recreated, found, strict=True))
    assert recreated_topics(settings, with_ids(**now), dict[str, bytes]().get) == []


@pytest.mark.parametrize(
    ("role", "changes", "words"),
    [
        ("changelog", {"partitions": 2}, "has 2 partitions"),
        ("changelog", {"cleanup_policy": "compact"}, "cleanup.policy compact"),
        ("changelog", {"max_message_bytes": 899_999}, "batch.changelog_entry_bytes is 900000"),
        ("clean", {"min_insync_replicas": 2}, "min.insync.replicas is 2"),
    ],
    ids=str,
)
def test_an_unusable_topic_is_reported(role: str, changes: dict[str, Any], words: str) -> None:
    """Each problem is one sentence that names the topic."""
    (problem,) = problems(role, **changes)
    assert words in problem
    assert getattr(Settings().topics, role) in problem or "changelog topic" in problem


def test_a_compacted_source_has_no_problems() -> None:
    """Only the changelog must not be compacted, and only written topics need their replicas."""
    assert problems("source", cleanup_policy="compact", min_insync_replicas=2) == []


def test_all_missing_topics_are_named_at_once() -> None:
    """One start of a worker is enough to learn all of them."""
    (problem,) = topic_problems(Settings(), {})
    for name in topic_names(Settings()):
        assert name in problem


def test_the_changelog_is_kept_for_the_window_and_a_day() -> None:
    """The retention of `topics create` never warns; without a window it has no limit."""
    assert changelog_retention_ms(Settings()) == FOREVER
    settings = load_settings(index=WINDOW)
    retention_ms = changelog_retention_ms(settings)
    assert retention_ms == 9 * DAY_MS
    assert retention_warning(settings, facts(retention_ms=retention_ms)) is None


@pytest.mark.parametrize(
    ("index", "changes", "words"),
    [
        ({}, {}, None),
        ({}, {"retention_ms": 365 * DAY_MS}, ["365d", "10000000 documents", "retention.ms to -1"]),
        ({}, {"retention_bytes": 10**9}, ["1000000000 bytes", "retention.bytes to -1"]),
        (WINDOW, {"retention_ms": 8 * DAY_MS}, None),
        (WINDOW, {"retention_ms": 8 * DAY_MS - 1}, ["8d (index.window 7d", "to 777600000"]),
        (WINDOW, {"retention_bytes": 10**9}, ["1000000000 bytes"]),
        (
            WINDOW,
            {"retention_ms": DAY_MS, "retention_bytes": 7},
            ["1d (retention.ms 86400000) and at most 7 bytes"],
        ),
    ],
    ids=str,
)
def test_a_short_retention_is_reported(
    index: dict[str, Any], changes: dict[str, Any], words: list[str] | None
) -> None:
    """One line names both values; a retention equal to the window is enough."""
    warning = retention_warning(load_settings(index=index), facts(**changes))
    if words is None:
        assert warning is None
        return
    assert warning is not None
    assert "\n" not in warning
    for fragment in [*words, "copies would pass as new"]:
        assert fragment in warning


@pytest.mark.parametrize(
    ("retention_ms", "seconds"),
    [(FOREVER, 900), (8 * DAY_MS, 900), (600_000, 150), (100, 1)],
    ids=["without a limit", "days", "minutes", "none"],
)
def test_checkpoints_follow_the_retention(retention_ms: int, seconds: int) -> None:
    """Several checkpoints fit the retention, and a restart replays at most some minutes."""
    interval = checkpoint_interval(facts(retention_ms=retention_ms))
    assert interval == dt.timedelta(seconds=seconds)


SPLIT = load_settings(mode="split")


def problems_of_split(role: str, **changes: Any) -> list[str]:
    """Return the problems of usable topics of mode split after changes to one of them."""
    topics = {topic: facts(name=topic, partitions=1) for topic in topic_names(SPLIT)}
    name = getattr(SPLIT.topics, role)
    topics[name] = facts(name=name, **changes)
    return topic_problems(SPLIT, topics)


def test_usable_topics_of_mode_split_have_no_problems() -> None:
    """As many partitions of verdicts as of the source are enough, and more are no problem."""
    assert problems_of_split("source", partitions=1) == []
    assert problems_of_split("verdicts", partitions=3) == []


@pytest.mark.parametrize(
    ("role", "changes", "words"),
    [
        ("sketches", {"partitions": 2}, "the sketches topic .* 2 partitions.* order of judgement"),
        ("verdicts", {"cleanup_policy": "compact"}, "the verdicts topic .* cleanup.policy compact"),
        ("source", {"partitions": 2}, "verdicts topic .* 1 partitions, but .* has 2; .* at least"),
        ("clean", {"min_insync_replicas": 2}, "lower min.insync.replicas, or add replicas$"),
    ],
)
def test_an_unusable_topic_of_mode_split(role: str, changes: dict[str, Any], words: str) -> None:
    """Each problem is one sentence with its fix."""
    [problem] = problems_of_split(role, **changes)
    assert re.search(words, problem)


def test_missing_topics_of_mode_split_are_named_once() -> None:
    """A topic that does not exist has no other problem."""
    usable = {topic: facts(name=topic) for topic in topic_names(SPLIT)}
    for missing in usable:
        [problem] = topic_problems(SPLIT, {n: f for n, f in usable.items() if n != missing})
        assert problem.startswith(f"missing topics: {missing};")
