"""Postings of one column, against lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.columns import I64, U8, U64
from streamdedup.index.memory import address
from streamdedup.index.postings import (
    COUNT,
    KEYS,
    NUMBERS,
    SUBS,
    addresses_of,
    find,
    merge_column,
    pack,
    sort_column,
    unpack_column,
)
from tests.index.examples import SEEDS, SIZES, VARIETIES, expected_bucket, some_keys
from tests.support.builders import examples


def newest(keys: U64, size: int, first: int = 0) -> list[tuple[int, int]]:
    """Return the sorted postings of one column: for each key its newest numbers."""
    filed: dict[int, list[int]] = {}
    for number, key in enumerate(keys.tolist(), first):
        filed.setdefault(key >> 24, []).append(number)
    return [(key, number) for key in sorted(filed) for number in filed[key][-size:]]


def split(postings: U64) -> list[tuple[int, int]]:
    """Return postings as key and number."""
    return [(each >> 24, each & 0xFFFFFF) for each in postings.tolist()]


def sorted_column(keys: U64, size: int) -> tuple[U64, I64]:
    """Return the sorted postings of the only column, and where its subs begin."""
    count = len(keys)
    out, work = np.empty(count, dtype=np.uint64), np.empty(count, dtype=np.uint64)
    starts = np.empty(SUBS + 1, dtype=np.int64)
    found = sort_column(keys, 0, count, size, work, out, starts)
    return out[:found], starts


def packed(postings: U64, starts: I64) -> tuple[U8, I64]:
    """Pack a column into one value, and return it with the addresses of its subs."""
    value = np.zeros(7 * len(postings) + 8, dtype=np.uint8)
    pack(postings, value)
    subs = np.empty((SUBS, 3), dtype=np.int64)
    subs[:, KEYS] = address(value) + 4 * starts[:-1]
    subs[:, NUMBERS] = address(value) + 4 * len(postings) + 3 * starts[:-1]
    subs[:, COUNT] = np.diff(starts)
    return value, subs


COUNTS = st.sampled_from([0, 1, 2, 50, 3000])


@given(seed=SEEDS, count=COUNTS, variety=VARIETIES, size=SIZES)
@examples(60)
def test_sort_and_pack(seed: int, count: int, variety: int, size: int) -> None:
    """Postings are sorted, each key keeps its newest, and packing loses nothing."""
    keys = some_keys(seed, count, variety)
    postings, starts = sorted_column(keys, size)
    assert split(postings) == newest(keys[:, 0], size)
    bounds = np.searchsorted(postings >> np.uint64(56), np.arange(SUBS + 1, dtype=np.uint64))
    assert starts.tolist() == bounds.tolist()
    _value, subs = packed(postings, starts)
    out = np.empty(count, dtype=np.uint64)
    assert unpack_column(subs, out) == len(postings)
    np.testing.assert_array_equal(out[: len(postings)], postings)


@given(seed=SEEDS, counts=st.lists(COUNTS, min_size=1, max_size=4), size=SIZES)
@examples(40)
def test_merge(seed: int, counts: list[int], size: int) -> None:
    """A merge equals one segment of all documents."""
    keys = some_keys(seed, sum(counts), 20)
    ends = np.cumsum(counts, dtype=np.int64)
    parts = [
        packed(*sorted_column(keys[end - count : end], size))
        for end, count in zip(ends, counts, strict=True)
    ]
    subs = np.stack([subs for _, subs in parts])
    work, out = np.empty((2, len(keys)), dtype=np.uint64)
    starts = np.empty(SUBS + 1, dtype=np.int64)
    found = merge_column(subs, ends - counts, size, work, out, starts)
    expected, expected_starts = sorted_column(keys, size)
    np.testing.assert_array_equal(out[:found], expected)
    np.testing.assert_array_equal(starts, expected_starts)


@given(seed=SEEDS, counts=st.lists(COUNTS, min_size=1, max_size=3), size=SIZES)
@examples(40)
def test_find(seed: int, counts: list[int], size: int) -> None:
    """Look-ups find the newest documents of each key across segments, and no others."""
    keys = some_keys(seed, sum(counts), 20)
    ends = np.cumsum(counts, dtype=np.int64)
    parts = [
        packed(*sorted_column(keys[end - count : end], size))
        for end, count in zip(ends, counts, strict=True)
    ]
    asked = np.concatenate([keys[:40], some_keys(seed + 1, 20, 20)])
    hits = np.empty((len(asked) * min(size, len(keys) + 1), 3), dtype=np.int64)
    filled = find(
        asked,
        np.full(asked.shape, 2, dtype=np.uint64),
        np.stack([np.ones_like(ends), 1000 + ends - counts, counts], axis=1)[::-1].copy(),
        np.stack([subs for _, subs in reversed(parts)]),
        np.full(asked.shape, size),
        hits,
        0,
        np.zeros(3, dtype=np.int64),
    )
    assert hits[:filled].tolist() == [
        [row, 0, number]
        for row, key in enumerate(asked[:, 0].tolist())
        for number in expected_bucket(keys[:, 0], key, size, 1000)
    ]


def test_find_counts_what_is_damaged() -> None:
    """A posting beyond its segment is counted, and not a hit."""
    keys = np.full((4, 1), 7, dtype=np.uint64) << np.uint64(24)
    _value, subs = packed(*sorted_column(keys, 4))
    hits, looks = np.empty((4, 3), dtype=np.int64), np.zeros(3, dtype=np.int64)
    table = np.array([[0, 100, 2]])
    masks = np.ones((1, 1), dtype=np.uint64)
    room = np.full((1, 1), 4)
    filled = find(keys[:1], masks, table, subs[None], room, hits, 0, looks)
    assert hits[:filled].tolist() == [[0, 0, 101], [0, 0, 100]]
    assert looks.tolist() == [1, 1, 2]


def test_addresses() -> None:
    """Of each sub that is asked for, a range of keys near the guess, and its numbers."""
    columns, segments = 2, 3
    rng = np.random.default_rng(7)
    subs = rng.integers(0, 2**40, (segments, columns * SUBS, 3))
    subs[..., COUNT] = rng.integers(0, 200, subs.shape[:2])
    keys = rng.integers(0, 2**64, (40, columns), dtype=np.uint64)
    masks = np.full(keys.shape, 5, dtype=np.uint64)
    table = np.array([(slot, 0, 9) for slot in range(segments)])
    out = np.empty(4 * keys.size * segments, dtype=np.int64)
    found = out[: addresses_of(keys, masks, table, subs, out)].reshape(-1, 4).tolist()
    expected = [
        (entry, (key >> 24 & 0xFFFFFFFF) * int(entry[COUNT]) >> 32)
        for row in keys.tolist()
        for column, key in enumerate(row)
        for entry in subs[[0, 2], column * SUBS + (key >> 56)]
        if entry[COUNT]
    ]
    assert len(found) == len(expected)
    for (first_key, last_key, *numbers), (entry, guess) in zip(found, expected, strict=True):
        first, last = (first_key - entry[KEYS]) // 4, (last_key - entry[KEYS]) // 4
        assert 0 <= first <= guess <= last < entry[COUNT]
        assert numbers == [entry[NUMBERS] + 3 * first, entry[NUMBERS] + 3 * last]
