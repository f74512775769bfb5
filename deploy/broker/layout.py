"""*Blocking.* How the tests' broker is laid out: its listeners, its ports and its settings.

One dictionary of Kafka's own property names serves both origins: written to a file for the jars,
and turned into `KAFKA_*` variables for the image. The listeners are called CLIENT, LOGIN and TLS
because the image's start script reads more into names with SASL_ or SSL in them.
"""

from dataclasses import dataclass

from deploy.broker.access import Access
from deploy.broker.address import LOOPBACK, choose_ports

# Any 16 bytes will do; one constant lets a restarted container find its own storage again.
CLUSTER_ID = "c3RyZWFtZGVkdXAtdGVzdA"

_SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

# The defaults suit clusters: they cost seconds of waiting and tens of empty log folders. A broker
# that was killed is let in again only when its old session has run out, hence the short one.
_QUICK = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "num.network.threads": "2",
    "num.io.threads": "4",
}


@dataclass(frozen=True)
class Ports:
    """The loopback ports of one broker; the last two are used only by a secured one."""

    client: int
    controller: int
    login: int
    tls: int


def choose_layout(client_port: int | None) -> Ports:
    """Choose free ports, with `client_port` as the plaintext one where it is given."""
    first, controller, login, tls = choose_ports(4)
    return Ports(client_port or first, controller, login, tls)


def server_properties(
    ports: Ports, access: Access | None, *, bind_host: str, log_dir: str
) -> dict[str, str]:
    """Return the settings of a single combined KRaft node that listens on `bind_host`."""
    listeners = {"CLIENT": ports.client}
    if access is not None:
        listeners |= {"LOGIN": ports.login, "TLS": ports.tls}
    bound = [f"{name}://{bind_host}:{port}" for name, port in listeners.items()]
    advertised = [f"{name}://{LOOPBACK}:{port}" for name, port in listeners.items()]
    return {
        **_SINGLE_NODE,
        **_QUICK,
        "controller.quorum.voters": f"1@{LOOPBACK}:{ports.controller}",
        "listeners": ",".join([*bound, f"CONTROLLER://{LOOPBACK}:{ports.controller}"]),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": (
            "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SSL"
        ),
        "log.dirs": log_dir,
        **(_open_properties() if access is None else _secured_properties(access)),
    }


def as_file(properties: dict[str, str]) -> str:
    """Return `properties` as the text of a Java properties file."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def as_environment(properties: dict[str, str]) -> dict[str, str]:
    """Return `properties` as the variables that the Kafka image turns back into them."""
    return {"KAFKA_" + name.upper().replace(".", "_"): text for name, text in properties.items()}


def _open_properties() -> dict[str, str]:
    return {"inter.broker.listener.name": "CLIENT"}


def _secured_properties(access: Access) -> dict[str, str]:
    login = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{access.username}" password="{access.password}" '
        f'user_{access.username}="{access.password}";'
    )
    return {
        "inter.broker.listener.name": "LOGIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": login,
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.certificate.chain": _on_one_line(access.chain_pem),
        "listener.name.tls.ssl.keystore.key": _on_one_line(access.key_pem),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{access.username}",
        "allow.everyone.if.no.acl.found": "true",
    }


def _on_one_line(pem: str) -> str:
    # A properties file reads backslash-n as a line's end, so the PEM needs no file of its own.
    return pem.replace("\n", "\\n")
