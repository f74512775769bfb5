"""*Blocking.* The broker as a Java process, from Kafka's jars."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from deploy.broker.errors import BrokerFailed, BrokerUnobtainable
from deploy.broker.jars import REMEDY
from deploy.broker.layout import CLUSTER_ID, as_file
from deploy.broker.server import ORIGIN_MAVEN

_OLDEST_JAVA = 17
_WATCHDOG = Path(__file__).with_name("watchdog.py")
_LOGGING = Path(__file__).with_name("log4j2.properties")
_EXIT = "-XX:+ExitOnOutOfMemoryError"
ALONE = ("-Xms256m", "-Xmx768m", "-XX:+UseG1GC", _EXIT)
"""Options of Java for the only node of a machine."""
ONE_OF_MANY = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", _EXIT)
"""Options of Java for a node that starts soon, and leaves room for others."""
_FORMAT_SECONDS = 60
_STOP_SECONDS = 20
_KILL_SECONDS = 10
_TAIL_LINES = 40


def find_java() -> str:
    """Return the path of a Java that can run the broker.

    Raises:
        BrokerUnobtainable: Java is missing or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        raise BrokerUnobtainable(f"Java {_OLDEST_JAVA} or newer is missing: {REMEDY}")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        raise BrokerUnobtainable(f"{java} is older than Java {_OLDEST_JAVA}: {REMEDY}")
    return java


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
        options: Sequence[str] = ALONE,
    ) -> None:
        self._java = [java, "-cp", f"{jars}/*", f"-Dlog4j2.configurationFile={_LOGGING}"]
        self._options = options
        self._folder = folder
        self._config = self._folder / "server.properties"
        self._log = self._folder / "broker.log"
        self._watchdog: subprocess.Popen[str] | None = None
        self._pid = 0
        self._config.write_text(as_file(properties))
        self._config.chmod(0o600)

    def start(self) -> None:
        """Start the broker; the first start formats its storage."""
        if not data_folder(self._folder).exists():
            self._format_storage()
        with self._log.open("a") as log:
            self._watchdog = subprocess.Popen(
                [
                    *[sys.executable, "-I", str(_WATCHDOG)],
                    *["process", str(os.getpid()), str(self._folder)],
                    *[*self._java, *self._options, "kafka.Kafka", str(self._config)],
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._folder,
                start_new_session=True,
            )
        with cast("IO[str]", self._watchdog.stdout) as output:
            self._pid = int(output.readline() or 0)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if that does not end the broker."""
        self._end(signal.SIGTERM, _STOP_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._end(signal.SIGKILL, _KILL_SECONDS)

    def suspend(self) -> None:
        """Send SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)

    def is_running(self) -> bool:
        """Tell whether the Java process runs."""
        return self._watchdog is not None and self._watchdog.poll() is None

    def log_tail(self) -> str:
        """Return the last lines of the broker's log."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])

    def discard(self) -> None:
        """Kill the broker; the owner of the folder deletes its data."""
        self.kill()

    def _format_storage(self) -> None:
        command = [*self._java, "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format"]
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

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        if self._watchdog is None:
            return
        self._signal(number)
        self._signal(signal.SIGCONT)
        try:
            self._watchdog.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._watchdog.wait(_KILL_SECONDS)
        self._watchdog = None

    def _signal(self, number: signal.Signals) -> None:
        # The watchdog is Java's parent: while it runs, no other process can get the pid.
        if self.is_running() and self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)
