"""*Pure.* What the checks found, who must act on it, and the exit code that follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from streamdedup.errors import BrokerRefused, BrokerUnavailable, StreamdedupError, TopicError

OPERATOR = "operator"
"""The person who owns the worker's settings and machine."""
ADMINISTRATOR = "Kafka administrator"
"""The person who owns the brokers, the topics and their access control."""

_FROM_KAFKA = (TopicError, BrokerRefused, BrokerUnavailable)
"""The errors that the Kafka administrator can fix; the operator fixes all others."""


class Severity(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        message: one sentence; it says what to do if action is needed.
        who: the person who can act; empty if no action is needed.
        exit_code: the exit code of a worker that ends because of this; 0 if it would not end.
    """

    check: str
    level: Severity
    message: str
    who: str = ""
    exit_code: int = 0


class Findings:
    """Collects findings, in the order of the checks."""

    def __init__(self) -> None:
        self.collected: list[Finding] = []

    def ok(self, check: str, message: str) -> None:
        """Report that a check passed."""
        self.collected.append(Finding(check, Severity.OK, message))

    def warn(self, check: str, message: str, who: str) -> None:
        """Report something that a worker survives, and the person who can act on it."""
        self.collected.append(Finding(check, Severity.WARNING, message, who))

    def skip(self, check: str, reason: str) -> None:
        """Report that a check could not be made."""
        self.collected.append(Finding(check, Severity.SKIPPED, reason))

    def fail(self, check: str, error: StreamdedupError) -> None:
        """Report an error that would end a worker, with the exit code of that worker."""
        who = ADMINISTRATOR if isinstance(error, _FROM_KAFKA) else OPERATOR
        self.collected.append(Finding(check, Severity.ERROR, str(error), who, error.exit_code))

    @contextmanager
    def guarded(self, check: str) -> Iterator[None]:
        """Report an error that the body raises, and continue after the body."""
        try:
            yield
        except StreamdedupError as error:
            self.fail(check, error)


def exit_code(findings: Sequence[Finding]) -> int:
    """Return the exit code of the first error, which would end a worker; 0 without errors."""
    return next((one.exit_code for one in findings if one.level is Severity.ERROR), 0)
