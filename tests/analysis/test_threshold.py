"""The threshold that labels propose: its maximum, its interval, and degenerate labels."""

from __future__ import annotations

import numpy as np
import pytest

from streamdedup.analysis.threshold import fit
from streamdedup.columns import F64


def simulated(seed: int, count: int, slope: float, threshold: float) -> tuple[F64, F64]:
    """Return similarities around a threshold, and labels drawn from the logistic model."""
    generator = np.random.default_rng(seed)
    similarities = generator.uniform(threshold - 0.15, threshold + 0.15, count)
    share = 1 / (1 + np.exp(-slope * (similarities - threshold)))
    return similarities, (generator.random(count) < share).astype(np.float64)


def log_likelihood(similarities: F64, same: F64, threshold: float, slope: float) -> float:
    """Return the logarithm of the likelihood, by the definition."""
    logits = slope * (similarities - threshold)
    return float(-(same * np.logaddexp(0, -logits) + (1 - same) * np.logaddexp(0, logits)).sum())


@pytest.mark.parametrize(("count", "slope", "threshold"), [(40, 30.0, 0.8), (90, 20.0, 0.75)])
def test_the_interval_covers_the_truth_as_often_as_it_says(
    count: int, slope: float, threshold: float
) -> None:
    """Over 250 samples, the 95 % interval contains the true threshold in 91 to 98 % of them."""
    fits = [fit(*simulated(seed, count, slope, threshold)) for seed in range(250)]
    covered = np.mean([one.low <= threshold <= one.high for one in fits])
    assert 0.91 <= covered <= 0.98, covered
    assert abs(np.median([one.threshold for one in fits]) - threshold) < 0.005
    assert all(one.low <= one.threshold <= one.high for one in fits)


@pytest.mark.parametrize("seed", range(5))
def test_no_other_curve_is_likelier(seed: int) -> None:
    """The fit has the greatest likelihood on a grid of thresholds and slopes."""
    similarities, same = simulated(seed, 80, 25.0, 0.75)
    found = fit(similarities, same)
    best = log_likelihood(similarities, same, found.threshold, found.slope)
    others = [
        log_likelihood(similarities, same, threshold, slope)
        for threshold in np.linspace(0.6, 0.9, 61)
        for slope in np.geomspace(1, 300, 60)
    ]
    assert best >= max(others) - 1e-3
    assert best - max(others) < 0.05


def test_more_labels_narrow_the_interval() -> None:
    """Four times as many labels make the interval about half as wide."""
    widths = []
    for count in (60, 240):
        fits = [fit(*simulated(seed, count, 30.0, 0.8)) for seed in range(30)]
        widths.append(float(np.median([one.high - one.low for one in fits])))
    assert 1.6 < widths[0] / widths[1] < 2.5


def test_a_threshold_between_separated_labels() -> None:
    """Without overlap the proposal is the middle of the gap, and the interval contains the gap."""
    similarities = np.array([0.6, 0.65, 0.7, 0.72, 0.78, 0.8, 0.85, 0.9])
    found = fit(similarities, (similarities > 0.75).astype(np.float64))
    assert found.separated
    assert found.rising
    assert found.threshold == pytest.approx(0.75)
    assert 0.6 <= found.low <= 0.72
    assert 0.78 <= found.high <= 0.9


def test_two_labels_determine_nothing() -> None:
    """The interval is unbounded, and the labels do not show that the share rises."""
    found = fit(np.array([0.7, 0.9]), np.array([0.0, 1.0]))
    assert (found.low, found.high, found.rising) == (0.0, 1.0, False)


def test_labels_that_do_not_depend_on_the_similarity() -> None:
    """Random and reversed labels are not rising."""
    similarities = np.linspace(0.6, 0.9, 40)
    reversed_labels = fit(similarities, (similarities < 0.75).astype(np.float64))
    assert not reversed_labels.rising
    rising = [
        fit(similarities, np.random.default_rng(seed).integers(0, 2, 40).astype(np.float64)).rising
        for seed in range(60)
    ]
    assert sum(rising) <= 6


def test_ties_and_shares_count() -> None:
    """Two labels of one pair that differ are a share of one half, and pull to its similarity."""
    similarities = np.array([0.7] * 10 + [0.75] + [0.8] * 10)
    same = np.array([0.0] * 10 + [0.5] + [1.0] * 10)
    found = fit(similarities, same)
    assert not found.separated
    assert found.threshold == pytest.approx(0.75, abs=0.002)
