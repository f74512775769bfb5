"""*Pure.* Limits on dead letters, which stop a worker before it drains its source topic.

A wrong setting, or a wrong clock, makes a dead letter of every record. The tally is committed with
the offsets of the same transaction. So it counts each record once, and restarts do not reset it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamdedup.columns import Positions
from streamdedup.errors import TooManyDeadLetters
from streamdedup.model import Rejection
from streamdedup.settings.sections import LimitSettings

WINDOW = 1000
"""How many of the latest records ``limits.dead_letter_ratio`` applies to."""
_WINDOW_BITS = (1 << WINDOW) - 1
_EXAMPLES = 3
_TOMBSTONE = "NullValue"
_NOTE = "dead-letters-1"
"""First word of a note; the number is the version of its format."""
_WORDS = 4
"""Words of a note; others may follow."""


@dataclass(frozen=True, slots=True)
class OutcomeTally:
    """The latest outcomes.

    Attributes:
        judged: all records judged so far.
        run: dead letters since the last other outcome.
        window: the latest ``WINDOW`` outcomes, the last one in the lowest bit; 1 is a dead letter.
    """

    judged: int = 0
    run: int = 0
    window: int = 0

    def note(self) -> str:
        """Return the tally as the metadata of committed offsets."""
        return f"{_NOTE} {self.judged} {self.run} {self.window:x}"

    def accepted(self, count: int) -> OutcomeTally:
        """Return the tally after so many more records that are not dead letters."""
        if count == 0:
            return self
        return OutcomeTally(self.judged + count, 0, self.window << count & _WINDOW_BITS)


def is_by_worker(text: str) -> bool:
    """Return whether metadata is that of a worker, not of an edge or another program."""
    words = text.split(" ")
    return words[0] == _NOTE and len(words) == _WORDS


def latest_tally(notes: Iterable[str]) -> OutcomeTally:
    """Return the latest tally in the metadata that was committed with a group's offsets.

    A partition has the tally of the last transaction with records of it. Texts of other programs
    are ignored.
    """
    return max(map(_read, notes), key=lambda tally: tally.judged, default=OutcomeTally())


def _read(note: str) -> OutcomeTally:
    try:
        kind, judged, run, window = note.split(" ")[:_WORDS]
        if kind == _NOTE:
            return OutcomeTally(int(judged), int(run), int(window, 16))
    except ValueError:
        pass
    return OutcomeTally()


@dataclass(frozen=True, slots=True)
class DeadLetterLimit:
    """How many dead letters are too many; 0 for no limit.

    ``run`` is a number in a row, ``ratio`` a share of the latest ``WINDOW`` records.
    """

    run: int
    ratio: float

    @classmethod
    def from_settings(cls, limits: LimitSettings) -> DeadLetterLimit:
        """Return the limit that the settings ask for."""
        return cls(limits.dead_letter_run, limits.dead_letter_ratio)

    def after(
        self, tally: OutcomeTally, positions: Positions, rejections: Mapping[int, Rejection]
    ) -> OutcomeTally:
        """Return the tally after a batch: its positions in order, and its rejections by row.

        Tombstones do not count: a compacted source topic may hold any number of them.

        Raises:
            TooManyDeadLetters: a limit is reached within the batch.
        """
        before = 0
        for row in sorted(rejections):
            tally, before = tally.accepted(row - before), row + 1
            if rejections[row].reason == _TOMBSTONE:
                continue
            window = (tally.window << 1 | 1) & _WINDOW_BITS
            tally = OutcomeTally(tally.judged + 1, tally.run + 1, window)
            if reached := self._reached(tally):
                raise TooManyDeadLetters(f"{reached}; {_explained(positions, rejections)}")
        return tally.accepted(len(positions) - before)

    def _reached(self, tally: OutcomeTally) -> str:
        """Return the limit that is reached, in words; empty if none is."""
        run, dead = tally.run, tally.window.bit_count()
        if self.run and run >= self.run:
            return f"{run} records in a row became dead letters (limits.dead_letter_run {self.run})"
        if self.ratio and tally.judged >= WINDOW and dead / WINDOW >= self.ratio:
            return (
                f"{dead} of the last {WINDOW} records became dead letters "
                f"(limits.dead_letter_ratio {self.ratio:g})"
            )
        return ""


def _explained(positions: Positions, rejections: Mapping[int, Rejection]) -> str:
    """Return the reasons in a batch, the first examples, and what to do, on one line."""
    dead = [(positions[row], why) for row, why in sorted(rejections.items())]
    counts = Counter(rejection.reason for _, rejection in dead).most_common()
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts)
    first = ", ".join(
        # Without the message, which may quote the value.
        f"{position.topic}:{position.partition}:{position.offset} {rejection.reason}"
        for position, rejection in dead[:_EXAMPLES]
    )
    remedy = "fix the settings records.* and limits.*, or the producer"
    if counts[0][0] in {"TimestampInFuture", "TimestampInPast"}:
        remedy = (
            "compare the clock of this machine with those of the brokers and producers, and check "
            "the clean topic's message.timestamp limits"
        )
    return (
        f"in the last batch of {len(positions)}: {reasons}; first: {first}; this batch is not "
        f"committed; {remedy}, or accept the dead letters: raise the limit, or set it to 0"
    )
