"""*Blocking.* Obtains a real broker on any machine that can run one.

It tries in this order: the broker that STREAMDEDUP_TEST_BOOTSTRAP names, a container if a Docker
engine answers, Kafka's jars with Java. STREAMDEDUP_TEST_BROKER (`container` or `maven`) selects one
of the last two, and STREAMDEDUP_TEST_KAFKA the release of Kafka that they run. A machine with none
of them is an error, and no test is skipped.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deploy.broker.access import Access, make_access
from deploy.broker.address import LOOPBACK, answers_kafka, is_free
from deploy.broker.broker import Broker, SecuredListeners
from deploy.broker.container import ContainerServer, engine_answers, image_name, missing_image
from deploy.broker.errors import BrokerFailed, BrokerUnobtainable
from deploy.broker.jars import obtain_jars
from deploy.broker.layout import Ports, assign_ports, server_properties
from deploy.broker.process import SHORT_LIVED, JavaServer, data_folder, find_java
from deploy.broker.server import ORIGIN_CONTAINER, ORIGIN_MAVEN, Server

BOOTSTRAP_VARIABLE = "STREAMDEDUP_TEST_BOOTSTRAP"
ORIGIN_VARIABLE = "STREAMDEDUP_TEST_BROKER"


@contextlib.contextmanager
def running_broker(*, secured: bool = False) -> Iterator[Broker]:
    """Yield a broker that answers, and end it afterwards if it was started here.

    A `secured` broker is always started here, with SASL and TLS listeners in addition.

    Raises:
        BrokerUnobtainable: this machine cannot run a broker.
        BrokerFailed: the broker did not start.
    """
    bootstrap = os.environ.get(BOOTSTRAP_VARIABLE, "").strip()
    if bootstrap and not secured:
        yield _broker_of_environment(bootstrap)
        return
    with own_broker(secured=secured) as broker:
        yield broker


@contextlib.contextmanager
def own_broker(
    *,
    secured: bool = False,
    port: int | None = None,
    special: Mapping[str, str] | None = None,
    options: Sequence[str] = SHORT_LIVED,
) -> Iterator[Broker]:
    """Start a broker and yield it.

    `port`, if given, is the loopback port for plaintext; `special` holds settings of Kafka's, and
    `options` those of Java.
    """
    if port is not None and not is_free(port):
        raise BrokerFailed(f"port {port} of {LOOPBACK} is in use; choose another one")
    ports = assign_ports(port)
    access = make_access() if secured else None
    folder = Path(tempfile.mkdtemp(prefix="streamdedup-broker-"))
    try:
        with _discarded(_choose_server(folder, ports, access, special, options)) as server:
            secured_listeners = None if access is None else _secured(ports, access, folder)
            broker = Broker(f"{LOOPBACK}:{ports.client}", server, secured_listeners)
            broker.start()
            yield broker
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _broker_of_environment(bootstrap: str) -> Broker:
    first = bootstrap.partition(",")[0]
    host, _, port = first.rpartition(":")
    if not host or not port.isdecimal():
        raise BrokerUnobtainable(f"invalid {BOOTSTRAP_VARIABLE} {bootstrap!r}: not host:port")
    if not answers_kafka(host, int(port)):
        raise BrokerUnobtainable(f"no Kafka answers at {first}, the value of {BOOTSTRAP_VARIABLE}")
    return Broker(bootstrap)


def _choose_server(
    folder: Path,
    ports: Ports,
    access: Access | None,
    special: Mapping[str, str] | None,
    options: Sequence[str],
) -> Server:
    forced = os.environ.get(ORIGIN_VARIABLE, "").strip()
    if forced not in ("", ORIGIN_CONTAINER, ORIGIN_MAVEN):
        raise BrokerUnobtainable(
            f"invalid {ORIGIN_VARIABLE} {forced!r}: neither container nor maven"
        )
    if forced != ORIGIN_MAVEN and _can_run_container(required=forced == ORIGIN_CONTAINER):
        return ContainerServer(folder, ports, access, special)
    properties = server_properties(
        ports, access, bind_host=LOOPBACK, log_dir=str(data_folder(folder)), special=special
    )
    return JavaServer(find_java(), obtain_jars(), folder, properties, options)


def _can_run_container(*, required: bool) -> bool:
    if not engine_answers():
        if required:
            raise BrokerUnobtainable(f"{ORIGIN_VARIABLE}=container, but no Docker engine answers")
        return False
    reason = missing_image()
    if reason is None:
        return True
    if required:
        raise BrokerUnobtainable(
            f"the image {image_name()} is missing and cannot be pulled: {reason}"
        )
    print(
        f"NOTE: a Docker engine answers, but the image {image_name()} cannot be pulled ({reason});"
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


def _secured(ports: Ports, access: Access, folder: Path) -> SecuredListeners:
    ca_path, other_ca_path = access.write_authorities(folder)
    return SecuredListeners(
        sasl_bootstrap=f"{LOOPBACK}:{ports.login}",
        ssl_bootstrap=f"{LOOPBACK}:{ports.tls}",
        expired_bootstrap=f"{LOOPBACK}:{ports.expired}",
        mutual_bootstrap=f"{LOOPBACK}:{ports.mutual}",
        sasl_ssl_bootstrap=f"{LOOPBACK}:{ports.both}",
        username=access.username,
        password=access.password,
        limited_username=access.limited_username,
        limited_password=access.limited_password,
        authority=access.authority,
        ca_pem_path=ca_path,
        other_ca_pem_path=other_ca_path,
    )
