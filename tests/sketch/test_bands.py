"""The S-curve and the choice of bands, against published values."""

from __future__ import annotations

import itertools

import pytest

from streamdedup.errors import SettingsError
from streamdedup.settings import load_settings
from streamdedup.sketch.bands import Banding, choose_bands

CURVE = [
    pytest.param(20, 5, jaccard, value, 0.5 * 10**-digits, id=f"mmds-20x5-at-{jaccard}")
    for jaccard, value, digits in (
        (0.2, 0.006, 3),
        (0.3, 0.047, 3),
        (0.4, 0.186, 3),
        (0.5, 0.470, 3),
        (0.6, 0.802, 3),
        (0.7, 0.975, 3),
        (0.8, 0.9996, 4),
    )
] + [
    pytest.param(15, 5, 0.3, 0.0358, 5e-5, id="mmds-15x5-false-positives"),
    pytest.param(15, 5, 0.8, 0.9974, 5e-5, id="mmds-15x5-misses"),
    pytest.param(42, 3, 0.5, 0.9963, 5e-5, id="job-ads-caught"),
    pytest.param(42, 3, 0.05, 0.0052, 5e-5, id="job-ads-let-through"),
    pytest.param(450, 20, 0.8, 0.9946, 5e-5, id="refinedweb"),
    pytest.param(20, 450, 0.8, 0.0, 1e-12, id="refinedweb-swapped"),
    pytest.param(14, 8, 0.7, 0.565, 5e-4, id="fineweb-at-.7"),
    pytest.param(14, 8, 0.75, 0.772, 5e-4, id="fineweb-at-.75"),
    pytest.param(14, 8, 0.8, 0.924, 5e-4, id="fineweb-at-.8"),
    pytest.param(14, 8, 0.9, 0.9996, 5e-4, id="fineweb-at-.9"),
    pytest.param(9, 13, 0.8, 0.399, 5e-4, id="integral-tuner-at-.8"),
    pytest.param(9, 13, 0.85, 0.686, 5e-4, id="integral-tuner-at-.85"),
]


@pytest.mark.parametrize(("bands", "rows", "jaccard", "value", "tolerance"), CURVE)
def test_curve(bands: int, rows: int, jaccard: float, value: float, tolerance: float) -> None:
    """The candidate probability is the published one, to its last digit."""
    probability = Banding(bands, rows).candidate_probability(jaccard)
    assert probability == pytest.approx(value, abs=tolerance * 1.001)


def test_one_band_and_all_bands() -> None:
    """At .8 one band of five rows agrees with .328, and all twenty miss with .00035."""
    assert Banding(1, 5).candidate_probability(0.8) == pytest.approx(0.328, abs=5e-4)
    assert 1 - Banding(20, 5).candidate_probability(0.8) == pytest.approx(0.00035, abs=1e-5)


@pytest.mark.parametrize(
    ("rows", "bands"),
    # The published table rounds the last one to 25, which only reaches .98986.
    [(4, 9), (5, 12), (6, 16), (7, 20), (8, 26)],
    ids=[f"{rows}-rows" for rows in range(4, 9)],
)
def test_bands_for_rows(rows: int, bands: int) -> None:
    """Recall .99 at .8 takes so many bands, and one fewer is too few."""
    # A corpus is planned for that makes exactly these rows the fewest that will do.
    background = 0.05
    corpus = int(0.9 / (bands * background**rows))
    chosen = choose_bands(0.8, 0.99, 1000, corpus=corpus, background=background)
    assert chosen == (bands, rows)
    assert chosen.candidate_probability(0.8) >= 0.99
    assert Banding(bands - 1, rows).candidate_probability(0.8) < 0.99


THRESHOLDS = (0.2, 0.5, 0.7, 0.8, 0.9, 0.99, 1.0)
RECALLS = (0.5, 0.9, 0.99, 0.9999)


@pytest.mark.parametrize(
    ("threshold", "recall"),
    list(itertools.product(THRESHOLDS, RECALLS)),
    ids=str,
)
@pytest.mark.parametrize("num_perm", [64, 256, 9000])
def test_choice_reaches_recall(threshold: float, recall: float, num_perm: int) -> None:
    """Whatever is chosen reaches the recall and fits, and nothing else is ever chosen."""
    if Banding(num_perm, 1).candidate_probability(threshold) < recall:
        with pytest.raises(ValueError, match="cannot reach recall"):
            choose_bands(threshold, recall, num_perm)
        return
    chosen = choose_bands(threshold, recall, num_perm)
    assert chosen.bands * chosen.rows <= num_perm
    assert chosen.candidate_probability(threshold) >= recall - 1e-9


@pytest.mark.parametrize("threshold", [0.01, 1e-18, 1e-300, 5e-324], ids=str)
def test_hopeless_threshold(threshold: float) -> None:
    """A threshold that no number of values can serve is refused, not a crash in the arithmetic."""
    with pytest.raises(ValueError, match="cannot reach recall"):
        choose_bands(threshold, 0.99, 256)


@pytest.mark.parametrize(
    ("bands", "rows", "num_perm", "accepted"),
    [
        pytest.param(450, 20, 9000, True, id="refinedweb"),
        pytest.param(450, 20, 8999, False, id="one-value-short"),
        pytest.param(20, 13, 256, False, id="over-256"),
        pytest.param(32, 8, 256, True, id="just-256"),
    ],
)
def test_explicit_bands_must_fit(bands: int, rows: int, num_perm: int, accepted: bool) -> None:
    """Explicit bands are taken as they stand where the signature is long enough for them."""
    dedup = {"bands": bands, "rows": rows, "num_perm": num_perm}
    if accepted:
        assert load_settings(dedup=dedup).dedup.banding() == (bands, rows)
    else:
        with pytest.raises(SettingsError, match=f"{bands} bands of {rows} rows"):
            load_settings(dedup=dedup)


def test_swapped_bands_show() -> None:
    """450 x 20 and 20 x 450 take as many values, and only one of them finds anything."""
    right = load_settings(dedup={"bands": 450, "rows": 20, "num_perm": 9000}).dedup.banding()
    swapped = load_settings(dedup={"bands": 20, "rows": 450, "num_perm": 9000}).dedup.banding()
    assert right.candidate_probability(0.8) > 0.99
    assert swapped.candidate_probability(0.8) < 1e-12
