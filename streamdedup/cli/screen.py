"""*Blocking.* The screen that commands share: consoles, tables, progress and marked texts."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from streamdedup.dedup.differences import TextPart
from streamdedup.files.run import RunTally

_WIDTH = 110
"""Columns of the output if it is not a terminal."""
_DIFFERENT = "bold yellow"


def standard_output() -> Console:
    """Return a console for standard output; it has a fixed width if that is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str | Text]] = ()) -> Table:
    """Return a table; the first column is text, the others are numbers."""
    result = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        result.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        result.add_row(*row)
    return result


def marked(parts: Iterable[TextPart], *, brackets: bool) -> Text:
    """Return a text with its differing parts in colour, and in brackets if there is no colour."""
    text = Text()
    for part in parts:
        shown = f"[{part.text}]" if part.differs and brackets else part.text
        text.append(shown, _DIFFERENT if part.differs else None)
    return text


@contextmanager
def progress(step: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on standard error if it is a terminal.

    The bar begins with the name of the first step. The function that is yielded takes the name of
    the current step, the work done, and all of its work.
    """
    bar = _bar(Console(stderr=True), "{task.description}")
    task = bar.add_task(step, total=None)
    with bar:
        yield lambda name, done, total: bar.update(
            task, description=name, completed=done, total=total
        )


@contextmanager
def judging_progress(console: Console) -> Iterator[Callable[[RunTally], None]]:
    """Show a progress bar of the embedded mode, if the console is a terminal.

    The function that is yielded takes the current tally.
    """
    bar = _bar(console, "{task.fields[counts]}")
    task = bar.add_task("", total=None, counts="starting")

    def update(tally: RunTally) -> None:
        counts = f"{tally.documents:,} documents, {tally.duplicates:,} duplicates"
        if tally.rejected:
            counts += f", {tally.rejected:,} rejected"
        bar.update(
            task,
            completed=tally.bytes_read,
            total=tally.bytes_total,
            counts=f"{counts}, {tally.documents_per_second:,.0f}/s",
        )

    with bar:
        yield update


def program() -> str:
    """Return how to type this program: by its name if that is on the path, else by its file."""
    started = Path(sys.argv[0])
    found = shutil.which(started.name)
    if started.name == "__main__.py" or (found and Path(found).resolve() == started.resolve()):
        return "streamdedup"
    return shlex.quote(os.path.relpath(started))


def start(tally: RunTally) -> str:
    """Describe the start-up of a run."""
    text = f"{tally.start_seconds:.1f} s of start-up"
    compiling = f" (compiling kernels took {tally.compile_seconds:.1f} s)"
    return text + (compiling if tally.compile_seconds else "")


def _bar(console: Console, text: str) -> Progress:
    return Progress(
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn(text),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        expand=True,
        transient=True,
    )
