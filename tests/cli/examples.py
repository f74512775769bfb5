"""A small input for ``streamdedup dedup``."""

from __future__ import annotations

from collections.abc import Callable

LINES = [
    b'{"id": "a", "text": "The council met on Monday to settle the budget for the year."}\n',
    b'{"id": "b", "text": "The council met on Monday to settle the budget for the year!"}\n',
    b'{"id": "c", "text": "A storm closed the harbour, and all ferries stayed in port."}\n',
    b'{"id": "d", "text": "the Council met on Monday  to settle the budget for the year."}\n',
]
"""The second and the fourth line repeat the first one."""
Command = Callable[..., int]
"""Runs the command line and returns its exit code."""
