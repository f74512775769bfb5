"""The probability that a pair was found, by its number of equal values."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from streamdedup.dedup.weights import band_probability, found_probability, given_stored_bits
from streamdedup.sketch.bands import Banding


@pytest.mark.parametrize(
    ("bands", "rows", "num_perm"), [(2, 2, 5), (3, 1, 4), (1, 4, 4), (2, 3, 8)]
)
def test_all_choices_of_equal_positions(bands: int, rows: int, num_perm: int) -> None:
    """Counting every choice gives the same."""
    found, in_band = (
        of(Banding(bands, rows), num_perm) for of in (found_probability, band_probability)
    )
    for equal in range(num_perm + 1):
        choices = [set(each) for each in combinations(range(num_perm), equal)]
        full = [
            [set(range(band * rows, (band + 1) * rows)) <= choice for band in range(bands)]
            for choice in choices
        ]
        assert found[equal] == pytest.approx(np.mean([any(each) for each in full]))
        assert in_band[equal] == pytest.approx(np.mean([each[0] for each in full]))


def test_the_mean_over_all_numbers_is_the_s_curve() -> None:
    """With independent values, the S-curve follows from it."""
    banding, num_perm, jaccard = Banding(20, 7), 256, 0.75
    equal = np.arange(num_perm + 1)
    binomial = np.array(
        [math.comb(num_perm, e) * jaccard**e * (1 - jaccard) ** (num_perm - e) for e in equal]
    )
    mean = binomial @ found_probability(banding, num_perm)
    assert mean == pytest.approx(banding.candidate_probability(jaccard), abs=1e-12)


def test_long_signatures_do_not_overflow() -> None:
    """The published 450 bands of 20 rows need 9,000 values."""
    found = found_probability(Banding(45, 20), 900)
    assert found[0] == 0.0
    assert found[-1] == pytest.approx(1.0)
    assert np.all(np.diff(found) > -1e-9)


def test_stored_bits_hide_some_unequal_values() -> None:
    """With many bits hardly any; with one bit, half of them."""
    found = found_probability(Banding(20, 7), 256)
    exact, one_bit = given_stored_bits(found, 8), given_stored_bits(found, 1)
    assert [exact[0], one_bit[0]] == pytest.approx([1.0, 1.0])
    # 26 unequal bits are as likely of 52 unequal values.
    assert one_bit[26] == pytest.approx(found[256 - 52], abs=0.02)
    assert exact[52] == pytest.approx(found[256 - 52], abs=0.002)
    assert np.all(np.diff(exact) < 1e-12)
