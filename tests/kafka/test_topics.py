"""The topics: what keeps a worker from using them, and how long the changelog must be kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamdedup.kafka.messages import TopicFacts
from streamdedup.kafka.topics import (
    FOREVER,
    changelog_retention_ms,
    retention_warning,
    topic_names,
    topic_problems,
)
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings

DAY_MS = 86_400_000
WINDOW = {"window": "7d", "allowed_lateness": "1d"}


def facts(**changes: Any) -> TopicFacts:
    """Return the facts of a topic that suits, with changes."""
    return replace(TopicFacts("documents-changelog", 1, 1_048_588, 2**62, 2**62), **changes)


def problems(role: str, **changes: Any) -> list[str]:
    """Return what is said of five topics that suit, except for the changes to one."""
    settings = Settings()
    name = getattr(settings.topics, role)
    topics = {each: facts(name=each) for each in topic_names(settings.topics)}
    topics[name] = facts(name=name, **changes)
    return topic_problems(settings, topics)


def test_topics_that_suit_are_no_problem() -> None:
    """Five topics as `topics create` makes them are fine."""
    assert problems("source", partitions=12) == []


@pytest.mark.parametrize(
    ("role", "changes", "words"),
    [
        ("changelog", {"partitions": 2}, "has 2 partitions"),
        ("changelog", {"cleanup_policy": "compact"}, "cleanup.policy compact"),
        ("changelog", {"max_message_bytes": 899_999}, "batch.changelog_entry_bytes is 900000"),
        ("clean", {"min_insync_replicas": 2}, "fewer than 2 have"),
    ],
    ids=str,
)
def test_what_a_worker_cannot_use_is_said(role: str, changes: dict[str, Any], words: str) -> None:
    """Each is one sentence with the topic's name."""
    (problem,) = problems(role, **changes)
    assert words in problem
    assert getattr(Settings().topics, role) in problem or "changelog topic" in problem


def test_compaction_of_the_source_is_no_problem() -> None:
    """Only the changelog loses by it, and only what is written to needs its replicas."""
    assert problems("source", cleanup_policy="compact", min_insync_replicas=2) == []


def test_all_missing_topics_are_named_at_once() -> None:
    """Nobody has to start a worker five times."""
    (problem,) = topic_problems(Settings(), {})
    for name in topic_names(Settings().topics):
        assert name in problem


def test_the_changelog_is_kept_for_the_window_and_a_day() -> None:
    """The retention that `topics create` gives never warns; without a window it has no end."""
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
def test_a_short_retention_is_warned_of(
    index: dict[str, Any], changes: dict[str, Any], words: list[str] | None
) -> None:
    """One line names both values; a retention of exactly the window's span is enough."""
    warning = retention_warning(load_settings(index=index), facts(**changes))
    if words is None:
        assert warning is None
        return
    assert warning is not None
    assert "\n" not in warning
    for word in [*words, "copies would pass as new"]:
        assert word in warning
