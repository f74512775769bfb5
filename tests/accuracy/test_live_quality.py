"""The live figures agree with the exact truth within their stated errors, over ten seeds."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from streamdedup.dedup.quality import Figure, interval
from tests.support.corpora import DATA
from tests.testkit.quality import CORPORA, GENERATED, Corpus, Run, load, run, settings_of

SEEDS = range(1, 11)
MOST_OUTSIDE = 2
"""Seeds of ten whose truth may be more than two standard errors away: three or more have a
probability of 1 % if two errors hold 95 %."""

REAL = [pytest.param(name, marks=pytest.mark.long) for name in CORPORA if DATA.is_dir()]
RULES: list[dict[str, Any]] = [
    {"recall": 0.8},
    {"bands": 9, "rows": 13, "verify": "exact"},
]


@cache
def corpus(name: str) -> Corpus:
    """Return a corpus, loaded once."""
    return load(name, DATA)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rule", RULES, ids=["estimate", "exact"])
@pytest.mark.parametrize("name", [GENERATED, *REAL])
def test_figures_agree_with_the_truth(name: str, rule: dict[str, Any]) -> None:
    """Recall, precision and the shadow sample, each within its error and without a bias."""
    # The posts have many repeats.
    one_in = 64 if name == "tweets_ira" else 8
    runs = [run(corpus(name), settings_of(0.8, seed, one_in, **rule)) for seed in SEEDS]
    for true, live in (
        ([each.truth.recall for each in runs], [each.figures.recall for each in runs]),
        ([each.truth.precision for each in runs], [each.figures.precision for each in runs]),
    ):
        assert_agree(true, live)
    for each in runs:
        assert_shadow_is_exact(each)


def assert_agree(true: list[float], live: list[Figure]) -> None:
    """Check that the truth is within two errors nearly always, and that the mean is near it."""
    differences = np.array([figure.value for figure in live]) - true
    errors = np.array([figure.error for figure in live])
    # One document of a thousand repeats is below the resolution of a small stream.
    outside = np.abs(differences) > 2 * errors + 1e-4
    assert np.count_nonzero(outside) <= MOST_OUTSIDE, (true, live)
    assert abs(differences.mean()) <= 1.5 * errors.mean() + 1e-4, (true, live)


def assert_shadow_is_exact(one: Run) -> None:
    """Check every sampled document, and that the interval is not far from the whole stream."""
    found = one.shadow.get("found", 0)
    kept = one.shadow.get("missed", 0) + one.shadow.get("refuted", 0)
    assert (found, kept) == (one.truth.found, one.truth.missed)
    low, high = interval(found, found + kept, z=4.0)
    assert low <= one.truth.recall <= high
