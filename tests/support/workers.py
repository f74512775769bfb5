"""*Blocking.* Workers as real processes: their log, their status server, their end."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.processes import Child, worker
from tests.support.patience import PATIENCE_S, wait_until

# What a process of the pool prints that was being started when its worker was killed. The warning
# comes from multiprocessing's tracker of resources, which outlives the worker.
ORPHANED = re.compile(
    r"^Traceback \(most recent call last\):\n(?:  .*\n)+?.*in spawn_main\n(?:  .*\n)+\w+Error.*\n",
    re.MULTILINE,
)


class WorkerProcess(Child):
    """``streamdedup run`` in a separate process, which is killed at the end of the context.

    Args:
        config: the configuration file.
        folder: where to write the log.
        flags: more arguments of the command.
        env: changes to the environment.
        module: the program, if it is not streamdedup itself.
    """

    def __init__(
        self,
        config: Path,
        folder: Path,
        flags: Sequence[str],
        env: Mapping[str, str],
        module: str = "streamdedup",
    ) -> None:
        log = folder / f"worker-{time.monotonic_ns()}.log"
        super().__init__(worker(config, *flags, module=module), log, env)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()

    def has_traceback(self) -> bool:
        """Whether the worker has reported an error that it did not expect.

        A process of its pool that it was starting when it was killed may complain.
        """
        log = self.log()
        if self.process.returncode == -signal.SIGKILL:
            log = ORPHANED.sub("", log)
        return "Traceback" in log

    def wait_for_event(self, name: str) -> dict[str, Any]:
        """Wait for an event in the log, and return it."""
        wait_until(lambda: self._has(name), f"{name!r} in the log")
        return next(event for event in self.events() if event["event"] == name)

    def _has(self, name: str) -> bool:
        has = any(event["event"] == name for event in self.events())
        if not has:
            self.assert_running()
        return has

    def status_url(self) -> str:
        """Wait for the status server, and return its address."""
        return f"http://127.0.0.1:{self.wait_for_event('listening')['port']}"

    def get(self, path: str) -> tuple[int, str]:
        """Wait for the status server; return the HTTP status and the body of a path."""
        self.status_url()
        return super().get(path)

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a sample of the worker's metrics; 0 if it is missing."""
        wanted = "".join(f'(?=.*{label}="{re.escape(value)}")' for label, value in labels.items())
        pattern = rf"^streamdedup_{name}(?:\{{{wanted}[^}}]*\}})? ([0-9.e+-]+|NaN)$"
        sample = re.search(pattern, self.get("/metrics")[1], re.MULTILINE)
        return float(sample.group(1)) if sample else 0.0

    def wait_until_ready(self) -> None:
        """Wait until the worker judges documents."""

        def ready() -> bool:
            self.assert_running()
            return self.get("/readyz")[0] == 200

        wait_until(ready, "the worker to be ready")

    def wait_until_waiting(self) -> None:
        """Wait until the worker reports that it waits for the broker; it must stay alive."""

        def waiting() -> bool:
            self.assert_running()
            assert self.get("/livez")[0] == 200
            status, text = self.get("/readyz")
            return status == 503 and text.startswith("waiting for broker: ")

        wait_until(waiting, "the worker to wait for the broker")

    def drain(self) -> None:
        """Stop the worker with SIGTERM, and check that it ends with exit code 0."""
        self.terminate()
        assert self.wait() == 0, self.log()

    def assert_running(self) -> None:
        """Fail the test if the worker has ended."""
        assert self.process.poll() is None, f"the worker ended:\n{self.log()}"

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for the end, and return the exit code."""
        return self.process.wait(patience_s)

    def complaint(self) -> str:
        """Return the only line that is not a log event: the message to the operator."""
        lines = [line for line in self.log().splitlines() if not line.startswith("{")]
        assert len(lines) == 1, self.log()
        return lines[0]

    def assert_ends(self, code: int, *fragments: str) -> None:
        """Wait for the end; check the exit code and the fragments of the message."""
        assert self.wait() == code, self.log()
        complaint = self.complaint()
        assert complaint.startswith("streamdedup: "), complaint
        for fragment in fragments:
            assert fragment in complaint, complaint
