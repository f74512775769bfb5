"""*Blocking.* Edges and judges of mode split as real processes."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.feed import Feed
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

ENDINGS = frozenset({0, -signal.SIGKILL, -signal.SIGTERM})
"""Exit codes of a role: it was drained, killed, or ended before it could be drained."""


class Split:
    """Some edges and judges on one stage; each judge has an index of its own.

    Attributes:
        stage: their stage.
        workers: the running processes, by name: ``edge-0``, ``judge-1``.
        ends: the exit codes so far.
    """

    def __init__(self, stage: Stage, running: ExitStack) -> None:
        self.stage = stage
        self.workers: dict[str, WorkerProcess] = {}
        self.ends: Counter[int] = Counter()
        self._running = running
        self._stages: dict[str, Stage] = {}

    def start(self, name: str, **options: Any) -> WorkerProcess:
        """Start a role by its name; ``options`` are those of ``Stage.start_worker``."""
        if name not in self._stages:
            self._stages[name] = self.stage.variant(name)
        role = name.partition("-")[0]
        worker = self._stages[name].start_worker("--role", role, **options)
        self.workers[name] = self._running.enter_context(worker)
        return self.workers[name]

    def restart(self) -> None:
        """Start those again that have ended."""
        for name, worker in list(self.workers.items()):
            if (code := worker.process.poll()) is not None:
                assert code in ENDINGS, worker.log()
                self.ends[code] += 1
                self.start(name)

    def assert_running(self) -> None:
        """Fail the test if one has ended."""
        for worker in self.workers.values():
            worker.assert_running()

    def wait(self, feed: Feed, meanwhile: Callable[[], None] | None = None) -> None:
        """Wait until all documents are written; ``meanwhile`` is called again and again."""

        def written() -> bool:
            (meanwhile or self.assert_running)()
            return feed.is_committed()

        wait_until(written, f"{feed.fed} documents to be written")

    def drain(self, *names: str) -> None:
        """Stop roles with SIGTERM, the edges first; without names all."""
        for name in sorted(names or self.workers):
            self.workers.pop(name).drain()


@contextmanager
def split_on(
    bootstrap: str,
    folder: Path,
    partitions: int,
    edges: int = 1,
    judges: int = 1,
    name: str | None = None,
    **settings: Any,
) -> Iterator[Split]:
    """Yield running edges and judges on a stage; two judges are a pair with a standby.

    Args:
        bootstrap: the broker.
        folder: of the stage.
        partitions: of its source.
        edges: how many edges to start.
        judges: how many judges to start.
        name: the name of a stage whose topics exist already; default: a new one.
        settings: changes to the settings, by section.
    """
    stage = Stage(bootstrap, folder, mode="split")
    stage.name = name or stage.name
    if judges > 1:
        settings["standby"] = {"enabled": True}
    stage.configure(**settings)
    stage.create_topics(partitions)
    with ExitStack() as running:
        split = Split(stage, running)
        for number in range(judges):
            split.start(f"judge-{number}")
        for number in range(edges):
            split.start(f"edge-{number}")
        yield split
