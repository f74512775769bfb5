"""Pairs: each record gets its verdict once, in order, however both arrive."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.batches import KEPT, REJECTED
from streamdedup.columns import RecordColumns
from streamdedup.formats import verdicts
from streamdedup.formats.verdicts import JudgedRange, VerdictRow
from streamdedup.kafka.pairs import VerdictPairs
from streamdedup.model import Position, Record, SourceRange
from tests.support.builders import TOPIC, examples

PARTITION = 3


def records_at(offsets: list[int]) -> RecordColumns:
    """Return records at some offsets."""
    return RecordColumns.of(
        [Record(Position(TOPIC, PARTITION, offset), b"%d" % offset) for offset in offsets]
    )


def judged(start: int, stop: int) -> JudgedRange:
    """Return verdicts on a range: every offset that 3 divides is rejected."""
    row = VerdictRow(
        verdicts.VERSION,
        SourceRange(TOPIC, PARTITION, start, stop),
        rejections={
            offset: ("decode", str(offset), "") for offset in range(start, stop) if offset % 3 == 0
        },
    )
    return verdicts.decode(msgspec.msgpack.encode(row))


def cuts(ends: set[int], first: int, last: int) -> list[tuple[int, int]]:
    """Return the ranges between some ends."""
    bounds = [first, *sorted(end for end in ends if first < end < last), last]
    return list(pairwise(bounds))


@given(
    gaps=st.sets(st.integers(0, 50)),
    read=st.sets(st.integers(0, 50)),
    decided=st.sets(st.integers(0, 50)),
    begin=st.integers(0, 20),
    most=st.integers(1, 30),
    turns=st.lists(st.booleans(), max_size=60),
)
@examples(500)
def test_every_record_gets_its_verdict(
    gaps: set[int],
    read: set[int],
    decided: set[int],
    begin: int,
    most: int,
    turns: list[bool],
) -> None:
    """Whatever the order in which records and verdicts arrive, and wherever they are cut."""
    pairs = VerdictPairs(begin, 100)
    batches, ranges = cuts(read, begin, 51), list(enumerate(cuts(decided, 0, 51), 100))
    taken: list[int] = []
    next_offset = begin

    def take() -> None:
        nonlocal next_offset
        while pairs.is_ready:
            paired = pairs.take(most)
            offsets = paired.records.positions.offsets.tolist()
            for offset, outcome in zip(offsets, paired.verdicts.outcomes.tolist(), strict=True):
                assert next_offset <= offset < paired.next_offset
                assert outcome == (REJECTED if offset % 3 == 0 else KEPT)
                assert offset % 3 or paired.verdicts[offsets.index(offset)].rejection
            taken.extend(offsets)
            next_offset = paired.next_offset
            # A lane that begins again there has the verdicts that it needs.
            _, (start, _) = next(
                (
                    place
                    for place in enumerate(cuts(decided, 0, 51), 100)
                    if place[0] == paired.verdict_offset
                ),
                (0, (51, 51)),
            )
            assert start <= next_offset

    for is_records in [*turns, *[True] * len(batches), *[False] * len(ranges)]:
        if is_records and batches:
            start, stop = batches.pop(0)
            offsets = [offset for offset in range(start, stop) if offset not in gaps]
            if offsets:
                pairs.add_records(records_at(offsets))
            pairs.reach(stop)
        elif not is_records and ranges:
            place, (start, stop) = ranges.pop(0)
            pairs.add_verdicts(place, judged(start, stop))
        take()
    assert taken == [offset for offset in range(begin, 51) if offset not in gaps]
    assert next_offset == 51
    assert not pairs.is_ready
    assert (len(pairs), pairs.size) == (0, 0)
