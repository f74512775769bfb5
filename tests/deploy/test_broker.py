"""The tests' broker itself: what it says when it is not to be had, and how it ends."""

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
from deploy.broker.layout import as_environment, choose_layout, server_properties
from deploy.broker.obtain import BOOTSTRAP_VARIABLE, ORIGIN_VARIABLE, running_broker
from tests.support.paths import ROOT

GONE_SECONDS = 15


@contextlib.contextmanager
def foreground_broker(port: int) -> Iterator["subprocess.Popen[str]"]:
    """Yield `python -m deploy.broker` once it has said where it listens."""
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
    """Tell whether nothing listens on `port` any more, giving it some seconds."""
    deadline = time.monotonic() + GONE_SECONDS
    while not is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.kafka
def test_the_foreground_broker_stops_in_order_when_asked() -> None:
    """SIGTERM ends `python -m deploy.broker` with status 0, and the broker with it."""
    (port,) = choose_ports(1)
    with foreground_broker(port) as process:
        assert answers_kafka(LOOPBACK, port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(GONE_SECONDS) == 0
        assert wait_until_free(port)


@pytest.mark.kafka
def test_no_broker_outlives_an_owner_that_was_killed() -> None:
    """SIGKILL leaves its victim no time to clean up; the leash does it instead."""
    (port,) = choose_ports(1)
    with foreground_broker(port) as process:
        process.kill()
        process.wait(GONE_SECONDS)
        assert wait_until_free(port)


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        pytest.param(BOOTSTRAP_VARIABLE, "somewhere", "not host:port", id="no-port"),
        pytest.param(BOOTSTRAP_VARIABLE, f"{LOOPBACK}:1", "no Kafka answers", id="nobody-there"),
        pytest.param(ORIGIN_VARIABLE, "cloud", "neither container nor maven", id="no-such-origin"),
    ],
)
def test_an_unusable_environment_is_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, complaint: str
) -> None:
    """A broker that is not to be had is an error that names the variable, and not a skip."""
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(BrokerUnobtainable, match=complaint) as raised, running_broker():
        pass
    assert variable in str(raised.value)


def test_a_broker_of_the_environment_is_left_alone() -> None:
    """What we did not start we neither stop nor believe to be secured."""
    broker = Broker(f"{LOOPBACK}:9092")
    assert broker.origin == "environment"
    for deed in (broker.start, broker.stop, broker.kill, broker.restart, broker.suspend):
        with pytest.raises(BrokerError, match="not ours"):
            deed()
    with pytest.raises(BrokerError, match="not secured"):
        _ = broker.sasl_bootstrap


def test_settings_survive_the_way_through_the_image() -> None:
    """The image lowers a variable's name and turns _ into a dot: ours must come back unchanged."""
    properties = server_properties(
        choose_layout(None), make_access(), bind_host=LOOPBACK, log_dir="/data"
    )
    returned = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in as_environment(properties).items()
    }
    assert returned == properties
    assert not any("\n" in value for value in properties.values())
