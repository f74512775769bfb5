"""*Blocking.* Progress bars on standard error, if that is a terminal."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Shown:
    """A progress bar. Lines of tables are printed above it.

    Args:
        name: what is in progress.
        total: documents in all; None if unknown.
        refreshes: whether a thread of its own keeps it up to date.
    """

    def __init__(self, name: str = "", total: int | None = None, *, refreshes: bool = True) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            auto_refresh=refreshes,
            redirect_stdout=False,
            expand=True,
            transient=True,
        )
        self._task = self._progress.add_task(name, total=total)

    def say(self, line: str = "") -> None:
        """Print a line of a table, on standard output."""
        self._stop()
        print(line, flush=True)
        self._progress.start()

    def _stop(self) -> None:
        if not self._progress.disable:
            self._progress.stop()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()


class Steps(Shown):
    """The progress of one step after another."""

    def begin(self, name: str, total: int | None = None) -> None:
        """Begin a step of ``total`` documents."""
        self._progress.reset(self._task, total=total, description=name)

    def reach(self, done: int) -> None:
        """Set the number of documents that are done in this step."""
        self._progress.update(self._task, completed=done)
