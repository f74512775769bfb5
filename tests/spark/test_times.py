"""The clock of the stream in parts: whatever the cuts, it is one clock over the whole stream."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.columns import I64
from streamdedup.dedup.clock import RECENT, UNLIMITED, Allowances, Clock, effective_ms
from streamdedup.model import NO_TIMESTAMP
from streamdedup.spark.batches import Batches
from streamdedup.spark.parts import chain, summarise, tell
from tests.support.builders import examples

NOON = 1_700_000_000_000
TIMES = st.one_of(
    st.integers(NOON - 9000, NOON + 9000),
    st.integers(NOON - 9000, NOON + 9000),
    st.sampled_from([NO_TIMESTAMP, NO_TIMESTAMP, -5, 0, 2**61, -(2**61)]),
)
BOTH = Allowances(3000, 1000)


def batches(times: Sequence[int], parts: Sequence[int], seed: int) -> Batches:
    """Return documents in order, with their parts, as record batches of any size."""
    chance = random.Random(seed)
    begin = 0
    while begin < len(times):
        end = begin + chance.choice((0, 1, 3, 17, 100))
        columns = {
            "part": pa.array(parts[begin:end], pa.int64()),
            "_place": pa.array(range(begin, min(end, len(times))), pa.int64()),
            "event_time_ms": pa.array(times[begin:end], pa.int64()),
        }
        yield pa.RecordBatch.from_pydict(columns)
        begin = end


def in_tasks(times: Sequence[int], parts: Sequence[int], seed: int) -> Iterator[Batches]:
    """Return the same for several tasks, each with some of the parts, in order."""
    chance = random.Random(seed)
    owners = {part: chance.randrange(3) for part in parts}
    for owner in range(3):
        mine = [number for number, part in enumerate(parts) if owners[part] == owner]
        yield (
            batch.set_column(
                1, "_place", pa.array([mine[n] for n in batch["_place"].to_pylist()], pa.int64())
            )
            for batch in batches([times[n] for n in mine], [parts[n] for n in mine], seed)
        )


def expected(times: Sequence[int], allowances: Allowances) -> tuple[I64, I64, bytes]:
    """Return clock and effective time of each document, and the state of the clock after all."""
    clock = Clock()
    times_ms = np.array(times, dtype=np.int64)
    now_ms = clock.advance(times_ms)
    return now_ms, effective_ms(times_ms, now_ms, allowances), clock.state()


def check(
    times: Sequence[int], parts: Sequence[int], seed: int, allowances: Allowances = BOTH
) -> None:
    """Compare the clock in parts with the clock over the whole stream."""
    summaries = [
        tuple(row.values())
        for task in in_tasks(times, parts, seed)
        for batch in summarise(task)
        for row in batch.to_pylist()
    ]
    states = chain(sorted(summaries))
    told = {
        row["_place"]: (row["now_ms"], row["effective_time_ms"])
        for task in in_tasks(times, parts, seed + 1)
        for batch in tell(states, allowances)(task)
        for row in batch.to_pylist()
    }
    now_ms, effective_times_ms, state = expected(times, allowances)
    pairs = zip(now_ms.tolist(), effective_times_ms.tolist(), strict=True)
    assert told == dict(enumerate(pairs))
    assert states[-1] == state


@given(
    times=st.lists(TIMES, max_size=120),
    cuts=st.lists(st.integers(0, 120), max_size=8),
    seed=st.integers(0, 99),
    allowances=st.sampled_from([BOTH, UNLIMITED]),
)
@examples(400)
def test_any_cut(times: list[int], cuts: list[int], seed: int, allowances: Allowances) -> None:
    """Parts and batches of any size, with times that are wrong or unknown."""
    parts = [sum(cut <= number for cut in cuts) for number in range(len(times))]
    check(times, parts, seed, allowances)


@given(known=st.integers(0, 40), part=st.integers(1, 20), seed=st.integers(0, 99))
@examples(200)
def test_few_times(known: int, part: int, seed: int) -> None:
    """The clock starts with the 16th time, whichever part that is in."""
    times = [NOON + 1000 * number for number in range(known)] + [NO_TIMESTAMP] * 30
    random.Random(seed).shuffle(times)
    check(times, [number // part for number in range(len(times))], seed)


def test_parts_without_times() -> None:
    """A part without any time leaves the clock as it is, first, last and in between."""
    unknown, known = [NO_TIMESTAMP] * 20, [NOON + number for number in range(20)]
    times = unknown + known + unknown + unknown + known + unknown
    check(times, [number // 20 for number in range(len(times))], seed=3)


def test_a_part_where_the_clock_would_go_back() -> None:
    """The clock shows the largest value so far, also if later parts are of earlier times."""
    times = [NOON + 10_000 - number for number in range(200)]
    check(times, [number // 40 for number in range(200)], seed=4)
    states = chain(
        tuple(row.values())
        for batch in summarise(batches(times, [0] * 200, 1))
        for row in batch.to_pylist()
    )
    assert Clock.from_state(states[-1]).now_ms == times[RECENT - 3]


def test_no_documents() -> None:
    """Without documents the clock is a new one."""
    assert list(summarise(iter([]))) == []
    assert chain([]) == {-1: Clock().state()}
    assert list(tell({}, BOTH)(iter([]))) == []
