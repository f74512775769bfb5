"""*Pure.* Judges components, which Spark brings together and sorts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streamdedup.columns import I64
from streamdedup.dedup.clock import compared_ms
from streamdedup.dedup.resolve import Rule
from streamdedup.model import NO_TIMESTAMP
from streamdedup.spark.batches import Batches, Task, floats, numbers
from streamdedup.spark.judging import Found, Members, Neighbours, Window, judge
from streamdedup.spark.sketching import PLACE

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
            floats(members, "jaccard", -1.0),
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
    estimates, jaccards = floats(edges, "estimate"), floats(edges, "jaccard", -1.0)
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
