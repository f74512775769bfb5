"""*Blocking.* The listeners, ports and settings of the broker.

Both origins use the same dictionary of Kafka's property names: as a file for the jars, and as
`KAFKA_*` variables for the image. The listeners are called CLIENT, LOGIN, TLS, EXPIRED, MUTUAL
and BOTH because the image's start script treats names with SASL_ or SSL specially.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deploy.broker.access import Access
from deploy.broker.address import LOOPBACK, choose_ports

CLUSTER_ID = "c3RyZWFtZGVkdXAtdGVzdA"
"""Any 16 bytes; a constant, so that a restarted container accepts its own storage."""

SINGLE_NODE = {
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
"""Settings of a cluster with one node."""

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
"""Settings for a quick start; the defaults cost seconds of waiting and tens of empty log folders.

A killed broker may rejoin only after its old session has expired, so the session timeout is short.
"""


CONTROLLER_ID = 100

_MEMBER = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
"""Settings of each node of a cluster with three brokers and a controller."""


@dataclass(frozen=True)
class Ports:
    """The loopback ports of one broker; only a secured one uses those from `login` on."""

    client: int
    controller: int
    login: int
    tls: int
    expired: int
    mutual: int
    both: int

    def of_clients(self) -> list[int]:
        """Return the ports of a secured broker that clients connect to."""
        return [self.client, self.login, self.tls, self.expired, self.mutual, self.both]


def assign_ports(client_port: int | None) -> Ports:
    """Choose free ports; `client_port`, if given, is the plaintext port."""
    first, *others = choose_ports(7)
    return Ports(client_port or first, *others)


def server_properties(
    ports: Ports,
    access: Access | None,
    *,
    bind_host: str,
    log_dir: str,
    special: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the settings of a single combined KRaft node that listens on `bind_host`.

    Those in `special`, if given, replace the others.
    """
    listeners = {"CLIENT": ports.client}
    if access is not None:
        listeners |= {"LOGIN": ports.login, "TLS": ports.tls}
        listeners |= {"EXPIRED": ports.expired, "MUTUAL": ports.mutual, "BOTH": ports.both}
    bound = [f"{name}://{bind_host}:{port}" for name, port in listeners.items()]
    advertised = [f"{name}://{LOOPBACK}:{port}" for name, port in listeners.items()]
    return {
        **SINGLE_NODE,
        **_QUICK,
        "controller.quorum.voters": f"1@{LOOPBACK}:{ports.controller}",
        "listeners": ",".join([*bound, f"CONTROLLER://{LOOPBACK}:{ports.controller}"]),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": (
            "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SSL,"
            "EXPIRED:SSL,MUTUAL:SSL,BOTH:SASL_SSL"
        ),
        "log.dirs": log_dir,
        **(_open_properties() if access is None else _secured_properties(access)),
        **(special or {}),
    }


def controller_properties(port: int, *, log_dir: str) -> dict[str, str]:
    """Return the settings of a cluster's only controller."""
    return {
        **_MEMBER,
        **_QUICK,
        "process.roles": "controller",
        "node.id": str(CONTROLLER_ID),
        "controller.quorum.voters": f"{CONTROLLER_ID}@{LOOPBACK}:{port}",
        "listeners": f"CONTROLLER://{LOOPBACK}:{port}",
        "log.dirs": log_dir,
    }


def member_properties(
    number: int, port: int, controller_port: int, *, log_dir: str
) -> dict[str, str]:
    """Return the settings of the cluster's broker of this number."""
    return {
        **controller_properties(controller_port, log_dir=log_dir),
        "process.roles": "broker",
        "node.id": str(number),
        "listeners": f"CLIENT://{LOOPBACK}:{port}",
        "advertised.listeners": f"CLIENT://{LOOPBACK}:{port}",
        "inter.broker.listener.name": "CLIENT",
    }


def as_file(properties: Mapping[str, str]) -> str:
    """Return `properties` as the text of a Java properties file."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def as_environment(properties: dict[str, str]) -> dict[str, str]:
    """Return `properties` as the environment variables of the Kafka image."""
    return {
        "KAFKA_" + name.upper().replace("-", "___").replace(".", "_"): text
        for name, text in properties.items()
    }


def _open_properties() -> dict[str, str]:
    return {"inter.broker.listener.name": "CLIENT"}


def _secured_properties(access: Access) -> dict[str, str]:
    login = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{access.username}" password="{access.password}" '
        f'user_{access.username}="{access.password}" '
        f'user_{access.limited_username}="{access.limited_password}";'
    )
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    bearer = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    return {
        "inter.broker.listener.name": "LOGIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": login,
        **_keystore("tls", access.chain_pem, access.key_pem),
        **_keystore("expired", access.expired_chain_pem, access.expired_key_pem),
        **_keystore("mutual", access.chain_pem, access.key_pem),
        **_keystore("both", access.chain_pem, access.key_pem),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.certificates": _on_one_line(access.ca_pem),
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        "listener.name.both.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.both.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.both.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.both.oauthbearer.sasl.jaas.config": bearer,
        # A connection ends with its token, if the client does not log in again.
        "listener.name.both.oauthbearer.connections.max.reauth.ms": "3600000",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{access.username};User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "false",
    }


def _keystore(listener: str, chain_pem: str, key_pem: str) -> dict[str, str]:
    prefix = f"listener.name.{listener}.ssl.keystore"
    return {
        f"{prefix}.type": "PEM",
        f"{prefix}.certificate.chain": _on_one_line(chain_pem),
        f"{prefix}.key": _on_one_line(key_pem),
    }


def _on_one_line(pem: str) -> str:
    # A properties file reads \\n as a line break, so the PEM needs no separate file.
    return pem.replace("\n", "\\n")
