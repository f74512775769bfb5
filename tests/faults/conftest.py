"""The cluster of the fault tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from deploy.broker.cluster import Cluster, running_cluster
from tests.support.replicas import wait_until_in_sync


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    """Yield three brokers and a controller for the tests of a module."""
    with running_cluster() as running:
        yield running


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Return a cluster whose brokers all run, and whose replicas are all in sync."""
    shared_cluster.restore()
    asyncio.run(wait_until_in_sync(shared_cluster.bootstrap))
    return shared_cluster
