"""*Blocking.* A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Steps:
    """The progress of one step after another. Lines of tables are printed above the bar."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            redirect_stdout=False,
            expand=True,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None)

    def begin(self, name: str, total: int | None = None) -> None:
        """Begin a step of ``total`` documents."""
        self._progress.reset(self._task, total=total, description=name)

    def reach(self, done: int) -> None:
        """Set the number of documents that are done in this step."""
        self._progress.update(self._task, completed=done)

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
