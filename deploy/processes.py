"""*Blocking.* Child processes: their output, their readiness, and their end with this process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self, cast

_WATCHDOG = Path(__file__).with_name("watchdog.py")
_LOCK = threading.Lock()
_STOP_S = 40.0
"""How long a process may take to end after SIGTERM: the worker drains for up to 30 s."""
_WATCHDOG_S = 5.0
_LOG_LINES = 15


class ProcessEnded(Exception):
    """A process ended, or did not do what it was started for; the message has its last output."""


class Child:
    """A running process whose output is in a file.

    It leads a process group of its own, so that Ctrl-C of a terminal does not reach it. If this
    process is killed, a watchdog ends it.

    Args:
        command: the command.
        log: file for standard output and standard error.
        env: changes to the environment.
        folder: the working directory, which the watchdog deletes; by default that of this process.

    Attributes:
        process: the process.
        pid: its number.
        started_at: the time of its start, by ``time.perf_counter``.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._log = log
        self.started_at = time.perf_counter()
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
                cwd=folder,
                start_new_session=True,
            )
        self.pid = self.process.pid
        watch("process", str(self.pid), folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log(self) -> str:
        """Return the output so far."""
        return self._log.read_text(errors="replace")

    def tail(self, lines: int = _LOG_LINES) -> str:
        """Return the last lines of the output."""
        return "\n".join(self.log().splitlines()[-lines:])

    def events(self) -> list[dict[str, Any]]:
        """Return the complete lines of the output that are JSON, such as log events."""
        lines = self.log().split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def address(self) -> str | None:
        """Return the address of a worker's status server, None before it listens."""
        ports = [event["port"] for event in self.events() if event.get("event") == "listening"]
        return f"http://127.0.0.1:{ports[0]}" if ports else None

    def get(self, path: str) -> tuple[int, str]:
        """Request a path of a worker's status server; return the HTTP status and the body.

        Raises:
            ProcessEnded: the server does not listen yet.
            OSError: the server does not answer.
        """
        address = self.address()
        if address is None:
            raise ProcessEnded(f"the status server does not listen:\n{self.tail()}")
        try:
            with urllib.request.urlopen(address + path, timeout=10) as response:  # noqa: S310
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def code(self, within_s: float = 0.0) -> int | None:
        """Return the exit code, None if the process runs for longer than ``within_s``."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def check(self) -> None:
        """Raise ProcessEnded if the process has ended."""
        code = self.code()
        if code is not None:
            raise ProcessEnded(f"a process ended with {code}:\n{self.tail()}")

    def wait_for(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until ``done`` returns True; raise ProcessEnded if that takes too long."""
        end = time.monotonic() + timeout_s
        while not done():
            self.check()
            if time.monotonic() > end:
                raise ProcessEnded(f"{what} took longer than {timeout_s:g} s:\n{self.tail()}")
            time.sleep(0.1)

    def wait(self, timeout_s: float) -> int:
        """Wait for the end, and return the exit code."""
        return self.process.wait(timeout_s)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL, as the OOM killer would, and wait."""
        self.process.kill()
        self.process.wait()

    def stop(self, patience_s: float = _STOP_S) -> None:
        """Send SIGTERM, later SIGKILL; then SIGKILL to processes of its group that stay."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        self.process.send_signal(signal.SIGCONT)
        if self.code(patience_s) is None:
            self.kill()
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)


def worker(config: Path, *flags: str, module: str = "streamdedup") -> list[str]:
    """Return the command of a worker with a configuration file."""
    return [sys.executable, "-m", module, "run", "--config", str(config), *flags]


def watch(kind: str, name: str, folder: Path | None = None) -> None:
    """Let the watchdog end a ``process`` or a ``container`` when this process has ended.

    Args:
        kind: what it is.
        name: the number of a process that leads its group, or the id of a container.
        folder: a folder to delete then.
    """
    with _LOCK:
        pipe = cast("IO[str]", _watchdog(os.getpid()).stdin)
        pipe.write(f"{kind}\t{name}\t{folder or ''}\n")
        pipe.flush()


@functools.cache
def _watchdog(owner: int) -> subprocess.Popen[str]:
    """Start the watchdog of this process."""
    command = [sys.executable, "-I", str(_WATCHDOG), str(owner)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)

    def end() -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_WATCHDOG_S)

    atexit.register(end)
    return process
