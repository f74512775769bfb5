"""*Pure.* A clock for tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """A clock that shows what the test sets.

    Attributes:
        time: the current time, in seconds.
    """

    time: float = 0.0

    def __call__(self) -> float:
        """Return the current time."""
        return self.time
