"""Archives for the tests of Spark, and what one process says about them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from streamdedup import Deduplicator, Settings, Verdict

START_MS = 1_700_000_000_000
SECOND_MS = 1000

Row = dict[str, Any]


def made_up(count: int, seed: int) -> list[Row]:
    """Return documents of a stream: unique ones, copies, near-copies, and ones without text.

    ``number`` is the place in the order. Times ascend, but for a few seconds, and some are unknown.
    Texts of the popular kind are repeated all over the archive.
    """
    chance = random.Random(seed)
    words = [f"{chance.choice('bdfgklmnprst')}{chance.choice('aeiou')}{n}" for n in range(4000)]
    popular = [" ".join(chance.choices(words, k=25)) for _ in range(3)]
    rows: list[Row] = []
    for number in range(count):
        kind = chance.random()
        if rows and kind < 0.35:
            text = _changed(chance.choice(rows)["text"], chance, words)
        elif kind < 0.45:
            text = _changed(chance.choice(popular), chance, words)
        elif kind < 0.47:
            text = "  \n "
        else:
            text = " ".join(chance.choices(words, k=chance.randint(1, 60)))
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


def _changed(text: str, chance: random.Random, words: Sequence[str]) -> str:
    parts = text.split()
    if not parts or chance.random() < 0.5:
        return text
    for _ in range(chance.randint(1, 4)):
        parts[chance.randrange(len(parts))] = chance.choice(words)
    return " ".join(parts)


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
