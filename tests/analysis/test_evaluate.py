"""The figures of an evaluation, against plain counting."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.evaluate import evaluate, find_valley
from streamdedup.analysis.report import EvaluationReport, as_json
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from streamdedup.sketch.bands import Banding
from streamdedup.sketch.normalize import PROFILES
from streamdedup.sketch.sketcher import Sketcher, namespace_hash
from tests.analysis.made_up import DOCUMENTS

BANDINGS = [Banding(8, 4), Banding(20, 2)]


@pytest.fixture(scope="module")
def settings() -> Settings:
    """Return settings with short signatures, which make mistakes."""
    return load_settings(dedup={"threshold": 0.7, "num_perm": 64, "recall": 0.95})


@pytest.fixture(scope="module")
def report(settings: Settings) -> EvaluationReport:
    """Return the report on the made-up documents."""
    return evaluate(Corpus(DOCUMENTS, rejected=3), settings, BANDINGS, floor=0.3)


def plain_jaccards() -> dict[tuple[int, int], float]:
    """Return the similarity of every pair that can be compared, by comparing all with all."""
    normalise = PROFILES["plain"]
    sets = []
    for document in DOCUMENTS:
        text = normalise(document.text)
        runs = (
            {text[start : start + 5] for start in range(max(1, len(text) - 4))} if text else set()
        )
        sets.append(runs)
    return {
        (one, two): len(sets[one] & sets[two]) / len(sets[one] | sets[two])
        for one, two in itertools.combinations(range(len(DOCUMENTS)), 2)
        if sets[one] and sets[two] and DOCUMENTS[one].namespace == DOCUMENTS[two].namespace
    }


@pytest.fixture(scope="module")
def jaccards() -> dict[tuple[int, int], float]:
    """Return the similarity of every pair that can be compared."""
    return plain_jaccards()


def test_the_nearest_pairs_are_on_both_sides(
    report: EvaluationReport, jaccards: dict[tuple[int, int], float]
) -> None:
    """Each list has the similarities that are nearest to the threshold, copies apart."""
    sides = {one: sorted({j for j in jaccards.values() if (j >= 0.7) == one}) for one in (0, 1)}
    shown = sorted({example.jaccard for example in report.above})
    assert shown == pytest.approx(sides[1][: len(shown)])
    shown = sorted({example.jaccard for example in report.below})
    assert shown == pytest.approx(sides[0][-len(shown) :])
    assert len(report.above) == len(report.below) == 5


@pytest.mark.parametrize(
    ("counts", "valley"),
    [
        pytest.param([90, 60, 20, 4, 4, 30, 70], (0.65, 0.75), id="a valley of two steps"),
        pytest.param([90, 60, 20, 0, 30, 0, 70], (0.65, 0.7), id="the first of two"),
        pytest.param([90, 60, 40, 30, 20, 10, 5], None, id="falling"),
        pytest.param([0, 0, 2, 4, 9, 30, 70], None, id="rising"),
        pytest.param([30, 31, 29, 28, 30, 27, 31], None, id="noise"),
        pytest.param([], None, id="no pairs"),
    ],
)
def test_a_valley_has_significantly_more_pairs_on_both_sides(
    counts: list[int], valley: tuple[float, float] | None
) -> None:
    """The histogram begins at the floor, in steps of 0.05."""
    values = 0.5 + 0.05 * np.arange(len(counts))
    assert find_valley(np.repeat(values, counts), 0.5) == valley
    # Pairs of a step that is cut by the floor do not count.
    assert find_valley(np.append(np.repeat(values, counts), [0.49] * 99), 0.47) == valley
    assert find_valley(np.repeat(values, counts), 0.92) is None


def plain_candidates(settings: Settings, banding: Banding) -> set[tuple[int, int]]:
    """Return the pairs that share a band, by comparing all with all."""
    dedup = settings.dedup.model_copy(update={"bands": banding.bands, "rows": banding.rows})
    sketcher = Sketcher(dedup.sketch_parameters())
    normalised = sketcher.normalise([document.text for document in DOCUMENTS])
    namespaces = np.array([namespace_hash(one.namespace) for one in DOCUMENTS], dtype=np.uint64)
    keys = sketcher.sketch(normalised, namespaces).band_keys[:, :-1]
    return {
        (one, two)
        for one, two in itertools.combinations(range(len(DOCUMENTS)), 2)
        if normalised[one] and normalised[two] and (keys[one] == keys[two]).any()
    }


def test_pairs_and_levels(report: EvaluationReport, jaccards: dict[tuple[int, int], float]) -> None:
    """All pairs are counted, and the pairs of each level above the floor."""
    assert report.documents == 261
    assert report.rejected == 3
    assert report.without_shingles == 1
    assert report.pairs == len(jaccards)
    assert [level.low for level in report.truth] == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    for level in report.truth:
        within = [
            j for j in jaccards.values() if level.low <= j < level.high or j == level.low == 1
        ]
        assert level.pairs == len(within)


@pytest.mark.parametrize("number", range(len(BANDINGS)))
def test_candidates(
    report: EvaluationReport,
    settings: Settings,
    jaccards: dict[tuple[int, int], float],
    number: int,
) -> None:
    """Each candidate is counted once, at the level of its true similarity."""
    found = plain_candidates(settings, BANDINGS[number])
    banding = report.bandings[number]
    assert banding.candidates == len(found) == sum(banding.histogram)
    assert banding.never_compared == pytest.approx(1 - len(found) / len(jaccards))
    for level in banding.levels:
        within = [
            pair
            for pair, j in jaccards.items()
            if level.low <= j < level.high or j == level.low == 1
        ]
        assert level.found == len(found.intersection(within))
        if level.pairs is not None:
            assert level.missed == len(within) - level.found
            assert level.expected is not None
            curve = [BANDINGS[number].candidate_probability(jaccards[pair]) for pair in within]
            assert level.expected == pytest.approx(sum(curve))


def test_verification_adds_up(report: EvaluationReport) -> None:
    """Every candidate is accepted or refuted, rightly or wrongly."""
    for banding in report.bandings:
        accepted = sum(level.accepted for level in banding.levels)
        assert banding.candidates == accepted + banding.refuted
        similar = [level for level in banding.levels if level.low >= report.threshold]
        assert banding.lost == sum(level.found - level.accepted for level in similar)
        assert banding.false_alarms == accepted - sum(level.accepted for level in similar)


def test_documents_as_the_stream_judges_them(
    report: EvaluationReport, settings: Settings, jaccards: dict[tuple[int, int], float]
) -> None:
    """Precision and recall of documents equal plain counts over the engine's verdicts."""
    for banding in report.bandings:
        dedup = settings.dedup.model_copy(update=banding.banding._asdict())
        with Deduplicator(settings.model_copy(update={"dedup": dedup})) as deduplicator:
            verdicts = deduplicator.process(DOCUMENTS)
        kept = [number for number, verdict in enumerate(verdicts) if verdict.kept]
        repeats = {
            later
            for later in range(len(DOCUMENTS))
            if any(jaccards.get((one, later), 0.0) >= 0.7 for one in kept if one < later)
        }
        dropped = {number for number, verdict in enumerate(verdicts) if not verdict.kept}
        score = banding.documents
        assert score is not None
        assert (score.repeats, score.dropped) == (len(repeats), len(dropped))
        assert score.right == len(repeats & dropped)
        assert score.right >= score.named_right > 0
        assert score.recall == pytest.approx(len(repeats & dropped) / len(repeats))
        assert score.precision == pytest.approx(len(repeats & dropped) / len(dropped))


def test_examples_are_the_worst(
    report: EvaluationReport, jaccards: dict[tuple[int, int], float]
) -> None:
    """Misses are sorted from the most similar pair, false alarms from the least similar."""
    number_of = {document.id: number for number, document in enumerate(DOCUMENTS)}
    for banding in report.bandings:
        for example in (*banding.misses, *banding.alarms):
            one, two = (number_of[name] for name in example.ids)
            assert one < two
            assert jaccards[one, two] == pytest.approx(example.jaccard)
        misses = [example.jaccard for example in banding.misses]
        alarms = [example.jaccard for example in banding.alarms]
        assert misses == sorted(misses, reverse=True)
        assert alarms == sorted(alarms)
        assert all(jaccard >= 0.7 for jaccard in misses)
        assert all(jaccard < 0.7 for jaccard in alarms)
    assert any(banding.misses for banding in report.bandings)
    assert any(banding.alarms for banding in report.bandings)


def test_error_of_the_estimate(report: EvaluationReport) -> None:
    """The estimate is nearly unbiased, and its error is near the theoretical standard error."""
    assert [error.low for error in report.errors] == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    for error in report.errors:
        assert abs(error.bias) < 4 * error.theory / error.pairs**0.5 + 0.02
        assert error.deviation < 1.5 * error.theory


def test_background(report: EvaluationReport) -> None:
    """The similarity of unrelated documents is measured, and bands are proposed for it."""
    background = report.background
    assert 0 < background.mean < 0.1
    assert background.mean <= background.effective < report.floor
    assert background.proposal.candidate_probability(report.threshold) >= 0.95


def test_more_values_than_configured(settings: Settings) -> None:
    """A banding that needs more values than the settings have gets them."""
    found = evaluate(Corpus(DOCUMENTS[:40]), settings, [Banding(30, 5)])
    assert found.bandings[0].num_perm == 150


def test_report_can_be_json(report: EvaluationReport) -> None:
    """A whole report can be written as JSON, including derived figures."""
    found = json.loads(json.dumps(as_json(report)))
    assert found["bandings"][0]["banding"] == {"bands": 8, "rows": 4}
    assert 0 < found["bandings"][0]["documents"]["recall"] <= 1
    assert found["bandings"][0]["levels"][-1]["missed"] == 0
