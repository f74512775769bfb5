"""*Blocking.* SIGINT and SIGTERM: stop at once, but never in the middle of a commit."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The operator wants the command to stop.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Interrupts:
    """Turns the first signal into :class:`Interrupted`; a second one ends the process."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._shielded = False
        self._waiting: int | None = None

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Let a signal wait until the block has ended.

        Raises:
            Interrupted: a signal came meanwhile.
        """
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self._waiting is not None:
            raise Interrupted(self._waiting)

    def _receive(self, number: int, _: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        if self._shielded:
            self._waiting = number
        else:
            raise Interrupted(number)
