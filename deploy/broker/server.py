"""*Blocking.* What the two origins of a started broker have in common."""

from typing import Protocol

ORIGIN_ENVIRONMENT = "environment"
ORIGIN_CONTAINER = "container"
ORIGIN_MAVEN = "maven"


class Server(Protocol):
    """A broker that can be started more than once on the same data and the same ports."""

    @property
    def origin(self) -> str:
        """One of the ORIGIN_ names."""

    def start(self) -> None:
        """Start the broker; it need not answer yet."""

    def stop(self) -> None:
        """Let the broker shut down in order, and return when it has."""

    def kill(self) -> None:
        """End the broker at once, as SIGKILL does."""

    def suspend(self) -> None:
        """Freeze the broker, its connections left open."""

    def resume(self) -> None:
        """Undo suspend."""

    def is_running(self) -> bool:
        """Tell whether the broker has been started and has not ended; frozen counts."""

    def log_tail(self) -> str:
        """Return the last lines of the broker's log."""

    def discard(self) -> None:
        """End the broker if it runs; nothing can be asked of it afterwards."""
