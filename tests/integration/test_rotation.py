"""Passwords and certificates that are replaced while a worker runs: it needs no restart."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from deploy.broker.obtain import own_broker as start_own_broker
from tests.support import credentials
from tests.support.access_control import set_scram_password
from tests.support.corpora import documents
from tests.support.oracle import assert_undisturbed
from tests.support.stage import Stage

pytestmark = [pytest.mark.kafka, pytest.mark.faults]

MECHANISM = "SCRAM-SHA-512"


@pytest.fixture
def own_secured_broker() -> Iterator[Broker]:
    """Yield a secured broker for one test, which may restart it."""
    with start_own_broker(secured=True) as running:
        yield running


@pytest.fixture
def stage(own_secured_broker: Broker, tmp_path: Path) -> Stage:
    """Return a stage with topics and 20 documents."""
    stage = Stage(own_secured_broker.bootstrap, tmp_path / "stage")
    stage.create_topics()
    stage.produce_json(documents(0, 20))
    return stage


def set_password(broker: Broker, password: str) -> None:
    """Change the password of the user on the broker."""
    asyncio.run(set_scram_password(broker, broker.secured.username, MECHANISM, password))


def configure_password(stage: Stage, broker: Broker, folder: Path) -> Path:
    """Let the stage log in with the password ``old``, and return the file that has it."""
    file = folder / "password"
    file.write_text("old")
    set_password(broker, "old")
    stage.configure(**credentials.scram(broker, MECHANISM, broker.secured.username, file))
    return file


def test_a_password_is_replaced(own_secured_broker: Broker, stage: Stage, tmp_path: Path) -> None:
    """The broker's password and the file change; the next connections use the new one.

    Connections that are open outlive a password, so the broker restarts.
    """
    broker = own_secured_broker
    file = configure_password(stage, broker, tmp_path)
    with stage.start_worker() as worker:
        stage.wait_for(20, worker)
        file.write_text("new")
        set_password(broker, "new")
        broker.restart()
        stage.produce_json(documents(20, 40))
        stage.wait_for(40, worker)
        worker.drain()
    assert_undisturbed(stage)


def test_a_certificate_is_replaced(
    own_secured_broker: Broker, stage: Stage, tmp_path: Path
) -> None:
    """Certificate, key and its password change; the old certificate then expires."""
    broker, folder = own_secured_broker, tmp_path / "client"
    expires_at = time.monotonic() + 45
    credentials.write_certificate(broker, folder, lifetime=dt.timedelta(seconds=45))
    stage.configure(**credentials.mutual(broker, folder))
    with stage.start_worker() as worker:
        stage.wait_for(20, worker)
        credentials.write_certificate(broker, folder, password="another password")  # noqa: S106
        time.sleep(max(0.0, expires_at + 1 - time.monotonic()))
        broker.restart()
        stage.produce_json(documents(20, 40))
        stage.wait_for(40, worker)
        worker.drain()
    assert_undisturbed(stage)


def test_a_password_that_is_only_replaced_on_the_broker(
    own_secured_broker: Broker, stage: Stage, tmp_path: Path
) -> None:
    """The worker ends with 6 and one line; with the new file it continues."""
    broker = own_secured_broker
    file = configure_password(stage, broker, tmp_path)
    with stage.start_worker() as worker:
        stage.wait_for(20, worker)
        set_password(broker, "new")
        broker.restart()
        stage.produce_json(documents(20, 40))
        worker.assert_ends(6, "the broker refuses the login")
    file.write_text("new")
    stage.run_until_judged(40)
    assert_undisturbed(stage)
