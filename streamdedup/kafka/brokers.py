"""*Pure.* Compares the brokers' clocks with this machine's, and their release with the tested ones.

Brokers refuse timestamps that are too far from their clock. The worker refuses records whose
timestamps are too far from its own. A transaction's start is a time by the coordinator's clock.

Brokers do not name their release. In KRaft mode they list the highest supported level of the
feature ``metadata.version``. Each release raises it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from streamdedup.errors import ClockWrong
from streamdedup.kafka.messages import TopicFacts
from streamdedup.settings.units import format_duration

TESTED = ("3.9.2", "4.0.2", "4.3.1")
"""Releases that ``make matrix`` runs the broker tests against, oldest first."""
LEVEL_FEATURE = "metadata.version"
"""The feature whose highest level shows the release of a broker."""
_LEVELS = range(21, 31)
"""The levels from the oldest to the newest of the tested releases."""
TIMESTAMP_MARGIN_MS = 60_000
"""Distance that timestamps keep from the broker's limit, because clocks differ."""


def least_difference_ms(before_ms: int, broker_ms: int, after_ms: int) -> int:
    """Return by how many milliseconds at least this machine's clock is ahead of the broker's.

    It is negative if this machine's clock is behind, and 0 if the clocks may agree. ``before_ms``
    and ``after_ms`` are its times before and after the broker read its own.
    """
    if before_ms > broker_ms:
        return before_ms - broker_ms
    return min(0, after_ms - broker_ms)


def clock_warning(ahead_ms: int, outputs: Iterable[TopicFacts]) -> str | None:
    """Return a warning if this machine's clock is ahead, or behind, by more than the margin.

    Raises:
        ClockWrong: the worker would refuse current records, or the brokers those of the worker.
    """
    if abs(ahead_ms) <= TIMESTAMP_MARGIN_MS:
        return None
    direction = "ahead of" if ahead_ms > 0 else "behind"
    difference = (
        f"the clock of this machine is {format_duration(dt.timedelta(milliseconds=abs(ahead_ms)))} "
        f"{direction} the brokers' clock"
    )
    for topic in outputs:
        # A slow clock makes current records look too new, and new messages too old.
        after_ms, before_ms = topic.timestamp_after_max_ms, topic.timestamp_before_max_ms
        if abs(ahead_ms) > (after_ms if ahead_ms > 0 else min(after_ms, before_ms)):
            raise ClockWrong(
                f"{difference}, more than the message.timestamp limits of topic {topic.name} "
                "allow, so current records would be refused; set the clocks, e.g. with NTP"
            )
    return f"{difference}; set the clocks, e.g. with NTP"


def describe_tested() -> str:
    """Return the tested releases for people, such as ``3.9 to 4.3``."""
    oldest, newest = (release.rpartition(".")[0] for release in (TESTED[0], TESTED[-1]))
    return f"{oldest} to {newest}"


def release_warning(level: int | None) -> str | None:
    """Return a warning if a broker with this level, if it lists one, runs an untested release."""
    tested = f"streamdedup is tested with Apache Kafka {describe_tested()}"
    if level is None:
        return (
            "the brokers do not report a release: they are older than 3.3, use ZooKeeper, or are "
            f"not Apache Kafka; {tested}; test with these brokers before you rely on them"
        )
    if level < _LEVELS.start:
        return f"the brokers are older than {TESTED[0]}; {tested}; upgrade the brokers"
    if level >= _LEVELS.stop:
        return (
            f"the brokers are newer than {TESTED[-1]}; {tested}; use a newer release of "
            "streamdedup if there is one, else test with these brokers"
        )
    return None
