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


class SettingsError(StreamdedupError):
    """The operator's settings are invalid; nothing was started. Exit code 3."""

    exit_code = 3


class InputError(StreamdedupError):
    """An input or output file of a command cannot be used, or holds no document. Exit code 4."""

    exit_code = 4


class TopicError(StreamdedupError):
    """A topic is missing or misconfigured, or the offsets and the index belong to another.

    Exit code 5.
    """

    exit_code = 5


class BrokerRefused(StreamdedupError):
    """The broker or registry refuses this client: login, certificate or permission. Exit code 6."""

    exit_code = 6


class BrokerUnavailable(StreamdedupError):
    """No broker answers, or the outcome of a request is unknown; retry later. Exit code 7."""

    exit_code = 7


class ProducerForgotten(BrokerUnavailable):
    """The brokers have forgotten an idle producer; nothing was begun. Exit code 7."""


class RegistryUnavailable(BrokerUnavailable):
    """The schema registry does not answer; retry later. Exit code 7."""


class Fenced(StreamdedupError):
    """Another worker with the same changelog has taken over; this one must end. Exit code 8."""

    exit_code = 8


class IndexUnusable(StreamdedupError):
    """The index directory cannot be created, opened or written. Exit code 9."""

    exit_code = 9


class IndexLocked(StreamdedupError):
    """Another process has the index open. Exit code 10."""

    exit_code = 10


class IndexMismatch(StreamdedupError):
    """The index was built with other parameters, or belongs to another changelog. Exit code 11."""

    exit_code = 11


class IndexDamaged(StreamdedupError):
    """The index on disk, or the changelog, differs from what was written. Exit code 12."""

    exit_code = 12


class IndexFull(StreamdedupError):
    """The index has reached its size limit, or the disk is full. Exit code 13."""

    exit_code = 13


class TooManyDeadLetters(StreamdedupError):
    """A limit on dead letters was reached; the batch was not committed. Exit code 14."""

    exit_code = 14


class ClockWrong(StreamdedupError):
    """The clock of this machine differs too much from the brokers'. Exit code 15."""

    exit_code = 15


class PoolUnusable(StreamdedupError):
    """The processes that sketch cannot start, or die without a record. Exit code 16."""

    exit_code = 16
