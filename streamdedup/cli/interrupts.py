"""*Blocking.* SIGINT and SIGTERM stop a command at once, but never during a commit."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

import typer

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The operator stopped the command.

    Args:
        number: of the signal.
    """

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
        """Delay a signal until the block has ended.

        Raises:
            Interrupted: a signal arrived in the block.
        """
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
    """Run a block that a signal ends with a line on standard error and exit code 128 + signal.

    Args:
        message: the line.
    """
    try:
        with Interrupts() as interrupts:
            yield interrupts
    except Interrupted as interrupted:
        sys.stderr.write(f"streamdedup: {message}\n")
        raise typer.Exit(interrupted.exit_code) from None
