"""*Blocking.* The broker as a Java process, from Kafka's jars.

The first broker that is stopped writes an archive of its loaded classes next to the jars (class
data sharing). Later ones start in half the time with it.
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.broker.errors import BrokerFailed, BrokerUnobtainable
from deploy.broker.jars import REMEDY
from deploy.broker.layout import CLUSTER_ID, as_file
from deploy.broker.server import ORIGIN_MAVEN
from deploy.processes import Child

_OLDEST_JAVA = 17
_LOGGING = Path(__file__).with_name("log4j2.properties")
_EXIT = "-XX:+ExitOnOutOfMemoryError"
LONG_LIVED = ("-Xms256m", "-Xmx768m", "-XX:+UseG1GC", _EXIT)
"""Options of Java for a broker that is measured, or runs for hours."""
SHORT_LIVED = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", _EXIT)
"""Options of Java for a broker that starts soon, and leaves processors and memory to others."""
_FORMAT_SECONDS = 60
_STOP_SECONDS = 20
_TAIL_LINES = 40


@functools.cache
def find_java() -> str:
    """Return the path of a Java that can run the broker.

    Raises:
        BrokerUnobtainable: Java is missing or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        raise BrokerUnobtainable(f"Java {_OLDEST_JAVA} or newer is missing: {REMEDY}")
    version = re.search(r'version "(\d+)', _version(java))
    if version is None or int(version[1]) < _OLDEST_JAVA:
        raise BrokerUnobtainable(f"{java} is older than Java {_OLDEST_JAVA}: {REMEDY}")
    return java


@functools.cache
def _version(java: str) -> str:
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


def data_folder(folder: Path) -> Path:
    """Return the folder of a node's data, below that of the node."""
    return folder / "data"


class JavaServer:
    """A Kafka node as a child process, with its data and log in `folder`.

    `properties` are the node's settings; its `log.dirs` must be `data_folder(folder)`.
    """

    origin = ORIGIN_MAVEN

    def __init__(
        self,
        java: str,
        jars: Path,
        folder: Path,
        properties: Mapping[str, str],
        options: Sequence[str] = SHORT_LIVED,
    ) -> None:
        self._java = [java, "-cp", f"{jars}/*", f"-Dlog4j2.configurationFile={_LOGGING}"]
        self._options = options
        self._folder = folder
        self._config = self._folder / "server.properties"
        self._child: Child | None = None
        # Java checks that an archive fits its version and the jars, and their order.
        build = hashlib.sha256(_version(java).encode()).hexdigest()[:12]
        self._archive = jars / f"classes-{build}.jsa"
        self._recorded = folder / "classes.jsa"
        self._records = False
        self._config.write_text(as_file(properties))
        self._config.chmod(0o600)

    def start(self) -> None:
        """Start the broker; the first start formats its storage."""
        if not data_folder(self._folder).exists():
            self._format_storage()
        self._records = not self._archive.exists()
        archive = f"-XX:ArchiveClassesAtExit={self._recorded}" if self._records else self._shared()
        command = [*self._java, *self._options, archive, "kafka.Kafka", str(self._config)]
        self._child = Child(command, self._folder / "broker.log", folder=self._folder)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if that does not end the broker."""
        if self._child is not None:
            self._child.stop(_STOP_SECONDS)
            self._keep_archive()

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def suspend(self) -> None:
        """Send SIGSTOP."""
        if self._child is not None:
            self._child.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        if self._child is not None:
            self._child.process.send_signal(signal.SIGCONT)

    def is_running(self) -> bool:
        """Tell whether the Java process runs."""
        return self._child is not None and self._child.code() is None

    def log_tail(self) -> str:
        """Return the last lines of the broker's log."""
        return self._child.tail(_TAIL_LINES) if self._child is not None else ""

    def discard(self) -> None:
        """End the broker; the owner of the folder deletes its data."""
        if self._records:
            self.stop()
        self.kill()

    def _shared(self) -> str:
        return f"-XX:SharedArchiveFile={self._archive}"

    def _keep_archive(self) -> None:
        if self._recorded.exists():
            complete = self._archive.with_suffix(f".{os.getpid()}")
            with contextlib.suppress(OSError):  # it only saves time
                shutil.move(self._recorded, complete)
                complete.replace(self._archive)

    def _format_storage(self) -> None:
        options = ["-XX:TieredStopAtLevel=1"]
        if self._archive.exists():
            options.append(self._shared())
        command = [*self._java, *options, "kafka.tools.StorageTool", "format"]
        arguments = [f"--cluster-id={CLUSTER_ID}", f"--config={self._config}"]
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=_FORMAT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            output = (done.stdout + done.stderr).strip()
            raise BrokerFailed(f"formatting Kafka's storage failed:\n{output}")
