"""Fixtures that all tests share: one real broker, and the corpora."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.broker import Broker
from tests.broker.obtain import own_broker as start_own_broker
from tests.broker.obtain import running_broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One Apache Kafka for the whole run; see tests/broker for where it comes from."""
    with running_broker() as running:
        yield running


@pytest.fixture(scope="session")
def secured_broker() -> Iterator[Broker]:
    """A second broker, with login and TLS listeners."""
    with running_broker(secured=True) as running:
        yield running


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """A broker for one test alone, which may stop, kill and restart it."""
    with start_own_broker() as running:
        yield running
