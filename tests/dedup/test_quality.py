"""The estimates of recall and precision: their formulas, their memory, and what is unknown."""

from __future__ import annotations

import math
from statistics import NormalDist, stdev

import numpy as np
import pytest

from streamdedup.batches import JudgementCounts, Met
from streamdedup.dedup import quality
from streamdedup.dedup.quality import Figure, Quality, Sums, interval
from streamdedup.dedup.weights import Assumption, Weighing, missed_variances
from streamdedup.settings.dedup import DedupSettings
from streamdedup.sketch.bands import Banding
from streamdedup.sketch.codec import SignatureCodec

EXACT = DedupSettings(bands=9, rows=13, verify="exact")
ESTIMATE = DedupSettings(bands=9, rows=13)
NONE = 257


def counts(
    nearest: list[tuple[int, int]],
    *,
    texts: list[int] | None = None,
    settings: DedupSettings = EXACT,
    shared: int = 1,
) -> JudgementCounts:
    """Return the counts of documents by the unequal values of their two nearest candidates."""
    weighing = Weighing(settings)
    found = np.array(nearest, dtype=np.int64)
    by_unequal = np.bincount(found.ravel(), minlength=NONE + 1)[:NONE]
    is_match = weighing.estimates >= settings.threshold
    bands = np.zeros((len(nearest), settings.banding().bands), dtype=np.bool_)
    bands[:, :shared] = True
    return JudgementCounts(
        similarities=weighing.estimates,
        by_similarity=by_unequal,
        accepted=np.where(is_match, by_unequal, 0),
        met=Met(
            found,
            np.append(is_match, np.False_)[found[:, 0]],
            bands,
            np.array(texts or range(len(nearest)), dtype=np.uint64),
        ),
    )


def test_without_data_nothing_is_known() -> None:
    """The figures are NaN, not 1, before any document and after documents without candidates."""
    for documents in (0, 7):
        one = Quality(ESTIMATE)
        assert one.add(JudgementCounts(), documents) == Sums()
        figures = one.figures()
        assert figures.documents == documents
        assert figures.sums == Sums()
        for figure in (figures.recall, figures.precision, figures.pairs.recall):
            assert math.isnan(figure.value)
            assert math.isnan(figure.error)
        assert figures.pairs.pairs == 0


def test_a_found_document_stands_for_missed_ones() -> None:
    """Horvitz and Thompson: one that is found with probability h counts 1 / h."""
    unequal = 40
    weighing = Weighing(EXACT)
    h = weighing.found()[unequal]
    # The expected number of bands is shared, so that the ratio is 1.
    one = Quality(EXACT)
    sums = one.add(counts([(unequal, NONE)]), 10)
    ratio = (1 / 9) / (weighing.expected[weighing.class_of[unequal]])
    h = 1 - (1 - h) ** ratio
    assert sums.found == pytest.approx(1.0)
    assert sums.missed == pytest.approx(1 / h - 1)
    assert sums.refuted == sums.false == 0.0
    assert sums.missed_variance == pytest.approx((1 - h) / h**2)
    recall = one.figures().recall
    assert recall.value == pytest.approx(h)
    assert recall.error > math.sqrt((1 - h) / h**2) * h**2


def test_either_of_two_matches_makes_a_duplicate() -> None:
    """With two matches the expectation is unbiased, summed over what may be found of them."""
    weighing = Weighing(EXACT)
    near, far = 30, 45
    h = [weighing.found()[unequal] for unequal in (near, far)]
    total = 0.0
    for found, probability in (
        ([(near, far)], h[0] * h[1]),
        ([(near, NONE)], h[0] * (1 - h[1])),
        ([(far, NONE)], h[1] * (1 - h[0])),
    ):
        weights = weighing.weights(np.zeros(NONE, dtype=np.int64), Assumption(1.0, False, 1.0))
        left = [
            1.0 - (weights.true / weights.found)[weighing.class_of[unequal]] for unequal in found[0]
        ]
        total += probability * (1.0 - left[0] * left[1])
    assert total == pytest.approx(1.0)


def test_copies_of_a_found_duplicate_are_certain() -> None:
    """Only the first of several equal texts could have been missed."""
    first = Quality(EXACT).add(counts([(40, NONE)]), 1)
    several = Quality(EXACT)
    sums = several.add(counts([(40, NONE)] * 5, texts=[3] * 5), 5)
    assert sums.found == pytest.approx(5.0)
    assert sums.missed == pytest.approx(first.missed)
    # They are remembered across batches.
    later = several.add(counts([(40, NONE)], texts=[3]), 1)
    assert later.missed == 0.0


def test_remembered_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text that was met longest ago is forgotten."""
    monkeypatch.setattr(quality, "_MOST_TEXTS", 2)
    one = Quality(EXACT)
    one.add(counts([(40, NONE)] * 3, texts=[1, 2, 3]), 3)
    assert one.add(counts([(40, NONE)], texts=[3]), 1).missed == 0.0
    assert one.add(counts([(40, NONE)], texts=[1]), 1).missed > 0.0


def test_equal_texts_are_certain() -> None:
    """Exact copies are found always, and say nothing about the bands."""
    one = Quality(ESTIMATE)
    sums = one.add(counts([(0, NONE)] * 9, settings=ESTIMATE), 20)
    assert sums == Sums(found=9.0)
    figures = one.figures()
    assert figures.recall.value == figures.precision.value == 1.0
    # None near the threshold was seen, which proves little.
    assert figures.recall.error > 0.01


def test_estimates_at_the_threshold_are_uncertain() -> None:
    """A candidate at the threshold counts half; far below, nothing; far above, one."""
    weighing = Weighing(ESTIMATE)
    nothing = np.zeros(NONE, dtype=np.int64)
    true = weighing.weights(nothing, Assumption(1.0, True, 1.0)).true
    at = int(np.abs(weighing.estimates - 0.8).argmin())
    assert true[weighing.class_of[at]] == pytest.approx(0.5, abs=0.1)
    assert true[weighing.class_of[10]] > 0.999
    assert true[weighing.class_of[200]] == true[weighing.class_of[NONE]] == 0.0


def test_a_refuted_candidate_may_be_a_miss() -> None:
    """Below the threshold it is refuted; at or above, it may be a false duplicate."""
    one = Quality(ESTIMATE)
    refuted, accepted = 49, 46
    sums = one.add(counts([(refuted, NONE), (accepted, NONE)], settings=ESTIMATE), 2)
    assert 0.2 < sums.refuted < 0.5
    assert 0.2 < sums.false < 0.5
    assert sums.found == pytest.approx(1.0 - sums.false)
    figures = one.figures()
    assert 0.5 < figures.precision.value < 0.8
    assert figures.precision.error > 0.3
    assert figures.recall.value < 0.7


def test_a_falling_density_lowers_the_probability() -> None:
    """Tweedie's formula: if lower similarities are more frequent, the truth is probably lower."""
    weighing = Weighing(ESTIMATE)
    falling = np.arange(NONE) * (np.arange(NONE) < 80)
    rising = np.arange(NONE, 0, -1) ** 4
    at = weighing.class_of[46]
    flat, low, high = (
        weighing.weights(near, Assumption(1.0, has_slope, 1.0)).true[at]
        for near, has_slope in ((falling, False), (falling, True), (rising, True))
    )
    assert low < flat
    assert low < high


def test_an_even_density_has_no_slope_next_to_similarity_one() -> None:
    """The interval is symmetric: it ends where similarity 1 is, on both sides of the threshold."""
    weighing = Weighing(DedupSettings(bands=9, rows=13, threshold=0.975))
    even = np.round(1e6 * weighing.found()).astype(np.int64)
    flat, sloped = (
        weighing.weights(even, Assumption(1.0, has_slope, 1.0)).true for has_slope in (False, True)
    )
    assert sloped == pytest.approx(flat, abs=0.005)


def test_at_threshold_one_there_is_no_slope() -> None:
    """The interval around the threshold is empty then."""
    weighing = Weighing(DedupSettings(threshold=1.0))
    near = np.ones(NONE, dtype=np.int64)
    weights = weighing.weights(near, Assumption(1.0, True, 1.0))
    assert weights.true[0] == 1.0
    assert weights.true[1] < 1.0


def test_texts_decide_near_the_threshold() -> None:
    """With exact verification a match near the threshold is certain."""
    weights = Weighing(EXACT).weights(np.zeros(NONE, dtype=np.int64), Assumption(1.0, True, 1.0))
    assert weights.true[Weighing(EXACT).class_of[46]] == 1.0


def test_fewer_shared_bands_than_expected_raise_the_misses() -> None:
    """If found pairs share few bands, more pairs share none."""
    few, many = Quality(EXACT), Quality(EXACT)
    one, other = (
        each.add(counts([(30, NONE)] * 8, shared=shared), 8)
        for each, shared in ((few, 1), (many, 6))
    )
    assert one.missed > other.missed > 0.0


def test_a_single_band_has_no_spread() -> None:
    """Its ratio has no error that could be measured."""
    settings = DedupSettings(bands=1, rows=4)
    one = Quality(settings)
    one.add(counts([(30, NONE)] * 8, settings=settings), 8)
    assert 0.0 < one.figures().recall.value < 1.0


def test_levels_divide_the_pairs() -> None:
    """They are from the threshold to 1, and lower levels have a lower recall."""
    one = Quality(ESTIMATE)
    one.add(counts([(unequal, NONE) for unequal in range(48)], settings=ESTIMATE), 48)
    figures = one.figures()
    assert sum(level.pairs for level in figures.levels) == figures.pairs.pairs == 48
    assert [level.low for level in figures.levels] == pytest.approx([0.8, 0.85, 0.9, 0.95])
    recalls = [level.recall.value for level in figures.levels]
    assert recalls == sorted(recalls)
    assert figures.levels[0].recall.error > figures.levels[-1].recall.error > 0.0


def test_old_documents_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are about the latest one to two generations."""
    monkeypatch.setattr(quality, "GENERATION", 10)
    one = Quality(ESTIMATE)
    for expected in (6, 12, 12, 12):
        one.add(counts([(5, NONE)] * 6, settings=ESTIMATE), 6)
        assert one.figures().documents == expected
        assert one.figures().pairs.pairs == expected


def test_many_values_are_divided_into_classes() -> None:
    """A class holds several numbers of unequal values; the last one holds no candidate."""
    weighing = Weighing(DedupSettings(variant="classic", num_perm=4000))
    assert weighing.classes <= 255
    assert weighing.class_of[0] == 0
    assert weighing.class_of[-1] == weighing.class_of[3000] == weighing.classes
    assert np.diff(weighing.class_of).min() == 0
    assert not weighing.is_match[-1]


def test_variance_of_a_pair() -> None:
    """By hand: a certain match adds (1 - h) / h^2, and an impossible one nothing."""
    weighing = Weighing(EXACT)
    weights = weighing.weights(np.zeros(NONE, dtype=np.int64), Assumption(1.0, True, 1.0))
    variances = missed_variances(weights, weighing.is_match)
    h = weights.found[40]
    assert variances[40] == pytest.approx((1 - h) / h**2)
    assert variances[0] == variances[-1] == 0.0


def test_the_probability_at_the_threshold_has_a_lower_bound() -> None:
    """Hopeless bands do not divide by zero."""
    weighing = Weighing(DedupSettings(bands=1, rows=200))
    assert weighing.hardest == 0.02
    assert weighing.found().min() == pytest.approx(0.02)
    assert weighing.hardest > Banding(1, 200).candidate_probability(0.8)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [(10, 10, 0.722, 1.0), (0, 10, 0.0, 0.278), (5, 10, 0.237, 0.763), (81, 263, 0.255, 0.366)],
)
def test_wilson(successes: int, count: int, low: float, high: float) -> None:
    """Known intervals; (81, 263) is an example of Newcombe 1998."""
    assert interval(successes, count) == pytest.approx((low, high), abs=5e-4)


def test_wilson_without_data() -> None:
    """Nothing is known."""
    assert all(map(math.isnan, interval(0, 0)))


def test_doubts_add_to_the_error() -> None:
    """They add as independent errors do."""
    figure = Figure(0.5, 0.03).with_doubts(0.04, 0.0)
    assert figure.value == 0.5
    assert figure.error == pytest.approx(0.05)


def test_the_precision_of_clear_duplicates_is_certain() -> None:
    """The doubts about it are differences, which vanish far from the threshold."""
    one = Quality(ESTIMATE)
    one.add(counts([(20, NONE)] * 50, settings=ESTIMATE), 50)
    assert one.figures().precision.error < 0.01


def test_both_generations_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The duplicates of the previous generation are still among those found."""
    monkeypatch.setattr(quality, "GENERATION", 10)
    one = Quality(ESTIMATE)
    for _ in range(2):
        one.add(counts([(0, NONE)] * 6, settings=ESTIMATE), 6)
    assert one.figures().sums.found == pytest.approx(12.0)


def test_the_variance_of_an_uncertain_match() -> None:
    """By hand: a pair at the threshold with probability p, and found with probability h."""
    unequal, weighing = 46, Weighing(ESTIMATE)
    one = Quality(ESTIMATE)
    sums = one.add(counts([(unequal, NONE)], settings=ESTIMATE), 1)
    ratio = (1 / 9) / weighing.expected[weighing.class_of[unequal]]
    p, h = sums.found, 1 - (1 - weighing.found()[unequal]) ** ratio
    assert 0.1 < p < 0.9
    expected = ((p * (1 - h)) ** 2 / h + p * (1 - h)) / h
    assert sums.missed_variance == pytest.approx(expected)


@pytest.mark.parametrize("settings", [ESTIMATE, EXACT, DedupSettings(bands=30, rows=5)])
def test_a_found_pair_shares_a_band_at_least(settings: DedupSettings) -> None:
    """So that the expected number of shared bands is one or more, and all of equal texts."""
    weighing, bands = Weighing(settings), settings.banding().bands
    shared = bands * weighing.expected[: weighing.class_of[46]]
    assert shared.min() >= 1.0
    assert shared[0] == pytest.approx(bands, rel=0.01)


@pytest.mark.parametrize(("threshold", "tolerance"), [(0.7, 0.15), (0.97, 0.5)])
@pytest.mark.parametrize("slope", [-12.0, 9.0])
def test_the_slope_of_a_known_density(threshold: float, tolerance: float, slope: float) -> None:
    """Tweedie: the density ``exp(slope * x)`` moves the mean by the slope times the variance."""
    settings = DedupSettings(threshold=threshold, bands=60, rows=2)
    weighing = Weighing(settings)
    offsets = weighing.estimates - threshold
    near = np.round(1e6 * np.exp(slope * offsets) * weighing.found()).astype(np.int64)
    flat, tilted = (
        weighing.weights(near, Assumption(1.0, has_slope, 1.0)).true for has_slope in (False, True)
    )
    error = max(SignatureCodec.of(settings.sketch_parameters()).standard_error(threshold), 1 / 512)
    normal = NormalDist()
    certain = (flat > 0.05) & (flat < 0.95)
    moves = [
        normal.inv_cdf(after) - normal.inv_cdf(before)
        for before, after in zip(flat[certain], tilted[certain], strict=True)
    ]
    assert moves == pytest.approx([slope * error] * len(moves), rel=tolerance)


def test_the_ratio_of_shared_bands() -> None:
    """It is the mean over the bands, with the standard error of a mean."""
    found = quality._Counts(1, 1, 4)  # noqa: SLF001 - figures show it only with other errors
    found.expected = 2.0
    found.shared = np.array([1.0, 2.0, 3.0, 2.0])
    assert found.ratio().value == pytest.approx(1.0)
    assert found.ratio().error == pytest.approx(stdev([0.5, 1.0, 1.5, 1.0]) / 2)
    single = quality._Counts(1, 1, 1)  # noqa: SLF001 - the same
    single.expected = 2.0
    assert single.ratio().error == 0.0
