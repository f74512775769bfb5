"""The warning about brokers of a release that the tests do not run against."""

from __future__ import annotations

import re

import pytest

from deploy.broker.jars import pinned_version
from streamdedup.kafka import brokers


@pytest.mark.parametrize(
    ("level", "fragment"),
    [
        (None, "not Apache Kafka; streamdedup is tested with Apache Kafka 3.9 to 4.3"),
        (20, "older than 3.9.2"),
        (21, None),
        (25, None),
        (30, None),
        (31, "newer than 4.3.1"),
    ],
)
def test_only_a_release_outside_of_the_tested_ones_gets_a_warning(
    level: int | None, fragment: str | None
) -> None:
    """The warning is one line; it names the tested releases and what to do."""
    warning = brokers.release_warning(level)
    if fragment is None:
        assert warning is None
        return
    assert warning is not None
    assert fragment in warning
    assert brokers.describe_tested() in warning
    assert re.search(r"; (upgrade|use|test)", warning)
    assert "\n" not in warning


def test_the_newest_tested_release_is_the_one_of_the_suite() -> None:
    """A newer release in pom.xml needs a higher level in the product."""
    assert pinned_version() == brokers.TESTED[-1]
