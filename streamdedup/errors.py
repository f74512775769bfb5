"""*Pure.* Every error of the project, named by who must act on it.

The exit code of a class is the exit code of a command that ends with this error; docs/operations.md
lists them. A message is one line: what is wrong, the value, and what the reader can do about it.
"""

from __future__ import annotations

from typing import ClassVar

REMEDY = (
    "remove the index directory; a worker then rebuilds the index from its changelog, the embedded "
    "mode starts with an empty index and needs new output files"
)
"""What to do about an index that cannot be used any more."""


class StreamdedupError(Exception):
    """Root of the tree; never raised itself.

    Attributes:
        exit_code: exit code of the process; 1 would be a bug in this project.
    """

    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        if exit_code is not None:
            cls.exit_code = exit_code


class SettingsError(StreamdedupError, exit_code=3):
    """The operator's settings are invalid; nothing was started."""


class InputError(StreamdedupError, exit_code=4):
    """An input or output file of a command cannot be used, or holds no document."""


class TopicError(StreamdedupError, exit_code=5):
    """A topic is missing or misconfigured, or the offsets and the index belong to another."""


class BrokerRefused(StreamdedupError, exit_code=6):
    """The broker or registry refuses this client: login, certificate or permission."""


class BrokerUnavailable(StreamdedupError, exit_code=7):
    """No broker answers, or the outcome of a request is unknown; retry later."""


class ProducerForgotten(BrokerUnavailable):
    """The brokers have forgotten an idle producer; nothing was begun."""


class RegistryUnavailable(BrokerUnavailable):
    """The schema registry does not answer; retry later."""


class Fenced(StreamdedupError, exit_code=8):
    """Another worker with the same changelog has taken over; this one must end."""


class IndexUnusable(StreamdedupError, exit_code=9):
    """The index directory cannot be created, opened or written."""


class IndexLocked(StreamdedupError, exit_code=10):
    """Another process has the index open."""


class IndexMismatch(StreamdedupError, exit_code=11):
    """The index was built with other parameters, or belongs to another changelog."""


class IndexDamaged(StreamdedupError, exit_code=12):
    """The index on disk, or the changelog, differs from what was written."""


class IndexFull(StreamdedupError, exit_code=13):
    """The index has reached its size limit, or the disk is full."""


class TooManyDeadLetters(StreamdedupError, exit_code=14):
    """A limit on dead letters was reached; the batch was not committed."""


class ClockWrong(StreamdedupError, exit_code=15):
    """The clock of this machine differs too much from the brokers'."""


class PoolUnusable(StreamdedupError, exit_code=16):
    """The processes that sketch cannot start, or die without a record."""
