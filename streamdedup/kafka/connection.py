"""*Async.* Kafka, and the only importer of aiokafka.

Rule 1: the producer starts before committed offsets and the changelog are read: its start fences a
predecessor and settles the transaction that one may have left open.
Rule 2: after any error or unknown outcome the whole session is closed and a new one begun; the
start is the only recovery there is.
Rule 3: aiokafka's exceptions end here; what leaves is named by who must act.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, errors
from aiokafka.conn import create_conn

from streamdedup.errors import (
    BrokerRefused,
    BrokerUnavailable,
    Fenced,
    SettingsError,
    StreamdedupError,
)
from streamdedup.settings.kafka import KafkaSettings, SecuritySettings
from streamdedup.settings.secrets import read_secret
from streamdedup.settings.units import milliseconds

log = structlog.get_logger(__name__)

REFUSALS = (
    errors.AuthenticationFailedError,
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
)

_STOP_SECONDS = 2.0


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Put aiokafka's errors in our words.

    Raises:
        Fenced: another worker has our transactional id.
        BrokerRefused: login, certificate or authorisation.
        BrokerUnavailable: anything that may pass.
    """
    try:
        yield
    except (errors.ProducerFenced, errors.InvalidProducerEpoch) as error:
        raise Fenced(
            f"{what}: another worker with the same kafka.group_id and kafka.ordinal has taken "
            "over, or this one stood still for longer than kafka.transaction_timeout"
        ) from error
    except REFUSALS as error:
        raise BrokerRefused(f"{what}: the broker refuses: {describe_error(error)}") from error
    except errors.InvalidTransactionTimeout as error:
        raise SettingsError(
            "kafka.transaction_timeout is above the brokers' transaction.max.timeout.ms"
        ) from error
    except ssl.SSLError as error:
        raise BrokerRefused(f"{what}: TLS failed: {describe_error(error)}") from error
    except (errors.KafkaError, OSError, TimeoutError) as error:
        raise BrokerUnavailable(f"{what}: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """Return the class and the message of an error, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the options that every aiokafka client takes.

    Raises:
        SettingsError: a certificate or secret cannot be read.
    """
    security = settings.security
    sasl = security.protocol.startswith("SASL")
    return {
        "client_id": settings.transactional_id,
        "request_timeout_ms": milliseconds(settings.request_timeout),
        "security_protocol": security.protocol,
        "ssl_context": _ssl_context(security) if security.protocol.endswith("SSL") else None,
        "sasl_mechanism": security.sasl_mechanism if sasl else "PLAIN",
        "sasl_plain_username": security.sasl_username if sasl else None,
        "sasl_plain_password": security.password() if sasl else None,
    }


def _ssl_context(security: SecuritySettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
        if security.certificate_file is not None and security.key_file is not None:
            password_file = security.key_password_file
            password = read_secret(password_file) if password_file else None
            context.load_cert_chain(security.certificate_file, security.key_file, password)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"kafka.security: cannot use the certificates: {error}") from error
    return context


async def check_connection(settings: KafkaSettings) -> None:
    """Connect to one bootstrap server, to learn why where it fails.

    aiokafka's clients log the cause and raise a common error for all of them.

    Raises:
        BrokerRefused: login or certificate; one server that says so decides.
        BrokerUnavailable: no server answers.
    """
    unavailable: BrokerUnavailable | None = None
    for server in settings.bootstrap_servers:
        try:
            await connect(server, settings)
        except BrokerUnavailable as error:
            unavailable = error
        else:
            return
    raise unavailable or SettingsError("kafka.bootstrap_servers is empty")


async def try_servers(
    settings: KafkaSettings, servers: Sequence[str]
) -> dict[str, StreamdedupError]:
    """Connect to each of some servers, ``host:port``; return the errors of those that fail."""
    failed: dict[str, StreamdedupError] = {}
    for server in servers:
        try:
            await connect(server, settings)
        except StreamdedupError as error:
            failed[server] = error
    return failed


async def connect(server: str, settings: KafkaSettings) -> None:
    """Connect to one server, ``host:port``, and close the connection.

    Raises:
        BrokerRefused: login or certificate.
        BrokerUnavailable: the server does not answer.
    """
    host, _, port = server.rpartition(":")
    options = connection_options(settings)
    with translated(f"cannot connect to {server}"):
        connection = await create_conn(host.strip("[]"), int(port), **options)
    connection.close()


async def stop(stopping: Coroutine[Any, Any, None]) -> None:
    """Wait a while for a client to stop; one that cannot is left behind.

    It stops in a task of its own: a consumer without a broker may end with a cancellation that was
    meant for one of its own tasks, and that must not look like ours.
    """
    task = asyncio.create_task(stopping)
    await asyncio.wait({task}, timeout=_STOP_SECONDS)
    if not task.done():
        task.cancel()
    elif not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a Kafka client did not stop in order", error=describe_error(error))


def new_consumer(
    settings: KafkaSettings, isolation_level: str = "read_committed", **options: Any
) -> AIOKafkaConsumer:
    """Return a consumer, not started, that neither commits nor resets offsets by itself."""
    return AIOKafkaConsumer(
        bootstrap_servers=list(settings.bootstrap_servers),
        enable_auto_commit=False,
        isolation_level=isolation_level,
        auto_offset_reset="none",
        **connection_options(settings),
        **options,
    )
