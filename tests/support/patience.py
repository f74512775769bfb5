"""*Blocking.* Waits for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 90.0
"""How long a test waits before it fails."""


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition is true.

    Args:
        condition: is called repeatedly; it may fail the test itself.
        what: the awaited event, for the message.
        patience_s: how long to wait, in seconds.

    Raises:
        AssertionError: the condition did not become true in time.
    """
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience_s:.0f} s for {what}")
        time.sleep(0.05)
