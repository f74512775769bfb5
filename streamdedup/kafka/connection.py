"""*Async.* Connections to Kafka: client options, connection tests, translated errors.

aiokafka's exceptions end in this package: :func:`translated` turns each into an error that names
who must act. Only the modules of this package import aiokafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, errors
from aiokafka.conn import AIOKafkaConnection

from streamdedup.errors import (
    BrokerRefused,
    BrokerUnavailable,
    ClockWrong,
    Fenced,
    SettingsError,
    StreamdedupError,
)
from streamdedup.kafka import decoding
from streamdedup.kafka.authentication import TokenRefused, token_provider, use_kerberos
from streamdedup.kafka.brokers import describe_tested
from streamdedup.settings.kafka import KafkaSettings, SecuritySettings
from streamdedup.settings.secrets import read_secret
from streamdedup.settings.units import milliseconds

log = structlog.get_logger(__name__)

T = TypeVar("T")

_LOGIN_REFUSALS = (
    errors.AuthenticationFailedError,
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
)
REFUSALS = (
    *_LOGIN_REFUSALS,
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
)
"""Errors that only the operator can fix: login or authorisation."""
POLL_S = 0.02
"""Pause between two requests while a coordinator is not ready yet."""
_STOP_TIMEOUT_S = 2.0
"""How long a client may take to stop."""


@contextlib.contextmanager
def translated(action: str) -> Iterator[None]:
    """Turn aiokafka's errors into those of this project, whose message begins with ``action``.

    Raises:
        Fenced: another producer has taken over the transactional id.
        BrokerRefused: login, certificate, authorisation, or a request that the brokers do not know.
        ClockWrong: the broker refuses a timestamp.
        SettingsError: the brokers do not accept a setting.
        BrokerUnavailable: any other error; a retry may succeed.
    """
    try:
        yield
    except (errors.ProducerFenced, errors.InvalidProducerEpoch) as error:
        raise Fenced(
            f"{action}: another worker with the same topics.changelog has taken over, or this "
            "worker was paused for longer than kafka.transaction_timeout"
        ) from error
    except _LOGIN_REFUSALS as error:
        raise BrokerRefused(
            f"{action}: the broker refuses the login: {describe_error(error)}; fix it in "
            "kafka.security, or on the broker"
        ) from error
    except REFUSALS as error:
        raise BrokerRefused(
            f"{action}: the broker refuses: {describe_error(error)}; add the missing permission, "
            "which 'streamdedup config check' names"
        ) from error
    except errors.InvalidTransactionTimeout as error:
        raise SettingsError(
            "kafka.transaction_timeout is above the brokers' transaction.max.timeout.ms"
        ) from error
    except errors.InvalidTimestampError as error:
        raise ClockWrong(
            f"{action}: the broker refuses a timestamp: the clock of this machine or of the broker "
            "is wrong, or the message.timestamp limits of a topic have changed; set the clocks, "
            "e.g. with NTP, and start again"
        ) from error
    except (errors.IncompatibleBrokerVersion, NotImplementedError) as error:
        raise BrokerRefused(
            f"{action}: the brokers do not support a request that streamdedup needs: "
            f"{describe_error(error)}; use Apache Kafka {describe_tested()}"
        ) from error
    except TokenRefused as error:
        raise BrokerRefused(f"{action}: {error}") from error
    except (errors.KafkaError, OSError, TimeoutError) as error:
        if (refusal := _tls_refusal(error)) is not None:
            raise BrokerRefused(f"{action}: TLS failed: {refusal}") from error
        raise BrokerUnavailable(f"{action}: {describe_error(error)}") from error


def _tls_refusal(error: BaseException) -> str | None:
    """Return why TLS does not come about; None if a connection has only ended.

    With TLS 1.3 a client learns only from its first read that the broker refuses its certificate.
    aiokafka reports that the connection was closed, and names the cause.
    """
    cause = error if isinstance(error, ssl.SSLError) else error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"the broker's certificate is not trusted: {cause.verify_message}; fix "
            "kafka.security.ca_file, or the broker's certificate"
        )
    if isinstance(cause, ssl.SSLError) and "_ALERT_" in str(cause):
        return (
            f"the broker refuses this client: {describe_error(cause)}; check that "
            "kafka.security.certificate_file is set, has not expired, and is from an authority "
            "that the broker trusts"
        )
    ended = isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    return describe_error(error) if isinstance(error, ssl.SSLError) and not ended else None


def describe_error(error: BaseException) -> str:
    """Return the class and the message of an error, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the options that every aiokafka client takes.

    Certificates and passwords are read from their files each time, since they may change.

    Raises:
        SettingsError: a certificate or secret cannot be read, or a package is missing.
    """
    security = settings.security
    sasl = security.protocol.startswith("SASL")
    tokens = sasl and security.sasl_mechanism == "OAUTHBEARER"
    if sasl and security.sasl_mechanism == "GSSAPI":
        use_kerberos()
    return {
        "client_id": settings.group_id,
        "request_timeout_ms": milliseconds(settings.request_timeout),
        "security_protocol": security.protocol,
        "ssl_context": _ssl_context(security) if security.protocol.endswith("SSL") else None,
        "sasl_mechanism": security.sasl_mechanism if sasl else "PLAIN",
        "sasl_plain_username": security.sasl_username if sasl else None,
        "sasl_plain_password": security.password() if sasl else None,
        "sasl_kerberos_service_name": security.kerberos_service_name,
        "sasl_oauth_token_provider": token_provider(security) if tokens else None,
    }


def _ssl_context(security: SecuritySettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
    except OSError as error:
        raise SettingsError(
            f"cannot use kafka.security.ca_file {security.ca_file}: {error}"
        ) from error
    if security.certificate_file is None or security.key_file is None:
        return context
    password_file = security.key_password_file
    # Without a password OpenSSL would ask for one at the terminal.
    password = read_secret(password_file) if password_file else ""
    try:
        context.load_cert_chain(security.certificate_file, security.key_file, lambda: password)
    except OSError as error:
        raise SettingsError(
            f"cannot use kafka.security.certificate_file {security.certificate_file} with key_file "
            f"{security.key_file}: {error}; check that they are a pair, in PEM format, and "
            "key_password_file"
        ) from error
    return context


async def check_connection(settings: KafkaSettings) -> None:
    """Connect to the first bootstrap server that answers, to learn the cause of a failure.

    aiokafka's clients only log the cause, and raise one common error for all causes.

    Raises:
        BrokerRefused: a server refuses the login or the certificate; later servers are not tried.
        BrokerUnavailable: no server answers.
    """
    unavailable: StreamdedupError = SettingsError("kafka.bootstrap_servers is empty")
    for server in settings.bootstrap_servers:
        try:
            return await _connect(server, settings)
        except BrokerUnavailable as error:
            unavailable = error
    raise unavailable


async def try_servers(
    settings: KafkaSettings, servers: Sequence[str]
) -> dict[str, StreamdedupError]:
    """Connect to each server, ``host:port``; return the errors by server."""
    failed: dict[str, StreamdedupError] = {}
    for server in servers:
        try:
            await _connect(server, settings)
        except StreamdedupError as error:
            failed[server] = error
    return failed


async def _connect(server: str, settings: KafkaSettings) -> None:
    """Connect to one server, ``host:port``, and close the connection."""
    host, _, port = server.rpartition(":")
    options = connection_options(settings)
    connection = AIOKafkaConnection(host.strip("[]"), int(port), **options)
    try:
        with translated(f"cannot connect to {server}"):
            await connection.connect()
    finally:
        closed = connection.close()
        if connection._protocol is not None:  # it was open
            await asyncio.wait({closed}, timeout=_STOP_TIMEOUT_S)


async def unless_set(event: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return the result of work; cancel it and return None if an event is set before."""
    working, setting = asyncio.ensure_future(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({working, setting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
        return None if working.cancelled() else working.result()
    finally:
        working.cancel()
        setting.cancel()


async def stop(stopping: Coroutine[Any, Any, None]) -> None:
    """Stop a client, and abandon it after ``_STOP_TIMEOUT_S``.

    The coroutine runs in a separate task. A consumer without a broker may end with the cancellation
    of one of its own tasks, which must not cancel the caller.
    """
    task = asyncio.create_task(stopping)
    await asyncio.wait({task}, timeout=_STOP_TIMEOUT_S)
    if not task.done():
        task.cancel()
    elif not task.cancelled() and (error := task.exception()) is not None:
        log.warning("stopping a Kafka client failed", error=describe_error(error))


def new_consumer(
    settings: KafkaSettings, isolation_level: str = "read_committed", **options: Any
) -> AIOKafkaConsumer:
    """Return a consumer that has not been started.

    It neither commits nor resets offsets by itself.
    """
    decoding.install()
    return AIOKafkaConsumer(
        bootstrap_servers=list(settings.bootstrap_servers),
        enable_auto_commit=False,
        isolation_level=isolation_level,
        **{"auto_offset_reset": "none"} | connection_options(settings) | options,
    )


def forget_abandoned(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore Kafka errors in futures that aiokafka abandons; they were raised elsewhere before.

    This is an exception handler for :meth:`asyncio.loop.set_exception_handler`.
    """
    if not isinstance(context.get("exception"), errors.KafkaError):
        loop.default_exception_handler(context)
