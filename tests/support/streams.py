"""*Blocking.* Standard streams that tests lead elsewhere, at the level of file descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

PIPE_BYTES = 65536
"""What a pipe holds before its writer must wait."""


@contextmanager
def standard_input(content: bytes) -> Iterator[None]:
    """Let standard input be a pipe with this content."""
    assert len(content) <= PIPE_BYTES
    source, sink = os.pipe()
    os.write(sink, content)
    os.close(sink)
    with _led_to(0, source):
        yield


@contextmanager
def deaf_standard_output() -> Iterator[None]:
    """Let standard output be a pipe that nobody reads any more."""
    source, sink = os.pipe()
    os.close(source)
    with _led_to(1, sink):
        yield


@contextmanager
def _led_to(descriptor: int, target: int) -> Iterator[None]:
    before = os.dup(descriptor)
    os.dup2(target, descriptor)
    os.close(target)
    try:
        yield
    finally:
        os.dup2(before, descriptor)
        os.close(before)
