"""*Pure.* Judges pairs, and the components that Spark brings together and sorts.

Near the threshold texts decide about a pair, else signatures. Inside a component this is the rule
of :mod:`streamdedup.dedup.resolve` for pairs that are known in advance. Documents with equal
sketches form a *group*; the similarity of two groups holds for all their documents. A document is a
duplicate if an earlier kept document of its group, or of a group with at least the threshold's
similarity, is in the window.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamdedup.columns import F64, I64
from streamdedup.dedup.clock import compared_ms
from streamdedup.dedup.resolve import Rule
from streamdedup.dedup.rule import is_better, is_in_reach, is_in_window, which_near
from streamdedup.kernels import kernel
from streamdedup.model import NO_TIMESTAMP
from streamdedup.sketch.texts import NOT_STORED, TextSimilarity
from streamdedup.spark.batches import PLACE, Batches, Task, floats, numbers, rows_of

ESTIMATED = "a long, b long, estimate double, is_near boolean"
"""The schema of estimated pairs; at estimates that are near the threshold the texts decide."""
COMPARED = "a long, b long, estimate double, jaccard double"
EDGE, MEMBER = range(2)
"""Kinds of rows: ``a`` and ``b`` are the places of the first documents of two groups; or ``a`` is
the place of a document, ``b`` that of the first one of its group."""
PARTS = (
    *("component", "kind", "a", "b", "estimate", "jaccard"),
    *("id", "event_time_ms", "effective_time_ms", "now_ms"),
)
"""The columns of members and edges."""
MATCH = (
    "struct<id: string, place: bigint, jaccard_estimate: double, jaccard: double, age_s: double>"
)
JUDGED = f"{PLACE} long, grp long, matches array<{MATCH}>"
"""The schema of verdicts; ``grp`` is the first document of the group. A kept document has no
matches."""
_ROWS_AT_ONCE = 1 << 17
NOT_COMPARED = -1.0
"""The similarity of texts that were not compared."""


def estimate(rule: Rule) -> Task:
    """Return the task that estimates pairs; those that are certainly below the threshold go.

    Its rows have the places ``a`` and ``b``, and the signatures ``one`` and ``two``.
    """
    width = rule.codec.num_bytes

    def task(batches: Batches) -> Batches:
        for batch in batches:
            ones, others = (rows_of(batch.column(name), width) for name in ("one", "two"))
            estimates = rule.codec.estimate_jaccard(ones, others)
            near = is_near(estimates, rule)
            columns = [*(batch.column(name) for name in ("a", "b")), pa.array(estimates)]
            table = pa.RecordBatch.from_arrays(
                [*columns, pa.array(near)], ["a", "b", "estimate", "is_near"]
            )
            yield table.filter(pa.array(near | (estimates >= rule.threshold)))

    return task


def is_near(estimates: F64, rule: Rule) -> NDArray[np.bool_]:
    """Return at which estimates the texts decide; at none if none are compared."""
    if rule.shingling is None:
        return np.zeros(len(estimates), dtype=np.bool_)
    return which_near(estimates, rule.threshold, rule.borderline)


def compare(rule: Rule) -> Task:
    """Return the task that compares texts; pairs below the threshold go.

    Its rows have places ``a`` and ``b``, ``estimate``, and the stored texts ``one`` and ``two``.
    A text that is not stored cannot be compared: the estimate decides.
    """

    def task(batches: Batches) -> Batches:
        if rule.shingling is None:
            raise ValueError("the rule compares no texts")
        texts = TextSimilarity(rule.shingling)
        for batch in batches:
            pairs = zip(*(batch.column(name).to_pylist() for name in ("one", "two")), strict=True)
            jaccards = [
                None if NOT_STORED in pair else texts.jaccard(pair[0], pair[1]) for pair in pairs
            ]
            columns = [batch.column(name) for name in ("a", "b", "estimate")]
            columns.append(pa.array(jaccards, pa.float64()))
            table = pa.RecordBatch.from_arrays(columns, ["a", "b", "estimate", "jaccard"])
            jaccard, estimated = floats(table, "jaccard"), floats(table, "estimate")
            decides = np.where(np.isnan(jaccard), estimated, jaccard)
            yield table.filter(pa.array(decides >= rule.threshold))

    return task


class Members(NamedTuple):
    """``n`` documents in order: columns ``(n,)``."""

    groups: I64  # the group of each
    compared_ms: I64  # the time by which each is compared
    effective_ms: I64  # the time from which its stay counts
    now_ms: I64  # the clock when each is judged
    of_copies: F64  # the similarity of two equal texts, where it decides; else NOT_COMPARED


class Neighbours(NamedTuple):
    """The groups that match each of ``g`` groups; those of a group are from its start on."""

    starts: I64  # (g + 1,)
    others: I64  # (e,)
    estimates: F64  # (e,)
    similarities: F64  # (e,), of the texts; NOT_COMPARED if the estimate decided


class Window(NamedTuple):
    """The window by time, or ``NO_LIMIT``; see :class:`streamdedup.dedup.resolve.Rule`."""

    window_ms: int
    reach_ms: int


class Found(NamedTuple):
    """The matches of ``n`` documents, best first; a document without any is kept."""

    counts: I64  # (n,)
    members: I64  # (n, most), the matches
    estimates: F64  # (n, most)
    similarities: F64  # (n, most)


def judge(
    members: Members, neighbours: Neighbours, window: Window, most: int, known: int = 0
) -> Found:
    """Judge documents; return at most ``most`` matches of each.

    The first ``known`` documents were judged before, and kept.
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


def judge_components(rule: Rule) -> Task:
    """Return the task that judges documents; its rows are sorted by component, kind, a and b.

    Components are judged many at a time. One that is larger than that is judged in parts; its edges
    and its kept documents stay in memory.
    """
    window = Window(rule.window_ms, rule.reach_ms)

    def task(batches: Batches) -> Batches:
        waiting: list[pa.RecordBatch] = []
        count, limit, known = 0, _ROWS_AT_ONCE, 0
        for batch in batches:
            waiting.append(batch)
            count += len(batch)
            if count < limit:
                continue
            rows = pa.concat_batches(waiting)
            components = numbers(rows, "component")
            end = int(np.argmax(components == components[-1]))
            if end:
                yield _judged(rows.slice(0, end), known, window, rule.max_matches)
                rows, known = rows.slice(end), 0
            elif numbers(rows, "kind")[-1] == MEMBER:
                verdicts = _judged(rows, known, window, rule.max_matches)
                yield verdicts
                rows, known = _edges_and_kept(rows, known, verdicts)
            # Else what stays would be joined again for each batch.
            waiting, count, limit = [rows], 0, max(_ROWS_AT_ONCE, len(rows))
        if sum(map(len, waiting)):
            yield _judged(pa.concat_batches(waiting), known, window, rule.max_matches)

    return task


def _edges_and_kept(
    rows: pa.RecordBatch, known: int, verdicts: pa.RecordBatch
) -> tuple[pa.RecordBatch, int]:
    """Return what the next documents of a component may match, and how many documents that is."""
    is_kept = verdicts.column("matches").is_null().to_numpy(zero_copy_only=False)
    stays = np.ones(len(rows), dtype=np.bool_)
    stays[len(rows) - len(verdicts) :] = is_kept
    return rows.filter(pa.array(stays)), known + int(is_kept.sum())


def _judged(rows: pa.RecordBatch, known: int, window: Window, most: int) -> pa.RecordBatch:
    """Judge documents; ``known`` of the first ones were judged before, and kept."""
    is_edge = numbers(rows, "kind") == EDGE
    edges, members = rows.filter(pa.array(is_edge)), rows.filter(pa.array(~is_edge))
    places, firsts = numbers(members, "a"), numbers(members, "b")
    # The first document of a group may come in a later part.
    ends = (numbers(edges, name) for name in ("a", "b"))
    group_places = np.unique(np.concatenate([firsts, *ends]))
    times_ms = numbers(members, "event_time_ms")
    effective_times_ms = numbers(members, "effective_time_ms")
    found = judge(
        Members(
            np.searchsorted(group_places, firsts),
            compared_ms(times_ms, effective_times_ms),
            effective_times_ms,
            numbers(members, "now_ms"),
            floats(members, "jaccard", NOT_COMPARED),
        ),
        _neighbours(edges, group_places),
        window,
        most,
        known,
    )
    columns = [pa.array(places), pa.array(firsts), _matches(found, members, places, times_ms)]
    return pa.RecordBatch.from_arrays(columns, [PLACE, "grp", "matches"]).slice(known)


def _neighbours(edges: pa.RecordBatch, group_places: I64) -> Neighbours:
    one, two = (np.searchsorted(group_places, numbers(edges, name)) for name in ("a", "b"))
    owners, others = np.concatenate([one, two]), np.concatenate([two, one])
    order = np.argsort(owners, kind="stable")
    starts = np.zeros(len(group_places) + 1, dtype=np.int64)
    np.cumsum(np.bincount(owners, minlength=len(group_places)), out=starts[1:])
    estimates, jaccards = floats(edges, "estimate"), floats(edges, "jaccard", NOT_COMPARED)
    return Neighbours(
        starts,
        others[order],
        np.concatenate([estimates, estimates])[order],
        np.concatenate([jaccards, jaccards])[order],
    )


def _matches(found: Found, members: pa.RecordBatch, places: I64, times_ms: I64) -> pa.Array:
    """Return the matches of each document; null for a kept one."""
    given = np.arange(found.members.shape[1]) < found.counts[:, None]
    matched = found.members[given]
    mine_ms, theirs_ms = np.repeat(times_ms, found.counts), times_ms[matched]
    is_aged = (mine_ms != NO_TIMESTAMP) & (theirs_ms != NO_TIMESTAMP)
    jaccards = found.similarities[given]
    structs = pa.StructArray.from_arrays(
        [
            members.column("id").take(pa.array(matched)),
            pa.array(places[matched]),
            pa.array(found.estimates[given]),
            pa.array(jaccards, mask=jaccards < 0),
            pa.array((mine_ms - theirs_ms) / 1000, mask=~is_aged),
        ],
        ["id", "place", "jaccard_estimate", "jaccard", "age_s"],
    )
    ends = np.concatenate([[0], np.cumsum(found.counts)]).astype(np.int32)
    # A list begins where the one before it ended; null offsets mark the lists that are null.
    offsets = pa.array(ends, mask=np.append(found.counts == 0, [False]))
    return pa.ListArray.from_arrays(offsets, structs)
