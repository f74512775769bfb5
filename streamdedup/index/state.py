"""*Pure.* The state of an index at a changelog offset: everything apart from the documents."""

from __future__ import annotations

from collections.abc import Mapping

from streamdedup.batches import IndexUpdate
from streamdedup.dedup.clock import Clock
from streamdedup.index.entries import Checkpoint
from streamdedup.index.sources import Sources


class State:
    """What updates change besides documents and erasures, from a checkpoint on.

    Args:
        checkpoint: the state to start from.

    Attributes:
        applied: changelog offset up to which entries are applied, exclusive.
        next_number: number of the next kept document.
        clock: the clock of the stream.
        sources: the source partitions.
        notes: what the transport asked to remember, the latest note last.
        has_all_texts: whether every document came with its text.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.applied = checkpoint.applied
        self.next_number = checkpoint.next_number
        self.clock = Clock.from_state(checkpoint.clock)
        self.sources = Sources(checkpoint.sources, checkpoint.written)
        self.notes = dict(checkpoint.notes)
        self.has_all_texts = checkpoint.has_all_texts

    def advance(self, update: IndexUpdate, *, texts: bool) -> None:
        """Advance past an update, up to its :meth:`confirm`.

        Args:
            update: the update; the sources of its documents are known.
            texts: whether the texts of its documents are stored.
        """
        self.sources.judge(update.ranges, is_ahead=update.is_ahead)
        if len(update.documents):
            self.has_all_texts = self.has_all_texts and texts
        if update.clock:
            self.clock = Clock.from_state(update.clock)
        self.next_number = update.first_number + len(update.documents)

    def confirm(self, applied: int, notes: Mapping[str, bytes]) -> None:
        """Note that the updates so far are in the changelog.

        Args:
            applied: changelog offset that they lead to.
            notes: added to the notes; an empty note removes the one before it.
        """
        for key, note in notes.items():
            self.notes.pop(key, None)
            if note:
                self.notes[key] = note
        self.applied = applied

    def checkpoint(self) -> Checkpoint:
        """Return the state as the manifest stores it."""
        return Checkpoint(
            applied=self.applied,
            next_number=self.next_number,
            clock=self.clock.state(),
            sources=self.sources.entries(),
            written=self.sources.written(),
            notes=dict(self.notes),
            has_all_texts=self.has_all_texts,
        )
