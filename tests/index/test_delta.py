"""Documents in memory, against lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.columns import I64, U64
from streamdedup.index.delta import Delta
from tests.index.examples import (
    SEEDS,
    SIZES,
    VARIETIES,
    WIDTH,
    expected_bucket,
    rows_of,
    some_keys,
)
from tests.support.builders import examples


def ids(delta: Delta, indices: I64) -> list[str]:
    """Return the ids of some documents."""
    return list(delta.rows(indices).ids)


@given(
    seed=SEEDS,
    batches=st.lists(st.sampled_from([0, 1, 7, 40]), max_size=5),
    variety=VARIETIES,
    size=SIZES,
    again=st.booleans(),
)
@examples(60)
def test_against_lists(seed: int, batches: list[int], variety: int, size: int, again: bool) -> None:
    """Its buckets hold the newest documents of each key, its rows what was added."""
    delta = Delta(200, 3, WIDTH)
    if again:
        fill_delta(delta, 0, some_keys(seed, 50, variety, 3))
        delta.clear()
    keys = some_keys(seed, sum(batches), variety, 3)
    end = 0
    for count in batches:
        fill_delta(delta, 500 + end, keys[end : end + count])
        end += count
    asked = np.concatenate([keys[:20], some_keys(seed + 1, 10, variety, 3)])
    left = np.full(asked.shape, size)
    hits = np.empty((asked.size * min(size, end + 1), 3), dtype=np.int64)
    filled = delta.find(asked, left, hits, 0)
    assert sorted(hits[:filled].tolist()) == sorted(
        [row, column, number]
        for row in range(len(asked))
        for column in range(3)
        for number in expected_bucket(keys[:, column], int(asked[row, column]), size, 500)
    )
    assert left.sum() == left.size * size - filled
    assert ids(delta, np.arange(end)) == [f"id-é{500 + row}" for row in range(end)]


def test_larger_than_its_capacity() -> None:
    """An update may be larger than a delta; then nothing else fits into the delta."""
    delta = Delta(16, 1, WIDTH)
    keys = some_keys(1, 1000, 200)
    assert delta.has_room(1000)
    fill_delta(delta, 0, keys)
    assert not delta.has_room(1)
    assert ids(delta, np.array([999])) == ["id-é999"]


def fill_delta(delta: Delta, first: int, keys: U64) -> None:
    """Add documents of some keys."""
    numbers = range(first, first + len(keys))
    documents = [([0] * 5, f"id-é{number}", b"text", bytes(WIDTH)) for number in numbers]
    if documents:
        delta.add(first, keys, rows_of(documents))
