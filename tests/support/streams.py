"""*Blocking.* Redirects the standard streams of a test, by their file descriptors."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PIPE_BYTES = 65536
"""The capacity of a pipe, beyond which its writer must wait."""


@contextmanager
def standard_input(content: bytes) -> Iterator[None]:
    """Redirect standard input to a pipe with this content."""
    assert len(content) <= PIPE_BYTES
    source, sink = os.pipe()
    os.write(sink, content)
    os.close(sink)
    with _redirected(0, source):
        yield


@contextmanager
def open_standard_input() -> Iterator[io.FileIO]:
    """Redirect standard input to a pipe, and yield the end to write to; closing it ends the input.

    If the reader waits for more than a test writes, the input ends after a while, so that the test
    fails instead of waiting, too.
    """
    source, sink = os.pipe()
    with io.FileIO(sink, "wb") as writer:
        end = threading.Timer(20, writer.close)
        end.start()
        try:
            with _redirected(0, source):
                yield writer
        finally:
            end.cancel()


@contextmanager
def closed_standard_output() -> Iterator[None]:
    """Redirect standard output to a pipe whose reader has closed it."""
    source, sink = os.pipe()
    os.close(source)
    with _redirected(1, sink):
        yield


@contextmanager
def _redirected(descriptor: int, target: int) -> Iterator[None]:
    before = os.dup(descriptor)
    os.dup2(target, descriptor)
    os.close(target)
    try:
        yield
    finally:
        os.dup2(before, descriptor)
        os.close(before)
