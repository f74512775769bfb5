"""The comparison of this machine's clock with the brokers'."""

from __future__ import annotations

import pytest

from streamdedup.errors import ClockWrong
from streamdedup.kafka.brokers import clock_warning, least_difference_ms
from streamdedup.kafka.messages import TopicFacts

HOUR_MS = 3_600_000
OUTPUTS = [
    TopicFacts("clean", 3, 1_048_588, 24 * HOUR_MS, HOUR_MS),
    TopicFacts("changelog", 1, 1_048_588, 24 * HOUR_MS, 2 * HOUR_MS),
]
OLD_REFUSED = [TopicFacts("clean", 3, 1_048_588, HOUR_MS, 24 * HOUR_MS)]


@pytest.mark.parametrize(
    ("before_ms", "broker_ms", "after_ms", "expected"),
    [(100, 150, 200, 0), (100, 100, 100, 0), (100, 40, 200, 60), (100, 250, 200, -50)],
    ids=["within", "equal", "ahead", "behind"],
)
def test_the_least_difference(before_ms: int, broker_ms: int, after_ms: int, expected: int) -> None:
    """The duration of the request does not count as a difference."""
    assert least_difference_ms(before_ms, broker_ms, after_ms) == expected


@pytest.mark.parametrize(
    ("ahead_ms", "outputs", "message"),
    [
        (60_000, OUTPUTS, None),
        (-60_000, OUTPUTS, None),
        (60_001, OUTPUTS, "1m0.001s ahead of"),
        (-HOUR_MS, OUTPUTS, "1h behind"),
        (HOUR_MS, OLD_REFUSED, "1h ahead of"),
        (2 * HOUR_MS, OLD_REFUSED, "2h ahead of"),
    ],
)
def test_a_small_difference_is_a_warning(
    ahead_ms: int, outputs: list[TopicFacts], message: str | None
) -> None:
    """Up to a minute is normal; up to the topics' limits, current records pass."""
    warning = clock_warning(ahead_ms, outputs)
    assert warning is None if message is None else message in (warning or "")


@pytest.mark.parametrize(
    ("ahead_ms", "outputs", "fragment"),
    [
        (HOUR_MS + 1, OUTPUTS, "ahead of the brokers' clock, more than .* topic clean allow"),
        (-HOUR_MS - 1, OUTPUTS, "behind the brokers' clock, more than .* topic clean allow"),
        (-HOUR_MS - 1, OLD_REFUSED, "behind"),
    ],
)
def test_a_difference_beyond_the_limits_is_an_error(
    ahead_ms: int, outputs: list[TopicFacts], fragment: str
) -> None:
    """The worker would refuse current records, or the brokers would refuse its own."""
    with pytest.raises(ClockWrong, match=fragment):
        clock_warning(ahead_ms, outputs)
