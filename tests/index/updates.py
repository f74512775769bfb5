"""Updates of documents with chosen keys, and the hits that they cause."""

from __future__ import annotations

from collections import defaultdict

from streamdedup.batches import Candidates
from streamdedup.index.store import Index
from tests.support.builders import (
    COLUMNS,
    columns,
    update_of,
)

WIDTH = COLUMNS


def key(number: int) -> int:
    """Return a band key that differs from the others in the bits that the index stores."""
    return number << 40


def hits(found: Candidates) -> dict[tuple[int, int], list[int]]:
    """Return the numbers found under each row and column."""
    grouped: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, column, number in zip(
        found.hit_rows.tolist(), found.hit_columns.tolist(), found.hit_numbers.tolist(), strict=True
    ):
        grouped[row, column].append(number)
    return grouped


def fill(index: Index, batches: list[list[int]]) -> None:
    """Apply one update for each batch; each number in it is a document's key in all columns."""
    for batch in batches:
        first = index.next_number
        documents = columns([[key(number)] * WIDTH for number in batch], first)
        index.apply(update_of(documents, first), index.applied + 1)
