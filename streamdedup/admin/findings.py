"""*Pure.* What a check found, who must act, and the exit code that follows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

OPERATOR = "operator"
"""Who keeps the settings and the machine of the worker."""
ADMINISTRATOR = "Kafka administrator"
"""Who keeps the brokers, the topics and their access control."""


class Level(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        check: its name.
        message: one sentence, with what to do where something is to be done.
        who: who can act on it; empty where nothing is to be done.
        exit_code: what a worker would end with because of it; 0 where it would not.
    """

    check: str
    level: Level
    message: str
    who: str = ""
    exit_code: int = 0


def exit_code(findings: list[Finding]) -> int:
    """Return the exit code of the first error, at which a worker would end; 0 without errors."""
    return next((one.exit_code for one in findings if one.level is Level.ERROR), 0)
