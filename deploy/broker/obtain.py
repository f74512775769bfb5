"""*Blocking.* One way to a real broker, whatever this machine has.

In this order: the broker that STREAMDEDUP_TEST_BOOTSTRAP names, a container where a Docker engine
answers, Kafka's jars with Java. STREAMDEDUP_TEST_BROKER (`container` or `maven`) leaves only one
of the last two. A machine with none of them is an error, never a reason to skip.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deploy.broker.access import Access, make_access
from deploy.broker.address import LOOPBACK, answers_kafka, is_free
from deploy.broker.broker import Broker, SecuredDoors
from deploy.broker.container import ContainerServer, engine_answers, image_name, missing_image
from deploy.broker.errors import BrokerFailed, BrokerUnobtainable
from deploy.broker.jars import obtain_jars
from deploy.broker.layout import Ports, choose_layout
from deploy.broker.process import JavaServer, find_java
from deploy.broker.server import ORIGIN_CONTAINER, ORIGIN_MAVEN, Server

BOOTSTRAP_VARIABLE = "STREAMDEDUP_TEST_BOOTSTRAP"
ORIGIN_VARIABLE = "STREAMDEDUP_TEST_BROKER"


@contextlib.contextmanager
def running_broker(*, secured: bool = False) -> Iterator[Broker]:
    """Yield a broker that answers, and end it afterwards if it was started here.

    A `secured` one is always started here, with SASL and TLS listeners beside the open one.
    Raises BrokerUnobtainable where there is none to be had, BrokerFailed where it did not start.
    """
    bootstrap = os.environ.get(BOOTSTRAP_VARIABLE, "").strip()
    if bootstrap and not secured:
        yield _broker_of_environment(bootstrap)
        return
    with own_broker(secured=secured) as broker:
        yield broker


@contextlib.contextmanager
def own_broker(*, secured: bool = False, port: int | None = None) -> Iterator[Broker]:
    """Yield a broker started here, its plaintext listener on the loopback `port` where given."""
    if port is not None and not is_free(port):
        raise BrokerFailed(f"port {port} of {LOOPBACK} is taken; choose another")
    ports = choose_layout(port)
    access = make_access() if secured else None
    folder = Path(tempfile.mkdtemp(prefix="streamdedup-broker-"))
    try:
        with _discarded(_choose_server(folder, ports, access)) as server:
            doors = None if access is None else _doors(ports, access, folder)
            broker = Broker(f"{LOOPBACK}:{ports.client}", server, doors)
            broker.start()
            yield broker
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _broker_of_environment(bootstrap: str) -> Broker:
    first = bootstrap.partition(",")[0]
    host, _, port = first.rpartition(":")
    if not host or not port.isdecimal():
        raise BrokerUnobtainable(f"{BOOTSTRAP_VARIABLE} is not host:port but {bootstrap!r}")
    if not answers_kafka(host, int(port)):
        raise BrokerUnobtainable(f"no Kafka answers at {first}, which {BOOTSTRAP_VARIABLE} names")
    return Broker(bootstrap)


def _choose_server(folder: Path, ports: Ports, access: Access | None) -> Server:
    forced = os.environ.get(ORIGIN_VARIABLE, "").strip()
    if forced not in ("", ORIGIN_CONTAINER, ORIGIN_MAVEN):
        raise BrokerUnobtainable(f"{ORIGIN_VARIABLE} is neither container nor maven: {forced!r}")
    if forced != ORIGIN_MAVEN and _container_is_possible(required=forced == ORIGIN_CONTAINER):
        return ContainerServer(folder, ports, access)
    return JavaServer(find_java(), obtain_jars(), folder, ports, access)


def _container_is_possible(*, required: bool) -> bool:
    if not engine_answers():
        if required:
            raise BrokerUnobtainable(f"{ORIGIN_VARIABLE}=container, but no Docker engine answers")
        return False
    reason = missing_image()
    if reason is None:
        return True
    if required:
        raise BrokerUnobtainable(f"{image_name()} is not here and cannot be pulled: {reason}")
    print(
        f"NOTE: a Docker engine answers, but {image_name()} is not to be had ({reason});"
        " the broker runs from Kafka's jars instead",
        file=sys.stderr,
        flush=True,
    )
    return False


@contextlib.contextmanager
def _discarded(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.discard()


def _doors(ports: Ports, access: Access, folder: Path) -> SecuredDoors:
    right, wrong = access.write_authorities(folder)
    return SecuredDoors(
        sasl_bootstrap=f"{LOOPBACK}:{ports.login}",
        ssl_bootstrap=f"{LOOPBACK}:{ports.tls}",
        username=access.username,
        password=access.password,
        ca_pem_path=right,
        stranger_ca_pem_path=wrong,
    )
