"""*Pure.* Every error of the project, named by who must act on it.

Each class carries the exit code of a command that ends with it; docs/operations.md lists them.
A message is one line: what is wrong, and what the person it names can do.
"""

from __future__ import annotations

from typing import ClassVar

REMEDY = (
    "remove the index directory; a worker then rebuilds it from its changelog, the embedded mode "
    "begins anew"
)
"""What to do about an index that is of no use any more."""


class StreamdedupError(Exception):
    """Root of the tree; never raised itself."""

    exit_code: ClassVar[int] = 1


class SettingsError(StreamdedupError):
    """The operator's settings are wrong; nothing was started."""

    exit_code = 3


class InputError(StreamdedupError):
    """An input or output file of the embedded mode cannot be used."""

    exit_code = 4


class TopicError(StreamdedupError):
    """A topic is missing, or is not the one that the index and the offsets belong to."""

    exit_code = 5


class BrokerRefused(StreamdedupError):  # noqa: N818 - the name says who acted
    """The broker refuses this client: login, certificate or authorisation."""

    exit_code = 6


class BrokerUnavailable(StreamdedupError):  # noqa: N818 - the name says who acted
    """No broker answers, or a request's outcome is unknown; try again later."""

    exit_code = 7


class Fenced(StreamdedupError):  # noqa: N818 - Kafka's own word
    """Another worker with the same ordinal has taken over; this one must end."""

    exit_code = 8


class IndexUnusable(StreamdedupError):  # noqa: N818 - says what the operator will find
    """The index directory cannot be created, opened or written."""

    exit_code = 9


class IndexLocked(StreamdedupError):  # noqa: N818 - says what the operator will find
    """Another process has the index open."""

    exit_code = 10


class IndexMismatch(StreamdedupError):  # noqa: N818 - says what the operator will find
    """The index was built with other parameters, or belongs to another changelog."""

    exit_code = 11


class IndexDamaged(StreamdedupError):  # noqa: N818 - says what the operator will find
    """The index on disk, or the changelog, is not what was written."""

    exit_code = 12


class IndexFull(StreamdedupError):  # noqa: N818 - says what the operator will find
    """The index has reached its size limit or the disk is full."""

    exit_code = 13
