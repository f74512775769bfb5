"""*Blocking.* A running broker: its addresses, and how to stop, kill and suspend it."""

from dataclasses import dataclass
from pathlib import Path

import trustme

from deploy.broker.address import wait_until_answers
from deploy.broker.errors import BrokerError, BrokerFailed
from deploy.broker.server import ORIGIN_ENVIRONMENT, Server

_READY_SECONDS = 90.0


@dataclass(frozen=True)
class SecuredListeners:
    """The secured listeners of a broker, and their credentials.

    Attributes:
        sasl_bootstrap: the SASL_PLAINTEXT listener, mechanism PLAIN.
        ssl_bootstrap: the SSL listener, which requests no client certificate.
        expired_bootstrap: an SSL listener whose certificate has expired.
        mutual_bootstrap: the SSL listener that requires a certificate of the authority. The
            certificate's common name is the user.
        sasl_ssl_bootstrap: the SASL_SSL listener, mechanisms SCRAM-SHA-256, SCRAM-SHA-512 and
            OAUTHBEARER. No user has a SCRAM password yet. Tokens are unsigned (RFC 7515, "none").
        username: the super user; so are clients of the plaintext and the SSL listener.
        password: the super user's password.
        limited_username: a user of the SASL_PLAINTEXT listener without any permission.
        limited_password: that user's password.
        authority: the CA of the broker, to issue certificates of clients.
        ca_pem_path: the CA certificate that clients of the SSL listener must trust.
        other_ca_pem_path: a CA certificate that the broker's certificate does not match.
    """

    sasl_bootstrap: str
    ssl_bootstrap: str
    expired_bootstrap: str
    mutual_bootstrap: str
    sasl_ssl_bootstrap: str
    username: str
    password: str
    limited_username: str
    limited_password: str
    authority: trustme.CA
    ca_pem_path: Path
    other_ca_pem_path: Path


class Broker:
    """A broker whose data and ports survive stop, kill and restart.

    The methods that start, end or suspend it raise BrokerError for a broker that was not started
    here but named by the environment.
    """

    def __init__(
        self, bootstrap: str, server: Server | None = None, secured: SecuredListeners | None = None
    ) -> None:
        self.bootstrap = bootstrap
        self._server = server
        self._secured = secured

    @property
    def origin(self) -> str:
        """Where the broker came from: "environment", "container" or "maven"."""
        return ORIGIN_ENVIRONMENT if self._server is None else self._server.origin

    @property
    def secured(self) -> SecuredListeners:
        """The secured listeners; BrokerError if the broker has none."""
        if self._secured is None:
            raise BrokerError("this broker is not secured: use running_broker(secured=True)")
        return self._secured

    def start(self) -> None:
        """Start the broker if it does not run, and wait until it serves requests."""
        server = self._own("start")
        host, _, port = self.bootstrap.rpartition(":")
        try:
            if not server.is_running():
                server.start()
            wait_until_answers(
                host, int(port), timeout_seconds=_READY_SECONDS, is_alive=server.is_running
            )
        except BrokerFailed as error:
            tail = server.log_tail() or "(nothing)"
            raise BrokerFailed(f"{error}; the end of its log:\n{tail}") from error

    def stop(self) -> None:
        """Shut the broker down."""
        self._own("stop").stop()

    def kill(self) -> None:
        """Kill the broker, as a crash would."""
        self._own("kill").kill()

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same data and ports."""
        self._own("restart").stop()
        self.start()

    def suspend(self) -> None:
        """Suspend the broker with its connections open, as a long pause would."""
        self._own("suspend").suspend()

    def resume(self) -> None:
        """Resume a suspended broker."""
        self._own("resume").resume()

    def is_running(self) -> bool:
        """Tell whether the broker runs; always true for a broker of the environment."""
        return self._server is None or self._server.is_running()

    def _own(self, action: str) -> Server:
        if self._server is None:
            raise BrokerError(
                f"cannot {action} the broker of STREAMDEDUP_TEST_BOOTSTRAP: it was not started here"
            )
        return self._server
