"""*Pure.* How long operations report their progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the work done so far and the total, in any unit."""


def no_progress(_done: int, _total: int) -> None:
    """Ignore the progress."""
