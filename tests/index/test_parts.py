"""The parts of the index, each against what it stands for: blocks, postings, filter, delta."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.index import blocks
from streamdedup.index.delta import Delta
from streamdedup.index.filter import Bank, slots_of
from streamdedup.index.geometry import SLOTS
from streamdedup.index.memory import address
from streamdedup.index.postings import (
    COUNT,
    KEYS,
    NUMBERS,
    SUBS,
    find,
    merge_column,
    pack,
    sort_column,
    unpack_column,
)
from streamdedup.index.rows import OFFSET, SOURCE, Rows
from streamdedup.model import I64, U8, U64
from tests.support.builders import examples

INT64 = st.integers(-(2**63), 2**63 - 1)
SEEDS = st.integers(0, 2**32 - 1)
SHIFT = np.uint64(24)
WIDTH = 8

FIELDS = st.one_of(
    st.lists(INT64, min_size=5, max_size=5),
    st.lists(st.integers(0, 300), min_size=5, max_size=5),
    st.lists(st.integers(2**40, 2**40 + 70_000), min_size=5, max_size=5),
)
DOCUMENTS = st.lists(
    st.tuples(
        FIELDS, st.text(max_size=5), st.binary(max_size=5), st.binary(min_size=8, max_size=8)
    ),
    min_size=1,
    max_size=20,
)


def rows_of(documents: list[tuple[list[int], str, bytes, bytes]]) -> Rows:
    """Return documents as columns."""
    ids = [id_.encode() for _, id_, _, _ in documents]
    texts = [text for _, _, text, _ in documents]
    return Rows(
        np.array([list(signature) for *_, signature in documents], dtype=np.uint8),
        np.array([fields for fields, *_ in documents], dtype=np.int64),
        np.cumsum([len(each) for each in ids]),
        np.frombuffer(b"".join(ids), dtype=np.uint8),
        np.cumsum([len(each) for each in texts]),
        np.frombuffer(b"".join(texts), dtype=np.uint8),
    )


def listed(rows: Rows) -> list[tuple[list[int], str, bytes, bytes]]:
    """Return what :func:`rows_of` was given."""
    signatures = [bytes(each) for each in rows.signatures]
    return list(
        zip(rows.fields.tolist(), rows.id_list(), rows.text_list(), signatures, strict=True)
    )


class TestBlocks:
    """Blocks of documents."""

    @given(documents=DOCUMENTS, seed=SEEDS)
    @examples(150)
    def test_round_trip(
        self, documents: list[tuple[list[int], str, bytes, bytes]], seed: int
    ) -> None:
        """Documents come back from several blocks in any order, whatever their columns' widths."""
        parts = [documents, documents[::2]]
        values = [np.frombuffer(blocks.encode(rows_of(part)), dtype=np.uint8) for part in parts]
        rng = np.random.default_rng(seed)
        wanted = [(at, rng.integers(len(parts[at]))) for at in rng.integers(0, 2, 12)]
        found = blocks.gather(
            np.array([address(values[at]) for at, _ in wanted], dtype=np.int64),
            np.array([place for _, place in wanted], dtype=np.int64),
            WIDTH,
        )
        assert listed(found) == [parts[at][place] for at, place in wanted]

    @given(documents=DOCUMENTS, gone=st.sets(st.integers(0, 19)))
    @examples(60)
    def test_erase(
        self, documents: list[tuple[list[int], str, bytes, bytes]], gone: set[int]
    ) -> None:
        """An erased document has no signature, id, text or namespace; times and place stay."""
        gone = {place for place in gone if place < len(documents)}
        found = listed(rows_of(documents).erase(np.array(sorted(gone), dtype=np.int64)))
        assert found == [
            ([*fields[:4], 0], "", b"", bytes(WIDTH)) if place in gone else each
            for place, each in enumerate(documents)
            for fields in [each[0]]
        ]

    @given(documents=DOCUMENTS, asked=st.lists(st.tuples(INT64, INT64), max_size=5))
    @examples(100)
    def test_positions(
        self,
        documents: list[tuple[list[int], str, bytes, bytes]],
        asked: list[tuple[int, int]],
    ) -> None:
        """Source and offset are found together, or not at all."""
        held = {(fields[SOURCE], fields[OFFSET]) for fields, *_ in documents}
        asked = [*asked, *held, *((source, 7) for source, _ in held)]
        value = np.frombuffer(blocks.encode(rows_of(documents)), dtype=np.uint8)
        found = blocks.find_positions(
            np.array([address(value)], dtype=np.int64),
            np.array([source for source, _ in asked], dtype=np.int64),
            np.array([offset for _, offset in asked], dtype=np.int64),
        )
        assert found.tolist() == [position in held for position in asked]


def some_keys(seed: int, count: int, variety: int, columns: int = 1) -> U64:
    """Return band keys, some alike in the upper 8 or 40 bits only."""
    rng = np.random.default_rng(seed)
    upper = rng.integers(0, variety, (count, columns), dtype=np.uint64)
    spread = upper * np.uint64(0x9E3779B97F4A7C15)
    lower = rng.integers(0, 2**24, (count, columns), dtype=np.uint64)
    near = rng.integers(0, 3, (count, columns), dtype=np.uint64) << SHIFT
    return (spread >> np.uint64(56) << np.uint64(56)) | near | lower


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
    """Pack a column into one value, and return that and the places of its subs."""
    value = np.zeros(7 * len(postings) + 8, dtype=np.uint8)
    pack(postings, value)
    places = np.empty((SUBS, 3), dtype=np.int64)
    places[:, KEYS] = address(value) + 4 * starts[:-1]
    places[:, NUMBERS] = address(value) + 4 * len(postings) + 3 * starts[:-1]
    places[:, COUNT] = np.diff(starts)
    return value, places


COUNTS = st.sampled_from([0, 1, 2, 50, 3000])
VARIETIES = st.sampled_from([1, 3, 200])
SIZES = st.sampled_from([1, 2, 7, 4096])


class TestPostings:
    """Postings of one column."""

    @given(seed=SEEDS, count=COUNTS, variety=VARIETIES, size=SIZES)
    @examples(60)
    def test_sort_and_pack(self, seed: int, count: int, variety: int, size: int) -> None:
        """Sorted by key and number, cut to the newest of each key, and back from their bytes."""
        keys = some_keys(seed, count, variety)
        postings, starts = sorted_column(keys, size)
        assert split(postings) == newest(keys[:, 0], size)
        subs = np.searchsorted(postings >> np.uint64(56), np.arange(SUBS + 1, dtype=np.uint64))
        assert starts.tolist() == subs.tolist()
        _value, places = packed(postings, starts)
        out = np.empty(count, dtype=np.uint64)
        assert unpack_column(places, out) == len(postings)
        np.testing.assert_array_equal(out[: len(postings)], postings)

    @given(seed=SEEDS, counts=st.lists(COUNTS, min_size=1, max_size=4), size=SIZES)
    @examples(40)
    def test_merge(self, seed: int, counts: list[int], size: int) -> None:
        """Merged segments are what one of all the documents would have been."""
        keys = some_keys(seed, sum(counts), 20)
        ends = np.cumsum(counts, dtype=np.int64)
        parts = [
            packed(*sorted_column(keys[end - count : end], size))
            for end, count in zip(ends, counts, strict=True)
        ]
        places = np.stack([places for _, places in parts])
        work, out = np.empty((2, len(keys)), dtype=np.uint64)
        starts = np.empty(SUBS + 1, dtype=np.int64)
        found = merge_column(places, ends - counts, size, work, out, starts)
        expected, expected_starts = sorted_column(keys, size)
        np.testing.assert_array_equal(out[:found], expected)
        np.testing.assert_array_equal(starts, expected_starts)

    @given(seed=SEEDS, counts=st.lists(COUNTS, min_size=1, max_size=3), size=SIZES)
    @examples(40)
    def test_find(self, seed: int, counts: list[int], size: int) -> None:
        """The newest documents of each key, over segments newest first; absent keys have none."""
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
            np.ones(len(parts), dtype=np.int64),
            (1000 + ends - counts)[::-1].copy(),
            np.stack([places for _, places in reversed(parts)]),
            size,
            np.zeros(asked.shape, dtype=np.uint64),
            hits,
            0,
            np.zeros(2, dtype=np.int64),
        )
        assert hits[:filled].tolist() == [
            [row, 0, number]
            for row, key in enumerate(asked[:, 0].tolist())
            for number in expected_bucket(keys[:, 0], key, size, 1000)
        ]


def expected_bucket(keys: U64, key: int, size: int, first: int) -> list[int]:
    """Return the newest numbers filed under a key, newest first."""
    same = np.flatnonzero(keys >> SHIFT == np.uint64(key >> 24))
    found: list[int] = (first + same[::-1][:size]).tolist()
    return found


class TestFilter:
    """A bank of eight filters."""

    @given(seed=SEEDS, fills=st.lists(st.sampled_from([0, 1, 200]), min_size=8, max_size=8))
    @examples(30)
    def test_no_key_is_missed(self, seed: int, fills: list[int]) -> None:
        """Whatever was added to a slot is seen there, from its own bits or from its plane's."""
        bank, copy = Bank(2, 200, 12), Bank(2, 200, 12)
        postings = [np.sort(random_keys(seed + at, count)) for at, count in enumerate(fills)]
        for slot, some in enumerate(postings):
            bank.add(some, slot % 2, slot)
            copy.add_plane(bank.plane(slot % 2, slot), slot % 2, slot)
        np.testing.assert_array_equal(bank.cells, copy.cells)
        for slot, some in enumerate(postings):
            assert bank.has_all(some, slot % 2, slot)
            keys = np.repeat(some[:, None], 2, axis=1)
            out = np.zeros(keys.shape, dtype=np.uint64)
            slots_of(bank.cells, bank.address, bank.lines, SLOTS, keys, out)
            assert (out[:, slot % 2] >> np.uint64(SLOTS + slot) & np.uint64(1)).all()
        bank.clear(3)
        assert bank.fill(3) == 0
        assert not len(postings[3]) or not bank.has_all(postings[3], 1, 3)
        assert all(bank.has_all(some, at % 2, at) for at, some in enumerate(postings) if at != 3)

    @pytest.mark.parametrize(("places", "most"), [(12, 0.02), (16, 0.01)], ids=["slice", "run"])
    def test_errors(self, places: int, most: float) -> None:
        """As few absent keys seem present as the class says, with a slot that is full."""
        bank = Bank(1, 20_000, places)
        bank.add(np.sort(random_keys(1, 20_000)), 0, 0)
        absent = random_keys(2, 50_000)[:, None]
        out = np.zeros(absent.shape, dtype=np.uint64)
        slots_of(bank.cells, bank.address, bank.lines, 0, absent, out)
        assert 0 < out.mean() < most


def random_keys(seed: int, count: int) -> U64:
    """Return keys that are hashes."""
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


class TestDelta:
    """Documents in memory."""

    @given(
        seed=SEEDS,
        batches=st.lists(st.sampled_from([0, 1, 7, 40]), max_size=5),
        variety=VARIETIES,
        size=SIZES,
        again=st.booleans(),
    )
    @examples(60)
    def test_against_lists(
        self, seed: int, batches: list[int], variety: int, size: int, again: bool
    ) -> None:
        """Its buckets are the newest documents of each key, its rows what was added."""
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
        counts = np.zeros(asked.shape, dtype=np.uint64)
        hits = np.empty((asked.size * min(size, end + 1), 3), dtype=np.int64)
        filled = delta.find(asked, size, counts, hits, 0)
        assert sorted(hits[:filled].tolist()) == sorted(
            [row, column, number]
            for row in range(len(asked))
            for column in range(3)
            for number in expected_bucket(keys[:, column], int(asked[row, column]), size, 500)
        )
        assert counts.sum() == filled
        assert delta.rows(np.arange(end)).id_list() == [f"id-é{500 + at}" for at in range(end)]

    def test_larger_than_its_capacity(self) -> None:
        """One update may be larger than a delta; it has it for itself."""
        delta = Delta(16, 1, WIDTH)
        keys = some_keys(1, 1000, 200)
        assert delta.has_room(1000)
        fill_delta(delta, 0, keys)
        assert not delta.has_room(1)
        assert delta.rows(np.array([999])).id_list() == ["id-é999"]


def fill_delta(delta: Delta, first: int, keys: U64) -> None:
    """Add documents of some keys."""
    documents = [([0] * 5, f"id-é{first + at}", b"text", bytes(WIDTH)) for at in range(len(keys))]
    if documents:
        delta.add(first, keys, rows_of(documents))
