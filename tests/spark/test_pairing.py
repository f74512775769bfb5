"""Pairs, copies and full buckets, against their definitions in plain Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import combinations, pairwise

import numpy as np
import pytest

from streamdedup.columns import I64
from streamdedup.spark import buckets as pairing
from streamdedup.spark.buckets import BucketRows, bounded, copies, full_buckets, groups_of, pairs

Bucket = dict[int, list[int]]
"""The places of each group of a bucket, in order."""
Triples = list[tuple[int, int, int]]
"""Key, group and place of each row."""


def as_rows(triples: Triples) -> BucketRows:
    """Return rows, in this order."""
    columns = np.array(triples, dtype=np.int64).reshape(-1, 3)
    return BucketRows(*(np.ascontiguousarray(columns[:, number]) for number in range(3)))


def buckets_of(triples: Triples) -> dict[int, Bucket]:
    """Return the groups of each bucket that has several rows, by key."""
    buckets: dict[int, Bucket] = defaultdict(lambda: defaultdict(list))
    for key, group, place in sorted(triples):
        buckets[key][group].append(place)
    return {key: groups for key, groups in buckets.items() if sum(map(len, groups.values())) > 1}


def firsts_of(bucket: Bucket) -> list[int]:
    """Return the first documents of the groups of a bucket, in order."""
    return sorted(min(places) for places in bucket.values())


def compared(firsts: list[int]) -> list[tuple[int, int]]:
    """Return the pairs of groups of a bucket that are compared."""
    if len(firsts) <= pairing.MOST_COMPARED:
        return list(combinations(firsts, 2))
    return [
        (firsts[one], firsts[two])
        for one, two in combinations(range(len(firsts)), 2)
        if two - one <= pairing.NEAR or one < pairing.FIRST
    ]


def made_up(seed: int, buckets: int = 12, largest: int = 30) -> Triples:
    """Return the rows of a few buckets of any size, with copies, in any order."""
    chance = random.Random(seed)
    triples: Triples = []
    places = iter(chance.sample(range(10**6), 10**4))
    for key in (chance.randint(-(2**63), 2**63 - 1) for _ in range(buckets)):
        size = chance.choice((1, 1, 2, 3, chance.randint(1, largest)))
        groups = [chance.randint(-(2**63), 2**63 - 1) for _ in range(size)]
        for group in groups + chance.choices(groups, k=chance.choice((0, 0, size))):
            triples.append((key, group, next(places)))
    chance.shuffle(triples)
    return triples


def counted(found: list[tuple[I64, I64]]) -> Counter[tuple[int, int]]:
    """Return how often each pair was found."""
    return Counter(
        pair for one, two in found for pair in zip(one.tolist(), two.tolist(), strict=True)
    )


def set_limits(patch: pytest.MonkeyPatch, most: int, near: int, first: int, at_once: int) -> None:
    """Set the limits of buckets and of what is returned at once."""
    limits = {"MOST_COMPARED": most, "NEAR": near, "FIRST": first, "_AT_ONCE": at_once}
    for name, value in limits.items():
        patch.setattr(pairing, name, value)


def check(triples: Triples) -> None:
    """Compare everything that is told about buckets with its definition."""
    rows = as_rows(triples).shared()
    groups = groups_of(rows)
    buckets = buckets_of(triples)
    expected = Counter(pair for bucket in buckets.values() for pair in compared(firsts_of(bucket)))
    assert counted(list(pairs(groups))) == expected
    assert counted([copies(rows)]) == Counter(
        (places[0], place)
        for bucket in buckets.values()
        for places in bucket.values()
        for place in places[1:]
    )
    for size in (1, 2, 7):
        assert counted([full_buckets(groups, size)]) == Counter(
            (key, first)
            for key, bucket in buckets.items()
            for first in firsts_of(bucket)
            if len(bucket) > size
        )
    assert counted([bounded(groups)]) == Counter(
        (key, len(bucket)) for key, bucket in buckets.items() if len(bucket) > pairing.MOST_COMPARED
    )


@pytest.mark.parametrize("seed", range(30))
def test_by_definition(seed: int) -> None:
    """Every two groups of a bucket are a pair, and every further document of a group a copy."""
    check(made_up(seed))


@pytest.mark.parametrize("seed", range(30))
def test_bounded_buckets_by_definition(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large bucket, a group is compared with the ones just before it and the first ones."""
    chance = random.Random(seed)
    most, near, first = chance.randint(1, 12), chance.randint(1, 6), chance.randint(1, 6)
    set_limits(monkeypatch, most, near, first, at_once=chance.randint(near + first, 40))
    check(made_up(seed))


@pytest.mark.parametrize(
    "size", [pairing.MOST_COMPARED, pairing.MOST_COMPARED + 1, pairing.MOST_COMPARED + 200]
)
def test_real_limits(size: int) -> None:
    """A bucket at the limit is compared whole; a larger one in part, and it is reported."""
    triples = [(5, group, 3 * group) for group in range(size)]
    triples += [(6, group, 3 * group) for group in range(3)]
    check(triples)
    keys, sizes = bounded(groups_of(as_rows(triples)))
    is_bounded = size > pairing.MOST_COMPARED
    assert list(zip(keys, sizes, strict=True)) == ([(5, size)] if is_bounded else [])


def test_pairs_of_a_huge_bucket_are_few() -> None:
    """The pairs grow with the bucket, not with its square, and come in parts."""
    size = 20_000
    places = np.arange(size, dtype=np.int64)
    groups = groups_of(BucketRows(np.zeros_like(places), places, places))
    chunks = [len(earlier) for earlier, _ in pairs(groups)]
    near, first = pairing.NEAR, pairing.FIRST
    whole = size - near - first
    assert sum(chunks) == whole * (near + first) + (near + first) * (near + first - 1) // 2
    assert max(chunks) <= 2**20 < sum(chunks)


@pytest.mark.parametrize("size", [2, 5, 100])
def test_many_small_buckets_come_in_parts(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is returned at once is bounded, also for buckets of one size."""
    monkeypatch.setattr(pairing, "_AT_ONCE", 6000)
    triples = [(key, group, 100 * key + group) for key in range(40) for group in range(size)]
    found = list(pairs(groups_of(as_rows(triples))))
    assert max(len(earlier) for earlier, _ in found) <= 6000
    assert counted(found) == Counter(
        pair for bucket in buckets_of(triples).values() for pair in compared(firsts_of(bucket))
    )


@pytest.mark.parametrize("seed", range(10))
def test_a_bounded_bucket_comes_in_parts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts are in order, none is empty or too large, and none repeats a pair."""
    chance = random.Random(seed)
    near, first, size = chance.randint(1, 5), chance.randint(1, 5), chance.randint(7, 60)
    at_once = chance.randint(near + first, 50)
    set_limits(monkeypatch, 6, near, first, at_once)
    parts = list(pairs(groups_of(as_rows([(0, place, place) for place in range(size)]))))
    for before, after in pairwise(parts):
        assert before[1].max() < after[1].min()
    assert all(0 < len(earlier) <= at_once for earlier, _ in parts)
    assert counted(parts) == Counter(compared(list(range(size))))


def test_shared_drops_what_is_alone() -> None:
    """Rows that are alone in their bucket go; the others are sorted by key, group and place."""
    triples = [(9, 1, 4), (2, 5, 3), (9, 0, 8), (7, 7, 7), (9, 1, 0), (-4, 2, 1)]
    rows = as_rows(triples).shared()
    assert list(zip(*(column.tolist() for column in rows), strict=True)) == [
        (9, 0, 8),
        (9, 1, 0),
        (9, 1, 4),
    ]


def test_no_rows() -> None:
    """Nothing is found in nothing."""
    check([])
    check([(1, 1, 1), (2, 2, 2)])
