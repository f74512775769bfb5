"""*Pure.* Verdicts inside a component: the documents in order, against those that were kept.

This is the rule of :mod:`streamdedup.dedup.resolve` for pairs that are known in advance. Documents
with equal sketches form a *group*; the similarity of two groups holds for all their documents. A
document is a duplicate if an earlier kept document of its group, or of a group with at least the
threshold's similarity, is in the window.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamdedup.columns import F64, I64
from streamdedup.dedup.rule import is_better, is_in_reach, is_in_window
from streamdedup.kernels import kernel

NOT_COMPARED = -1.0
"""The similarity of texts that were not compared."""


class Members(NamedTuple):
    """``n`` documents in order.

    Attributes:
        groups: ``(n,)`` int64, the group of each.
        compared_ms: ``(n,)`` int64, the time by which each is compared.
        effective_ms: ``(n,)`` int64, the time from which its stay counts.
        now_ms: ``(n,)`` int64, the clock when each is judged.
        of_copies: ``(n,)`` float64, the similarity of the texts of two equal documents, where it
            decides; else ``NOT_COMPARED``.
    """

    groups: I64
    compared_ms: I64
    effective_ms: I64
    now_ms: I64
    of_copies: F64


class Neighbours(NamedTuple):
    """The groups that match each of ``g`` groups.

    Attributes:
        starts: ``(g + 1,)`` int64; those of a group are from ``starts[group]`` on.
        others: ``(e,)`` int64.
        estimates: ``(e,)`` float64.
        similarities: ``(e,)`` float64: of the texts, ``NOT_COMPARED`` if the estimate decided.
    """

    starts: I64
    others: I64
    estimates: F64
    similarities: F64


class Window(NamedTuple):
    """The window by time, or ``NO_LIMIT``; see :class:`streamdedup.dedup.resolve.Rule`."""

    window_ms: int
    reach_ms: int


class Found(NamedTuple):
    """The matches of ``n`` documents, best first; a document without any is kept.

    Attributes:
        counts: ``(n,)`` int64.
        members: ``(n, most)`` int64: the matches.
        estimates: ``(n, most)`` float64.
        similarities: ``(n, most)`` float64.
    """

    counts: I64
    members: I64
    estimates: F64
    similarities: F64


def judge(
    members: Members, neighbours: Neighbours, window: Window, most: int, known: int = 0
) -> Found:
    """Judge documents.

    Args:
        members: the documents in order.
        neighbours: the groups that match.
        window: the window by time.
        most: most matches that are returned.
        known: so many of the first documents were judged before, and kept.
    """
    count = len(members.groups)
    found = Found(
        np.zeros(count, dtype=np.int64),
        np.full((count, most), -1, dtype=np.int64),
        np.zeros((count, most), dtype=np.float64),
        np.full((count, most), NOT_COMPARED, dtype=np.float64),
    )
    newest = np.full(len(neighbours.starts) - 1, -1, dtype=np.int64)
    older = np.full(count, -1, dtype=np.int64)
    _judge(members, neighbours, window, most, known, newest, older, found)
    return found


@kernel(inline="always")
def _holds(row: int, other: int, members: Members, window: Window) -> bool:
    """Return whether a kept document is in the window of a later one."""
    return is_in_window(
        members.compared_ms[row], members.compared_ms[other], window.window_ms
    ) and is_in_reach(members.effective_ms[other], members.now_ms[row], window.reach_ms)


@kernel(inline="always")
def _insert(
    row: int, other: int, estimate: float, similarity: float, most: int, found: Found
) -> None:
    """Put a match in its place: by similarity, ties to the earliest."""
    decides = estimate if similarity < 0 else similarity
    place = min(found.counts[row], most)
    while place > 0:
        before = place - 1
        their_estimate, theirs = found.estimates[row, before], found.similarities[row, before]
        decided = their_estimate if theirs < 0 else theirs
        if not is_better(decides, other, decided, found.members[row, before]):
            break
        if place < most:
            found.members[row, place] = found.members[row, before]
            found.estimates[row, place] = their_estimate
            found.similarities[row, place] = theirs
        place = before
    if place < most:
        found.members[row, place] = other
        found.estimates[row, place] = estimate
        found.similarities[row, place] = similarity
    found.counts[row] += 1


@kernel
def _judge(
    members: Members,
    neighbours: Neighbours,
    window: Window,
    most: int,
    known: int,
    newest: I64,
    older: I64,
    found: Found,
) -> None:
    """Judge all documents; ``newest`` and ``older`` link the kept ones of each group."""
    for row in range(len(members.groups)):
        group = members.groups[row]
        if row < known:
            older[row] = newest[group]
            newest[group] = row
            continue
        other = newest[group]
        while other >= 0:
            if _holds(row, other, members, window):
                _insert(row, other, 1.0, members.of_copies[row], most, found)
            other = older[other]
        for edge in range(neighbours.starts[group], neighbours.starts[group + 1]):
            other = newest[neighbours.others[edge]]
            while other >= 0:
                if _holds(row, other, members, window):
                    estimate, similarity = neighbours.estimates[edge], neighbours.similarities[edge]
                    _insert(row, other, estimate, similarity, most, found)
                other = older[other]
        if found.counts[row] == 0:
            older[row] = newest[group]
            newest[group] = row
        elif found.counts[row] > most:
            found.counts[row] = most
