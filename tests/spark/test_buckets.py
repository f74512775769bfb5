"""Buckets that are divided into slices: what is found does not depend on how they are divided."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from streamdedup.dedup.judge import IGNORED_KEY_BITS
from streamdedup.spark import buckets as pairing
from streamdedup.spark.batches import Batches, as_binary
from streamdedup.spark.buckets import (
    BOUNDED,
    COPY,
    FULL,
    PAIR,
    ROW_BYTES,
    divide,
    pair,
    slice_of,
)

BUCKET_SIZE = 2
Found = Counter[tuple[int, int]]


class Document(NamedTuple):
    """Place, group and band keys of a document; the last key is that of the whole text."""

    place: int
    group: int
    keys: tuple[int, ...]


def made_up(seed: int, count: int, keys_each: int) -> list[Document]:
    """Return documents that share buckets, with copies all over them."""
    chance = random.Random(seed)
    shared = [[chance.getrandbits(64) for _ in range(9)] for _ in range(keys_each)]
    documents: list[Document] = []
    for place in range(count):
        if documents and chance.random() < 0.4:
            _, group, keys = chance.choice(documents[-20:])
        else:
            group = chance.getrandbits(64) - 2**63
            near = (
                chance.choice(keys) if chance.random() < 0.2 else chance.getrandbits(64)
                for keys in shared[:-1]
            )
            keys = (*near, chance.getrandbits(64))
        documents.append(Document(place, group, keys))
    return documents


def batches(documents: Sequence[Document], sizes: Iterator[int]) -> Batches:
    """Return documents as record batches of these sizes.

    Spark reads the files of a table by size, so a task need not get documents in order.
    """
    begin = 0
    while begin < len(documents):
        some = documents[begin : begin + next(sizes)]
        begin += len(some)
        keys = np.array([document.keys for document in some], dtype=np.uint64)
        yield pa.RecordBatch.from_pydict(
            {
                "_place": pa.array([document.place for document in some], pa.int64()),
                "grp": pa.array([document.group for document in some], pa.int64()),
                "band_keys": as_binary(keys.astype("<u8")),
            }
        )


def shuffled(divided: Sequence[pa.RecordBatch], chance: random.Random) -> list[pa.RecordBatch]:
    """Return what Spark makes of it: sorted by slice, otherwise in any order, in any batches."""
    rows = [row for batch in divided for row in batch.to_pylist()]
    chance.shuffle(rows)
    rows.sort(key=lambda row: int(row["slice"]))
    result = []
    while rows:
        size = chance.randint(1, 6)
        result.append(pa.RecordBatch.from_pylist(rows[:size], divided[0].schema))
        del rows[:size]
    return result


def found(
    documents: Sequence[Document],
    *,
    slices: int = 1,
    at_once: int = 10**6,
    batch: int = 10**6,
    seed: int = 0,
) -> dict[int, Found]:
    """Return what buckets tell, by kind."""
    chance = random.Random(seed)
    keys_each = len(documents[0].keys)
    sizes = iter(lambda: chance.randint(1, batch), 0)
    divided = list(divide(slices, keys_each, at_once)(batches(documents, sizes)))
    result: dict[int, Found] = defaultdict(Counter)
    for each in pair(BUCKET_SIZE, keys_each)(iter(shuffled(divided, chance))):
        for row in each.to_pylist():
            result[row["kind"]][row["a"], row["b"]] += 1
    if COPY in result:
        result[COPY] = of_firsts(result[COPY])
    return result


def of_firsts(copies: Found) -> Found:
    """Return copies of the first document of each group; each document is a copy only once."""
    first_of = {copy: first for first, copy in copies}
    assert copies == Counter((first, copy) for copy, first in first_of.items())
    return Counter((first_of.get(first, first), copy) for first, copy in copies)


def expected(documents: Sequence[Document]) -> dict[int, Found]:
    """Return the same by definition, without the keys of full buckets."""
    result: dict[int, Found] = defaultdict(Counter)
    for band in range(len(documents[0].keys)):
        buckets: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for document in documents:
            key = document.keys[band] >> int(IGNORED_KEY_BITS)
            buckets[key][document.group].append(document.place)
        for bucket in buckets.values():
            firsts = sorted(places[0] for places in bucket.values())
            result[PAIR].update(combinations(firsts, 2))
            if len(firsts) > BUCKET_SIZE:
                result[FULL].update((0, first) for first in firsts)
            if band == len(documents[0].keys) - 1:
                for first, *others in bucket.values():
                    result[COPY].update((first, other) for other in others)
    return result


def without_keys(result: dict[int, Found]) -> dict[int, Found]:
    """Return the groups in full buckets without the buckets' keys."""
    full: Found = Counter()
    for (_, first), times in result[FULL].items():
        full[0, first] += times
    return {**{kind: each for kind, each in result.items() if each}, FULL: full}


@pytest.mark.parametrize("seed", range(5))
def test_by_definition(seed: int) -> None:
    """Pairs share a band key; copies are equal documents; a full bucket names all its groups."""
    documents = made_up(seed, count=150, keys_each=4)
    result = without_keys(found(documents))
    assert result == expected(documents)
    assert all(result[kind] for kind in (PAIR, COPY, FULL))


@pytest.mark.parametrize("seed", range(15))
def test_batches_and_slices_do_not_matter(seed: int) -> None:
    """The result is the same for any batches, any slices, and in any order of rows."""
    chance = random.Random(seed)
    documents = made_up(seed, count=200, keys_each=chance.choice((1, 2, 6, 21)))
    result = found(
        chance.sample(documents, len(documents)),
        slices=chance.choice((1, 2, 7, 64, 70_000)),
        at_once=chance.choice((1, 10, 100)),
        batch=chance.choice((1, 10, 1000)),
        seed=seed,
    )
    assert result == found(documents)


def test_copies_collapse_inside_what_is_divided_together() -> None:
    """Equal documents have one row in each band, and each further one is told as a copy."""
    keys = (1 << 60, 2 << 60, 3 << 60)
    documents = [Document(place, 5, keys) for place in range(1000)]

    def divided_bytes(at_once: int) -> tuple[int, int]:
        divided = list(divide(3, len(keys), at_once)(batches(documents, iter([100] * 10))))
        rows, copies = (
            sum(len(each) for batch in divided for each in batch.column(name).to_pylist())
            for name in ("rows", "copies")
        )
        return rows, copies

    assert divided_bytes(1000) == (3 * ROW_BYTES, 999 * 16)
    assert divided_bytes(100) == (10 * 3 * ROW_BYTES, 990 * 16)
    result = found(documents, at_once=100, batch=100)
    assert result[COPY] == Counter((0, place) for place in range(1, 1000))
    assert not result[PAIR]
    assert not result[FULL]


def test_bands_with_equal_keys_are_different_buckets() -> None:
    """A key that two bands share brings nothing together."""
    key = 9 << 60
    documents = [Document(0, 1, (key, 1 << 40, 2 << 40)), Document(1, 2, (3 << 40, key, 4 << 40))]
    assert not any(found(documents).values())
    documents.append(Document(2, 3, (5 << 40, key, 6 << 40)))
    assert found(documents) == {PAIR: Counter({(1, 2): 1})}


def test_the_lowest_bits_of_a_key_do_not_count() -> None:
    """Buckets are those of the index, which stores the upper bits of a key."""
    keys = [(7 << 60) + bits for bits in (0, 1, (1 << int(IGNORED_KEY_BITS)) - 1)]
    documents = [Document(n, n, (key, n << 50)) for n, key in enumerate(keys)]
    assert found(documents)[PAIR] == Counter([(0, 1), (0, 2), (1, 2)])
    documents[2] = Document(2, 2, (keys[2] + 1, 2 << 50))
    assert found(documents)[PAIR] == Counter([(0, 1)])


def test_a_bucket_that_is_not_compared_whole_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has a row with the number of its groups."""
    monkeypatch.setattr(pairing, "MOST_COMPARED", 3)
    documents = [Document(n, n, (8 << 60, n << 50)) for n in range(5)]
    result = found(documents, at_once=2)
    assert list(result[BOUNDED].values()) == [1]
    [(_, groups)] = result[BOUNDED]
    assert groups == 5


@pytest.mark.parametrize("slices", [1, 2, 1000, 65_534, 65_535, 200_000])
def test_slices_are_even(slices: int) -> None:
    """A slice gets about its share of the buckets, although keys have the band above them."""
    keys = np.random.default_rng(1).integers(0, 2**40, 400_000, dtype=np.uint64)
    owners = slice_of(keys | np.uint64(3 << 40), slices)
    assert owners.min() >= 0
    assert owners.max() < slices
    sizes = np.bincount(owners, minlength=slices)
    share = len(keys) / slices
    assert abs(sizes - share).max() < 7 * share**0.5 + 7
