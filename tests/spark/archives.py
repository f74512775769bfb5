"""Archives for the tests of Spark, and what one process says about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamdedup import Deduplicator, Settings, Verdict
from tests.testkit.texts import Writer

START_MS = 1_700_000_000_000
SECOND_MS = 1000

Row = dict[str, Any]


def made_up(count: int, seed: int) -> list[Row]:
    """Return documents of a stream: unique ones, copies, near-copies, and ones without text.

    ``number`` is the place in the order. Times ascend, but for a few seconds, and some are unknown.
    Texts of the popular kind are repeated all over the archive.
    """
    writer = Writer(seed, words=4000)
    chance = writer.chance
    popular = [writer.text(25) for _ in range(3)]
    rows: list[Row] = []
    for number in range(count):
        kind = chance.random()
        changes = chance.choice((0, 0, 0, 0, 1, 2, 3, 4))
        if rows and kind < 0.35:
            text = writer.edited(chance.choice(rows)["text"], changes)
        elif kind < 0.45:
            text = writer.edited(chance.choice(popular), changes)
        elif kind < 0.47:
            text = "  \n "
        else:
            text = writer.text(1, 60)
        time_ms = START_MS + number * SECOND_MS + chance.randint(-20, 20) * SECOND_MS
        rows.append(
            {
                "id": f"document-{number}",
                "text": text,
                "time": None if chance.random() < 0.02 else time_ms,
                "number": number,
                "forum": chance.choice(("north", "south")),
            }
        )
    return rows


def judged(rows: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Return the verdicts of one process on documents in their order."""
    verdicts: list[Verdict] = []
    with Deduplicator(settings) as deduplicator:
        for begin in range(0, len(rows), 1000):
            verdicts += deduplicator.process(rows[begin : begin + 1000])
    return verdicts


def described(verdict: Verdict) -> tuple[Any, ...]:
    """Return what a table of Spark tells of a verdict, without names of columns."""
    matches = [
        (match.id, match.position.offset, match.jaccard_estimate, match.jaccard, match.age_s)
        for match in verdict.matches
    ]
    rejection = verdict.rejection
    why = (rejection.stage, rejection.reason, rejection.message) if rejection else None
    return verdict.position.offset, verdict.outcome.value, matches, why


def described_row(row: Any) -> tuple[Any, ...]:
    """Return the same of a row of Spark."""
    matches = [tuple(match) for match in row["matches"] or ()]
    why = tuple(row["rejection"]) if row["rejection"] else None
    return row["place"], row["outcome"], matches, why
