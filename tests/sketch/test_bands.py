"""The S-curve and the choice of bands, against published values."""

from __future__ import annotations

import itertools

import pytest

from streamdedup.errors import SettingsError
from streamdedup.settings.load import load_settings
from streamdedup.sketch.bands import Banding, choose_bands, doubts, fitting_bands

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
    """At .8 a band of five rows agrees with probability .328; twenty bands all miss with .00035."""
    assert Banding(1, 5).candidate_probability(0.8) == pytest.approx(0.328, abs=5e-4)
    assert 1 - Banding(20, 5).candidate_probability(0.8) == pytest.approx(0.00035, abs=1e-5)


@pytest.mark.parametrize(
    ("rows", "bands"),
    # The published table rounds the last one to 25, which only reaches .98986.
    [(4, 9), (5, 12), (6, 16), (7, 20), (8, 26)],
    ids=[f"{rows}-rows" for rows in range(4, 9)],
)
def test_bands_for_rows(rows: int, bands: int) -> None:
    """Recall .99 at .8 needs this many bands; one fewer is too few."""
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
    """The chosen bands reach the recall and fit; else the choice is refused."""
    if Banding(num_perm, 1).candidate_probability(threshold) < recall:
        with pytest.raises(ValueError, match="cannot reach recall"):
            choose_bands(threshold, recall, num_perm)
        return
    chosen = choose_bands(threshold, recall, num_perm)
    assert chosen.bands * chosen.rows <= num_perm
    assert chosen.candidate_probability(threshold) >= recall - 1e-9


@pytest.mark.parametrize("threshold", [0.01, 1e-18, 1e-300, 5e-324], ids=str)
def test_hopeless_threshold(threshold: float) -> None:
    """A threshold that no number of values can reach is refused without an arithmetic error."""
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
    """Explicit bands are used if the signature is long enough for them."""
    dedup = {"bands": bands, "rows": rows, "num_perm": num_perm}
    if accepted:
        assert load_settings(dedup=dedup).dedup.banding() == (bands, rows)
    else:
        with pytest.raises(SettingsError, match=f"{bands} bands of {rows} rows"):
            load_settings(dedup=dedup)


def test_swapped_bands_show() -> None:
    """450 x 20 and 20 x 450 use the same values, but only the first finds duplicates."""
    right = load_settings(dedup={"bands": 450, "rows": 20, "num_perm": 9000}).dedup.banding()
    swapped = load_settings(dedup={"bands": 20, "rows": 450, "num_perm": 9000}).dedup.banding()
    assert right.candidate_probability(0.8) > 0.99
    assert swapped.candidate_probability(0.8) < 1e-12


def steepest(banding: Banding) -> float:
    """Return the Jaccard similarity at which the S-curve rises fastest."""
    bands, rows = banding
    if rows == 1 or bands == 1:
        return float(bands == 1)
    return float(((1.0 - 1.0 / rows) / (bands - 1.0 / rows)) ** (1.0 / rows))


def rough_threshold(banding: Banding) -> float:
    """Return the common approximation of the steepest point."""
    return float((1.0 / banding.bands) ** (1.0 / banding.rows))


def test_ten_bands_of_five() -> None:
    """The approximate threshold of 10 bands of 5 rows is .631."""
    assert rough_threshold(Banding(10, 5)) == pytest.approx(0.631, abs=5e-4)


def test_steepest_point() -> None:
    """16 x 16 rises fastest at .838; the common approximation is .841."""
    banding = Banding(16, 16)
    assert steepest(banding) == pytest.approx(0.838, abs=5e-4)
    assert rough_threshold(banding) == pytest.approx(0.841, abs=5e-4)


@pytest.mark.parametrize(("banding", "jaccard"), [(Banding(9, 1), 0.0), (Banding(1, 9), 1.0)])
def test_steepest_point_at_the_ends(banding: Banding, jaccard: float) -> None:
    """One row gives a curve that is steepest at 0, one band a curve that is steepest at 1."""
    assert steepest(banding) == jaccard


@pytest.mark.parametrize("banding", [Banding(16, 16), Banding(20, 5), Banding(42, 3)], ids=str)
def test_steepest_point_is_steepest(banding: Banding) -> None:
    """The slope of the curve is nowhere greater than at its steepest point."""

    def slope(at: float) -> float:
        step = 1e-5
        rise = banding.candidate_probability(at + step) - banding.candidate_probability(at - step)
        return rise / (2 * step)

    greatest = slope(steepest(banding))
    assert all(slope(place / 1000) <= greatest * (1 + 1e-6) for place in range(1, 1000))


def test_doubling_rows_and_squaring_bands() -> None:
    """Twice the rows and the square of the bands keep the threshold and halve the width."""
    narrow, wide = Banding(256, 32), Banding(16, 16)
    assert rough_threshold(narrow) == pytest.approx(rough_threshold(wide))

    def width(banding: Banding) -> float:
        return banding.similarity_at(0.9) - banding.similarity_at(0.1)

    assert width(narrow) / width(wide) == pytest.approx(0.5, abs=0.03)


def test_values_by_the_root_finder() -> None:
    """42 bands of 3 rows find .5 with 99 % and .05 with less than 1 %."""
    chosen = [banding for banding in fitting_bands(0.5, 0.99, 128) if banding.rows == 3]
    assert chosen == [(35, 3)]
    assert Banding(42, 3).values <= 128
    for banding in (*chosen, Banding(42, 3)):
        assert banding.candidate_probability(0.5) >= 0.99
        assert banding.candidate_probability(0.05) < 0.01


def test_no_more_random_candidates_than_the_curve_says() -> None:
    """The random candidates per lookup are the curve at the background times the documents."""
    assert Banding(20, 7).random_candidates(10_000_000, 0.05) == pytest.approx(0.15625, rel=1e-3)
    assert Banding(3, 1).random_candidates(100, 1.0) == 100


@pytest.mark.parametrize("probability", [1e-6, 0.1, 0.5, 0.99])
def test_similarity_at_a_probability(probability: float) -> None:
    """``similarity_at`` inverts the curve."""
    banding = Banding(20, 7)
    at = banding.similarity_at(probability)
    assert banding.candidate_probability(at) == pytest.approx(probability)


def test_curve_keeps_small_probabilities() -> None:
    """At low similarity the curve is bands x J^rows, without rounding errors."""
    assert Banding(20, 20).candidate_probability(0.1) == pytest.approx(20e-20, rel=1e-9)


@pytest.mark.parametrize(
    ("banding", "num_perm", "words"),
    [
        pytest.param(Banding(20, 7), 256, [], id="none"),
        pytest.param(Banding(450, 20), 9000, [], id="refinedweb"),
        pytest.param(
            Banding(20, 450),
            9000,
            ["the curve is 0 at 0.8", "did you mean 450 bands of 20 rows"],
            id="refinedweb-swapped",
        ),
        pytest.param(
            Banding(5, 20),
            256,
            ["less than dedup.recall 0.99", "did you mean 20 bands of 5 rows"],
            id="swapped",
        ),
        pytest.param(Banding(9, 13), 128, ["find 39.9% of the pairs at 0.8"], id="integral-tuner"),
        pytest.param(Banding(14, 8), 256, ["find 92.4% of the pairs at 0.8"], id="fineweb"),
        pytest.param(Banding(128, 1), 256, ["the curve is 1 at 0.8"], id="always"),
        pytest.param(Banding(40, 7), 256, ["need 280 MinHash values"], id="too-many"),
    ],
)
def test_doubts(banding: Banding, num_perm: int, words: list[str]) -> None:
    """Problems of explicit bands are named, with a suggestion."""
    problems = doubts(banding, 0.8, 0.99, num_perm)
    assert len(problems) == len(words)
    for problem, part in zip(problems, words, strict=True):
        assert part in problem
