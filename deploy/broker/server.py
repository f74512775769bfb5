"""*Pure.* The interface of a started broker, for both origins."""

from typing import Protocol

ORIGIN_ENVIRONMENT = "environment"
ORIGIN_CONTAINER = "container"
ORIGIN_MAVEN = "maven"


class Server(Protocol):
    """A broker that can be started more than once on the same data and the same ports."""

    @property
    def origin(self) -> str:
        """One of the ORIGIN constants."""

    def start(self) -> None:
        """Start the broker, without waiting until it answers."""

    def stop(self) -> None:
        """Shut the broker down, and wait for its end."""

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""

    def suspend(self) -> None:
        """Suspend the broker, with its connections open."""

    def resume(self) -> None:
        """Resume a suspended broker."""

    def is_running(self) -> bool:
        """Tell whether the broker was started and has not ended; it may be suspended."""

    def log_tail(self) -> str:
        """Return the last lines of the broker's log."""

    def discard(self) -> None:
        """End the broker if it runs, and release its resources; no other call may follow."""
