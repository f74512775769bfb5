"""*Blocking.* The progress bar of the embedded mode, on standard error when it is a terminal."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from streamdedup.files.run import Tally


class ProgressBar:
    """Shows how far the inputs are read, what came of them, and how fast.

    Args:
        console: where it is drawn; nothing is drawn where that is no terminal.
    """

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            expand=True,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, counts="starting")

    def update(self, tally: Tally) -> None:
        """Show where a run is."""
        counts = f"{tally.documents:,} documents, {tally.duplicates:,} duplicates"
        if tally.rejected:
            counts += f", {tally.rejected:,} rejected"
        self._progress.update(
            self._task,
            completed=tally.bytes_read,
            total=tally.bytes_total,
            counts=f"{counts}, {tally.documents_per_second:,.0f}/s",
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
