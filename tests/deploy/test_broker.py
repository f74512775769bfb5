"""The broker for tests and demos: its errors, and its end."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from deploy.broker.access import make_access
from deploy.broker.address import LOOPBACK, answers_kafka, choose_ports, is_free
from deploy.broker.broker import Broker
from deploy.broker.errors import BrokerError, BrokerUnobtainable
from deploy.broker.jars import VERSION_VARIABLE
from deploy.broker.layout import as_environment, assign_ports, server_properties
from deploy.broker.obtain import BOOTSTRAP_VARIABLE, ORIGIN_VARIABLE, running_broker
from tests.support.paths import ROOT

GONE_SECONDS = 15


@contextlib.contextmanager
def foreground_broker(port: int) -> Iterator["subprocess.Popen[str]"]:
    """Yield `python -m deploy.broker` after it has printed its address."""
    command = [sys.executable, "-m", "deploy.broker", f"--port={port}"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"bootstrap: {LOOPBACK}:{port}\n"
            yield process
        finally:
            process.kill()


def wait_until_free(port: int) -> bool:
    """Tell whether `port` becomes free within some seconds."""
    deadline = time.monotonic() + GONE_SECONDS
    while not is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.kafka
def test_sigterm_stops_the_foreground_broker() -> None:
    """`python -m deploy.broker` ends with status 0, and the broker ends too."""
    (port,) = choose_ports(1)
    with foreground_broker(port) as process:
        assert answers_kafka(LOOPBACK, port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(GONE_SECONDS) == 0
        assert wait_until_free(port)


@pytest.mark.kafka
def test_no_broker_outlives_a_killed_owner() -> None:
    """A killed process cannot clean up; the watchdog does it."""
    (port,) = choose_ports(1)
    with foreground_broker(port) as process:
        process.kill()
        process.wait(GONE_SECONDS)
        assert wait_until_free(port)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        pytest.param(BOOTSTRAP_VARIABLE, "somewhere", "not host:port", id="no-port"),
        pytest.param(BOOTSTRAP_VARIABLE, f"{LOOPBACK}:1", "no Kafka answers", id="no-answer"),
        pytest.param(ORIGIN_VARIABLE, "cloud", "neither container nor maven", id="unknown-origin"),
        pytest.param(VERSION_VARIABLE, "latest", "not a release of Kafka", id="no-release"),
    ],
)
def test_an_unusable_environment_is_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    """The error names the variable, and no test is skipped."""
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(BrokerUnobtainable, match=message) as raised, running_broker():
        pass
    assert variable in str(raised.value)


def test_a_broker_of_the_environment_is_not_changed() -> None:
    """A broker that was not started here cannot be stopped, and has no secured listeners."""
    broker = Broker(f"{LOOPBACK}:9092")
    assert broker.origin == "environment"
    for action in (broker.start, broker.stop, broker.kill, broker.restart, broker.suspend):
        with pytest.raises(BrokerError, match="not started here"):
            action()
    with pytest.raises(BrokerError, match="not secured"):
        _ = broker.secured


def test_the_image_restores_the_names_of_settings() -> None:
    """The image lowers the variable's name and turns ___ into - and _ into a dot."""
    properties = server_properties(
        assign_ports(None), make_access(), bind_host=LOOPBACK, log_dir="/data"
    )
    returned = {
        name.removeprefix("KAFKA_").lower().replace("___", "-").replace("_", "."): value
        for name, value in as_environment(properties).items()
    }
    assert returned == properties
    assert not any("\n" in value for value in properties.values())
