"""A bank of eight filters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.columns import U64
from streamdedup.index.filter import SLOTS, Bank, slots_of
from tests.index.examples import SEEDS
from tests.support.builders import examples


@given(seed=SEEDS, fills=st.lists(st.sampled_from([0, 1, 200]), min_size=8, max_size=8))
@examples(30)
def test_no_key_is_missed(seed: int, fills: list[int]) -> None:
    """Every key of a slot is found there, whether added itself or with a stored plane."""
    bank, copy = Bank(2, 200, 12), Bank(2, 200, 12)
    postings = [np.sort(random_keys(seed + slot, count)) for slot, count in enumerate(fills)]
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
    for column in range(bank.columns):
        bank.clear(column, 3)
    assert not (bank.cells & np.uint8(1 << 3)).any()
    assert not len(postings[3]) or not bank.has_all(postings[3], 1, 3)
    others = [slot for slot in range(SLOTS) if slot != 3]
    assert all(bank.has_all(postings[slot], slot % 2, slot) for slot in others)


@pytest.mark.parametrize(("cells_per_key", "most"), [(12, 0.02), (16, 0.01)], ids=["slice", "run"])
def test_errors(cells_per_key: int, most: float) -> None:
    """In a full slot, no more absent keys seem present than the class documents."""
    bank = Bank(1, 20_000, cells_per_key)
    bank.add(np.sort(random_keys(1, 20_000)), 0, 0)
    absent = random_keys(2, 50_000)[:, None]
    out = np.zeros(absent.shape, dtype=np.uint64)
    slots_of(bank.cells, bank.address, bank.lines, 0, absent, out)
    assert 0 < out.mean() < most


def random_keys(seed: int, count: int) -> U64:
    """Return keys that are hashes."""
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)
