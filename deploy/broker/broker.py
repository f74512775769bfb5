"""*Blocking.* The broker as a test sees it: where it listens, and what can be done to it."""

from dataclasses import dataclass
from pathlib import Path

from deploy.broker.address import wait_until_answers
from deploy.broker.errors import BrokerError, BrokerFailed
from deploy.broker.server import ORIGIN_ENVIRONMENT, Server

_READY_SECONDS = 90.0


@dataclass(frozen=True)
class SecuredDoors:
    """The two guarded listeners of a secured broker, and what opens them.

    The user is the broker's one super user; `stranger_ca_pem_path` is of a CA that did not sign.
    """

    sasl_bootstrap: str
    ssl_bootstrap: str
    username: str
    password: str
    ca_pem_path: Path
    stranger_ca_pem_path: Path


class Broker:
    """A broker that answers; its data and its ports survive stop, kill and restart.

    Of the methods, those that end, freeze or start it need a broker of our own: they raise
    BrokerError for one that came from the environment.
    """

    def __init__(
        self, bootstrap: str, server: Server | None = None, doors: SecuredDoors | None = None
    ) -> None:
        self.bootstrap = bootstrap
        self._server = server
        self._doors = doors

    @property
    def origin(self) -> str:
        """Where the broker came from: "environment", "container" or "maven"."""
        return ORIGIN_ENVIRONMENT if self._server is None else self._server.origin

    @property
    def doors(self) -> SecuredDoors:
        """The guarded listeners; BrokerError where the broker is not a secured one."""
        if self._doors is None:
            raise BrokerError("this broker is not secured: ask for running_broker(secured=True)")
        return self._doors

    @property
    def sasl_bootstrap(self) -> str:
        """The SASL_PLAINTEXT listener, mechanism PLAIN."""
        return self.doors.sasl_bootstrap

    @property
    def ssl_bootstrap(self) -> str:
        """The SSL listener; it asks for no client certificate."""
        return self.doors.ssl_bootstrap

    @property
    def ca_pem_path(self) -> Path:
        """The CA certificate that a client of the SSL listener has to trust."""
        return self.doors.ca_pem_path

    def start(self) -> None:
        """Start the broker and return when it serves requests; nothing if it runs."""
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
        """Let the broker shut down in order."""
        self._own("stop").stop()

    def kill(self) -> None:
        """End the broker as a crash would."""
        self._own("kill").kill()

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same data and ports."""
        self._own("restart").stop()
        self.start()

    def suspend(self) -> None:
        """Freeze the broker with its connections open, as a long pause would."""
        self._own("suspend").suspend()

    def resume(self) -> None:
        """Let a frozen broker go on."""
        self._own("resume").resume()

    def is_running(self) -> bool:
        """Tell whether the broker has not ended; always true of the environment's."""
        return self._server is None or self._server.is_running()

    def _own(self, deed: str) -> Server:
        if self._server is None:
            raise BrokerError(f"cannot {deed} the broker: STREAMDEDUP_TEST_BOOTSTRAP is not ours")
        return self._server
