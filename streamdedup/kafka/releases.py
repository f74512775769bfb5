"""*Pure.* The releases of Kafka that the tests run against, and a warning about any other.

Brokers do not name their release. In KRaft mode they list the highest supported level of the
feature ``metadata.version``. Each release raises it.
"""

from __future__ import annotations

TESTED = ("3.9.2", "4.0.2", "4.3.1")
"""Releases that ``make matrix`` runs the broker tests against, oldest first."""

LEVEL_FEATURE = "metadata.version"
"""The feature whose highest level shows the release of a broker."""

_LEVELS = range(21, 31)
"""The levels from the oldest to the newest of the tested releases."""


def describe_tested() -> str:
    """Return the tested releases for people, such as ``3.9 to 4.3``."""
    oldest, newest = (release.rpartition(".")[0] for release in (TESTED[0], TESTED[-1]))
    return f"{oldest} to {newest}"


def release_warning(level: int | None) -> str | None:
    """Return a warning if a broker runs a release that is not tested.

    Args:
        level: the highest ``metadata.version`` of the broker; None if it lists none.
    """
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
