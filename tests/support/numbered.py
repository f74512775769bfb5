"""*Blocking.* Numbered documents, of which every tenth is a duplicate, and their outcomes."""

from __future__ import annotations

import hashlib

from tests.support.stage import Stage


def documents(start: int, stop: int) -> list[dict[str, str]]:
    """Return unrelated documents, of which every tenth repeats the one before it.

    Args:
        start: number of the first document.
        stop: number after the last one.
    """
    return [
        {"id": str(number), "text": _text(number - 1 if number % 10 == 9 else number)}
        for number in range(start, stop)
    ]


def _text(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def assert_all_judged_once(stage: Stage, total: int, partition: int = 0) -> None:
    """Check the outcome of every record of a partition that holds ``documents(0, total)``."""
    judged = {
        offset: role for (number, offset), role in stage.outcomes().items() if number == partition
    }
    assert judged == {
        offset: "duplicates" if offset % 10 == 9 else "clean" for offset in range(total)
    }
