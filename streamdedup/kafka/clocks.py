"""*Pure.* Compares the clock of this machine with the brokers'.

Brokers refuse timestamps that are too far from their clock. The worker refuses records whose
timestamps are too far from its own. A transaction's start is a time by the coordinator's clock.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from streamdedup.errors import ClockWrong
from streamdedup.kafka.messages import TopicFacts
from streamdedup.settings.units import format_duration

TIMESTAMP_MARGIN_MS = 60_000
"""Distance that timestamps keep from the broker's limit, because clocks differ."""


def least_difference_ms(before_ms: int, broker_ms: int, after_ms: int) -> int:
    """Return by how many milliseconds at least this machine's clock is ahead of the broker's.

    Args:
        before_ms: this machine's time at some moment before the broker read its clock.
        broker_ms: the broker's time.
        after_ms: this machine's time at some moment after that.

    Returns:
        Negative if this machine's clock is behind; 0 if the clocks may agree.
    """
    if before_ms > broker_ms:
        return before_ms - broker_ms
    return min(0, after_ms - broker_ms)


def clock_warning(ahead_ms: int, outputs: Iterable[TopicFacts]) -> str | None:
    """Return a warning if the clocks differ by more than the margin of timestamps.

    Args:
        ahead_ms: by how much this machine's clock is ahead.
        outputs: the topics that are written to.

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
