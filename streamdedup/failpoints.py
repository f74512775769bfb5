"""*Pure.* Fail-points: named steps of a batch's life at which a test can inject a fault.

A running process has no handler, and :func:`reach` does nothing. The fault tests set a handler in
the processes that they start; no setting and no environment variable of the product does.
"""

from __future__ import annotations

from collections.abc import Callable

_handler: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """Call the handler of this process with a point; without a handler do nothing.

    ``tests/support/points.py`` lists the points, and what has happened at each.
    """
    if _handler is not None:
        _handler(point)


def handle(handler: Callable[[str], None]) -> None:
    """Set the handler of this process. It may end the process, wait, or raise."""
    global _handler  # noqa: PLW0603 - one per process
    _handler = handler
