"""Fixtures that all tests share: real brokers, and a check of every index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from deploy.broker.obtain import own_broker as start_own_broker
from deploy.broker.obtain import running_broker
from deploy.registry import SchemaRegistry, running_registry
from streamdedup.errors import IndexLocked
from streamdedup.index.check import check
from streamdedup.index.store import Index


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """Yield one Apache Kafka for the whole run; deploy/broker explains how it is obtained."""
    with running_broker() as running:
        yield running


@pytest.fixture(scope="session")
def secured_broker() -> Iterator[Broker]:
    """Yield a second broker, with login and TLS listeners."""
    with running_broker(secured=True) as running:
        yield running


@pytest.fixture(scope="session")
def registry() -> Iterator[SchemaRegistry]:
    """Yield one schema registry for the whole run."""
    with running_registry() as running:
        yield running


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """Yield a broker for one test, which may stop, kill and restart it."""
    with start_own_broker() as running:
        yield running


@pytest.fixture(autouse=True)
def every_index_is_sound(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Check every index after each test: the test's own indexes, and those of its workers.

    A test that damages an index has the mark ``damages_index``. An index that is still open is a
    bug in the test or in the tested code.
    """
    opened: set[Path] = set()
    initialise = Index.__init__

    def recording(self: Index, settings: Any, *arguments: Any, **named: Any) -> None:
        opened.add(settings.directory.absolute())
        initialise(self, settings, *arguments, **named)

    monkeypatch.setattr(Index, "__init__", recording)
    yield
    if request.node.get_closest_marker("damages_index"):
        return
    below: Path | None = request.node.funcargs.get("tmp_path")
    if below is not None:
        opened.update(path.parents[1] for path in below.rglob("manifest/data.mdb"))
    problems = []
    for directory in sorted(path for path in opened if (path / "manifest").is_dir()):
        try:
            problems += [f"{directory}: {problem}" for problem in check(directory).problems]
        except IndexLocked:
            problems.append(f"{directory} is still open")
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
