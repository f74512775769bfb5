"""*Blocking.* The broker as a container of the official image, through testcontainers."""

import contextlib
import gc
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from deploy.broker.access import Access
from deploy.broker.address import LOOPBACK
from deploy.broker.errors import BrokerFailed
from deploy.broker.jars import kafka_version
from deploy.broker.layout import CLUSTER_ID, Ports, as_environment, server_properties
from deploy.broker.server import ORIGIN_CONTAINER
from deploy.processes import watch

_DATA = "/var/lib/kafka/data"
_ALL_INSIDE = "0.0.0.0"  # noqa: S104 - inside the container; the host publishes on loopback only
_HEAP = "-Xms256m -Xmx768m"
_PING_SECONDS = 2
_STOP_SECONDS = 20
_TAIL_LINES = 40


def image_name() -> str:
    """Return the official image's name, of the same release as the jars."""
    return f"apache/kafka:{kafka_version()}"


def engine_answers() -> bool:
    """Tell within about two seconds whether a Docker engine can be used."""
    with warnings.catch_warnings():
        # The client leaves the socket of a failed attempt to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        answers = _ping()
        gc.collect()
    return answers


def _ping() -> bool:
    try:
        client = DockerClient(timeout=_PING_SECONDS).client
    except (DockerException, OSError):
        return False
    try:
        return bool(client.ping())
    except (DockerException, OSError):
        return False
    finally:
        client.close()


def missing_image() -> str | None:
    """Pull the image if it is missing; return the reason if that fails, else None."""
    client = DockerClient().client
    try:
        client.images.get(image_name())
    except ImageNotFound:
        print(f"pulling {image_name()}, once", file=sys.stderr, flush=True)
        try:
            client.images.pull(image_name())
        except (DockerException, OSError) as error:
            return str(error)
    finally:
        client.close()
    return None


class KafkaContainer(DockerContainer):
    """One KRaft node, with its ports published on loopback under the same numbers.

    Equal numbers let the broker reach its own advertised listeners, which transactions need.
    """

    def __init__(
        self, ports: Ports, access: Access | None, special: Mapping[str, str] | None
    ) -> None:
        super().__init__(image_name())
        published = [ports.client] if access is None else ports.of_clients()
        # The engine accepts (host, port) here, although the type of testcontainers does not.
        bound = {f"{port}/tcp": (LOOPBACK, port) for port in published}
        self.ports = cast("dict[str, int | None]", bound)
        properties = server_properties(
            ports, access, bind_host=_ALL_INSIDE, log_dir=_DATA, special=special
        )
        self.env = {
            **as_environment(properties),
            "CLUSTER_ID": CLUSTER_ID,
            "KAFKA_HEAP_OPTS": _HEAP,
        }


class ContainerServer:
    """A single Kafka node in a container; removing the container deletes its data."""

    origin = ORIGIN_CONTAINER

    def __init__(
        self,
        folder: Path,
        ports: Ports,
        access: Access | None,
        special: Mapping[str, str] | None,
    ) -> None:
        self._folder = folder
        self._kafka = KafkaContainer(ports, access, special)
        self._created = False

    def start(self) -> None:
        """Create and start the container, or start it again on its data."""
        with _translated("start"):
            if self._created:
                self._container().start()
                return
            self._created = True
            self._kafka.start()
        if testcontainers_config.ryuk_disabled:
            # Without Ryuk no other process removes the containers of a killed process.
            watch("container", self._kafka.get_container_id(), self._folder)

    def stop(self) -> None:
        """Stop the container with SIGTERM."""
        self._end(graceful=True)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._end(graceful=False)

    def suspend(self) -> None:
        """Pause the container."""
        with _translated("suspend"):
            self._container().pause()

    def resume(self) -> None:
        """Unpause the container."""
        with _translated("resume"):
            self._container().unpause()

    def is_running(self) -> bool:
        """Tell whether the container runs or is paused."""
        return self._status() in ("running", "paused")

    def log_tail(self) -> str:
        """Return the last lines of the container's log."""
        try:
            return str(self._container().logs(tail=_TAIL_LINES), errors="replace")
        except (DockerException, BrokerFailed) as error:
            return f"(no log: {error})"

    def discard(self) -> None:
        """Remove the container and its volumes."""
        with contextlib.suppress(NotFound):
            self._kafka.stop()

    def _container(self) -> Container:
        return self._kafka.get_wrapped_container()

    def _status(self) -> str:
        try:
            self._kafka.reload()
        except NotFound:
            return "gone"
        return str(self._kafka.status)

    def _end(self, *, graceful: bool) -> None:
        with _translated("stop"):
            status = self._status()
            if status == "paused":
                self._container().unpause()
            if status not in ("running", "paused"):
                return
            if graceful:
                self._container().stop(timeout=_STOP_SECONDS)
            else:
                self._container().kill()
            self._container().wait()


@contextlib.contextmanager
def _translated(action: str) -> Iterator[None]:
    try:
        yield
    except (APIError, OSError) as error:
        raise BrokerFailed(f"the Docker engine could not {action} the broker: {error}") from error
