"""Stored signatures: packing, unpacking and estimates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.sketch.codec import SignatureCodec
from tests.support.builders import examples

BITS = [1, 2, 4, 8]


@given(
    values=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
    bits=st.sampled_from(BITS),
    wide=st.booleans(),
)
@examples(200)
def test_round_trip(values: list[int], bits: int, wide: bool) -> None:
    """Packing keeps the top bits of each value times the golden ratio, in order."""
    codec = SignatureCodec(len(values), bits)
    row = np.array([values], dtype=np.uint64)
    packed = codec.pack(row if wide else row.astype(np.uint32))
    assert packed.shape == (1, codec.num_bytes)
    kept = [(value * 0x9E3779B97F4A7C15) % 2**64 >> 64 - bits for value in values]
    assert codec.unpack(packed).tolist() == [kept]


@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    bits=st.sampled_from(BITS),
)
@examples(200)
def test_estimate_by_definition(pairs: list[tuple[int, int, bool]], bits: int) -> None:
    """The estimate is the corrected share of equal fields, for any padding of the last byte."""
    codec = SignatureCodec(len(pairs), bits)
    one = codec.pack(np.array([[pair[0] for pair in pairs]], dtype=np.uint32))
    other = codec.pack(np.array([[p[0] if p[2] else p[1] for p in pairs]], dtype=np.uint32))
    share = np.mean(codec.unpack(one) == codec.unpack(other))
    expected = max(0.0, (share - 2**-bits) / (1 - 2**-bits))
    [found] = codec.estimate_jaccard(one[0], other)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bits", BITS)
def test_estimate_ends(bits: int) -> None:
    """Equal signatures give exactly one, and complementary signatures exactly zero."""
    signature = np.arange(100, dtype=np.uint8)
    others = np.stack([signature, ~signature])
    codec = SignatureCodec(800 // bits, bits)
    assert codec.estimate_jaccard(signature, others).tolist() == [1.0, 0.0]
    assert codec.estimate_jaccard(signature, others[:0]).tolist() == []


def test_size() -> None:
    """The default takes 128 bytes; a partly filled byte counts as a whole one."""
    assert SignatureCodec(256, 4).num_bytes == 128
    assert SignatureCodec(9, 2).num_bytes == 3


def test_standard_error() -> None:
    """The standard error is binomial, increased by the truncation."""
    assert SignatureCodec(256, 8).standard_error(0.8) == pytest.approx(0.02506, abs=1e-5)
    assert SignatureCodec(256, 4).standard_error(0.8) == pytest.approx(0.02602, abs=1e-5)
    assert SignatureCodec(256, 4).standard_error(1.0) == 0.0


@given(
    num_perm=st.integers(1, 70),
    bits=st.sampled_from(BITS),
    count=st.integers(0, 8),
    seed=st.integers(0, 2**32 - 1),
)
@examples(200)
def test_pairs_are_estimated_as_one_document(
    num_perm: int, bits: int, count: int, seed: int
) -> None:
    """The estimates of many pairs are exactly those of each pair on its own."""
    codec = SignatureCodec(num_perm, bits)
    chance = np.random.default_rng(seed)
    values = chance.integers(0, 2**32, (count, num_perm), dtype=np.uint32)
    changed = chance.integers(0, 2**32, (count, num_perm), dtype=np.uint32)
    is_same = chance.random((count, num_perm)) < chance.random((count, 1))
    ones, others = codec.pack(values), codec.pack(np.where(is_same, values, changed))
    single = [codec.estimate_jaccard(ones[n], others[n : n + 1])[0] for n in range(count)]
    assert codec.estimate_jaccard(ones, others).tolist() == single
    assert codec.estimate_jaccard(ones, ones).tolist() == [1.0] * count
