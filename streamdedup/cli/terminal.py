"""*Blocking.* The terminal of a command: its standard output, questions, and signals.

An error of writing to standard output becomes one line. SIGINT and SIGTERM stop a command at once,
but never during a commit.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import typer

from streamdedup.errors import InputError, SettingsError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_OUTPUT = 1
"""The number of the file descriptor."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def replace_output() -> None:
    """Let an error of standard output, such as a full disk, end the command as an InputError.

    Text that the encoding lacks, such as a path that is not UTF-8, is written with escapes.
    """
    encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
    raw = _Output(_OUTPUT, "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=raw.isatty()
    )


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            # Python writes what is left once more at its end, and must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), _OUTPUT)
            raise InputError(f"cannot write standard output: {error.strerror or error}") from error


def report(facts: dict[str, Any], message: str, *, as_json: bool) -> None:
    """Print what a command has done, in JSON or in words."""
    typer.echo(json.dumps(facts) if as_json else message)


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation unless ``yes`` is set; raise a SettingsError if it is not given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError("cannot ask for confirmation: not a terminal; give --yes")
    if not typer.confirm(question, err=True):
        raise SettingsError("not confirmed; nothing was done")


class Interrupted(BaseException):
    """The operator stopped the command with a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Interrupts:
    """Turns the first signal into :class:`Interrupted`; a second signal ends the process."""

    def __init__(self) -> None:
        self._previous: dict[signal.Signals, Any] = {}
        self._shielded = False
        self._pending: int | None = None

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Delay a signal until the block has ended; then raise :class:`Interrupted`."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self._pending is not None:
            raise Interrupted(self._pending)

    def _receive(self, number: int, _: FrameType | None) -> None:
        for one in _SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        if self._shielded:
            self._pending = number
        else:
            raise Interrupted(number)


@contextmanager
def interruptible(message: str) -> Iterator[Interrupts]:
    """Run a block that a signal ends with a line on standard error and exit code 128 + signal."""
    try:
        with Interrupts() as interrupts:
            yield interrupts
    except Interrupted as interrupted:
        sys.stderr.write(f"streamdedup: {message}\n")
        raise typer.Exit(interrupted.exit_code) from None
