"""*Blocking.* The broker as a Java process of this machine, from the jars."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, cast

from deploy.broker.access import Access
from deploy.broker.address import LOOPBACK
from deploy.broker.errors import BrokerFailed, BrokerUnobtainable
from deploy.broker.jars import WHAT_TO_DO
from deploy.broker.layout import CLUSTER_ID, Ports, as_file, server_properties
from deploy.broker.server import ORIGIN_MAVEN

_OLDEST_JAVA = 17
_LEASH = Path(__file__).with_name("leash.py")
_LOGGING = Path(__file__).with_name("log4j2.properties")
_HEAP = ["-Xms256m", "-Xmx768m", "-XX:+UseG1GC", "-XX:+ExitOnOutOfMemoryError"]
_FORMAT_SECONDS = 60
_STOP_SECONDS = 20
_KILL_SECONDS = 10
_TAIL_LINES = 40


def find_java() -> str:
    """Return the path of a Java that can run the broker, or raise BrokerUnobtainable."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        raise BrokerUnobtainable(f"Java {_OLDEST_JAVA} or newer is missing: {WHAT_TO_DO}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        raise BrokerUnobtainable(f"{java} is older than Java {_OLDEST_JAVA}: {WHAT_TO_DO}")
    return java


class JavaServer:
    """A single Kafka node as a child process; its data and log lie in `folder`."""

    origin = ORIGIN_MAVEN

    def __init__(
        self, java: str, jars: Path, folder: Path, ports: Ports, access: Access | None
    ) -> None:
        self._java = [java, "-cp", f"{jars}/*", f"-Dlog4j2.configurationFile={_LOGGING}"]
        self._folder = folder
        self._config = self._folder / "server.properties"
        self._log = self._folder / "broker.log"
        self._leash: subprocess.Popen[str] | None = None
        self._pid = 0
        properties = server_properties(
            ports, access, bind_host=LOOPBACK, log_dir=str(self._folder / "data")
        )
        self._config.write_text(as_file(properties))
        self._config.chmod(0o600)

    def start(self) -> None:
        """Start the broker, formatting its storage the first time."""
        if not (self._folder / "data").exists():
            self._format_storage()
        with self._log.open("a") as log:
            self._leash = subprocess.Popen(
                [
                    *[sys.executable, "-I", str(_LEASH)],
                    *["process", str(os.getpid()), str(self._folder)],
                    *[*self._java, *_HEAP, "kafka.Kafka", str(self._config)],
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._folder,
                start_new_session=True,
            )
        with cast("IO[str]", self._leash.stdout) as said:
            self._pid = int(said.readline() or 0)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL where that does not end the broker."""
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
        """Tell whether the Java process has not ended."""
        return self._leash is not None and self._leash.poll() is None

    def log_tail(self) -> str:
        """Return the last lines of what the broker wrote."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])

    def discard(self) -> None:
        """Kill the broker; its data goes with the folder."""
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
            said = (done.stdout + done.stderr).strip()
            raise BrokerFailed(f"Kafka's storage could not be formatted:\n{said}")

    def _end(self, how: signal.Signals, seconds: float) -> None:
        if self._leash is None:
            return
        self._signal(how)
        self._signal(signal.SIGCONT)
        try:
            self._leash.wait(seconds)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._leash.wait(_KILL_SECONDS)
        self._leash = None

    def _signal(self, which: signal.Signals) -> None:
        # The leash is Java's parent, so while it lives the pid cannot have passed to another.
        if self.is_running() and self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, which)
