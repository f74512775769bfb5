"""*Blocking* (reads the corpus, and judges it against an index on disk). How good the sketches are.

The exact similarity of every pair comes first (:mod:`streamdedup.analysis.exact`), over the same
shingles. Then each way to cut the signatures is held against it: which pairs become candidates,
what the estimate says of them, and what the stream would have done with the documents.

Rule 1: texts with the same set of shingles count as one while pairs are looked for, and as many as
they are where pairs are counted; so a text that comes a thousand times costs nothing.
Rule 2: nothing holds all pairs of a corpus: candidates are looked at in portions, and where there
are more than :data:`MOST_PAIRS` it is an error that says what to do.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from streamdedup.analysis import exact
from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.exact import F64, NO_SET, Pairs, ShingleSets
from streamdedup.analysis.pairs import (
    Estimator,
    by_level,
    emit,
    pairs_in_runs,
    pairs_of_equals,
    root,
    share_a_band,
    unite,
)
from streamdedup.analysis.report import (
    BINS,
    Background,
    BandingReport,
    ClusterScore,
    DocumentScore,
    Error,
    Example,
    Level,
    Report,
    Truth,
)
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.errors import InputError
from streamdedup.model import I64, U64, Outcome, Sketches
from streamdedup.settings.sections import Settings
from streamdedup.sketch.bands import Banding, choose_bands
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.sketcher import Sketcher, namespace_hash

MOST_PAIRS = 200_000_000
"""Pairs of different sets that a report looks at."""

_PORTION = 1_000_000
_EXAMPLES = 5
_BATCH = 1000
_RANDOM_PAIRS = 200_000
_ESTIMATED_PAIRS = 500_000
"""Pairs whose estimate is held against the truth; of more, about as many at random."""
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_HARDLY = 1e-6
"""Background similarity that is planned for where none is found."""

Progress = Callable[[str, int, int], None]


def evaluate(
    corpus: Corpus,
    settings: Settings,
    bandings: Sequence[Banding],
    floor: float = 0.5,
    on_progress: Progress | None = None,
) -> Report:
    """Hold the sketches of a corpus against the truth.

    Args:
        corpus: the documents, in the order of the stream.
        settings: how they are compared.
        bandings: ways to cut the signatures.
        floor: pairs below this similarity are not counted; lowered to the threshold.
        on_progress: told what is being done, how far it is, and how far it goes.

    Raises:
        InputError: there are too many similar pairs.
    """
    return _Evaluation(corpus, settings, floor, on_progress).report(bandings)


class _Evaluation:
    """The corpus, the truth about it, and the steps of a report."""

    def __init__(
        self, corpus: Corpus, settings: Settings, floor: float, on_progress: Progress | None
    ) -> None:
        self._corpus = corpus
        self._settings = settings
        self._threshold = settings.dedup.threshold
        self._floor = min(floor, self._threshold)
        self._tell = on_progress or (lambda _what, _done, _all: None)
        self._seconds: dict[str, float] = {}
        p = settings.dedup.sketch_parameters()
        started = perf_counter()
        normalised = Sketcher(p).normalise([document.text for document in corpus.documents])
        namespaces = np.array(
            [namespace_hash(document.namespace) for document in corpus.documents], dtype=np.uint64
        )
        self._sets = exact.collect(normalised, namespaces, p.shingling())
        self._seconds["shingles"] = perf_counter() - started
        self._counts = np.bincount(
            self._sets.set_of[self._sets.set_of != NO_SET], minlength=len(self._sets)
        )
        self._first_of = _first_of_each(self._sets)
        self._namespaces = namespaces[self._first_of]
        self._texts = [normalised[at] for at in self._first_of.tolist()]
        self._truth = self._join()

    def report(self, bandings: Sequence[Banding]) -> Report:
        """Return the report."""
        dedup = self._settings.dedup
        reports = [self._of_banding(banding) for banding in bandings]
        return Report(
            documents=len(self._corpus),
            rejected=self._corpus.rejected,
            without_shingles=int(np.count_nonzero(self._sets.set_of == NO_SET)),
            distinct=len(self._sets),
            pairs=self._all_pairs(),
            floor=self._floor,
            threshold=self._threshold,
            profile=_profile_name(dedup.profile),
            shingles=f"{dedup.shingle_size} {dedup.shingle_unit}s",
            variant=dedup.variant,
            verify=dedup.verify,
            corpus_documents=dedup.corpus_documents,
            truth=[
                Truth(level.low, level.high, level.pairs)
                for level in self._levels()
                if level.pairs is not None
            ],
            errors=self._errors(),
            background=self._background(),
            bandings=reports,
            seconds={name: round(value, 3) for name, value in self._seconds.items()},
        )

    def _join(self) -> Pairs:
        started = perf_counter()
        try:
            pairs = exact.similar_pairs(
                self._sets,
                self._floor,
                MOST_PAIRS,
                lambda done, of: self._tell("exact similarities", done, of),
            )
        except exact.TooManyPairs:
            raise InputError(
                f"more than {MOST_PAIRS:,} pairs have a similarity of {self._floor:g} or more; "
                "give a higher --floor, or --limit"
            ) from None
        pairs = pairs.where(self._namespaces[pairs.first] == self._namespaces[pairs.second])
        self._seconds["join"] = perf_counter() - started
        return pairs

    def _all_pairs(self) -> int:
        """Return how many pairs of documents of one namespace have shingles to compare."""
        _, at = np.unique(self._namespaces, return_inverse=True)
        sizes = np.bincount(at, weights=self._counts).astype(np.int64).tolist()
        return sum(size * (size - 1) // 2 for size in sizes)

    def _copies(self) -> int:
        """Return how many pairs of documents have the same set of shingles."""
        return int((self._counts * (self._counts - 1) // 2).sum())

    def _weights(self, pairs: Pairs) -> I64:
        """Return how many pairs of documents each pair of sets stands for."""
        return np.asarray(self._counts[pairs.first] * self._counts[pairs.second], dtype=np.int64)

    def _levels(self) -> list[Level]:
        edges = self._edges()
        counts = by_level(self._truth.jaccard, self._weights(self._truth), edges)
        levels = [
            Level(low, high, count if low >= self._floor else None)
            for (low, high), count in zip(itertools.pairwise(edges), counts, strict=True)
        ]
        return [*levels, Level(1.0, 1.0, self._copies())]

    def _edges(self) -> list[float]:
        """Return the bounds of the levels: tenths, the floor and the threshold."""
        tenths = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
        return sorted({*tenths, self._floor, self._threshold})

    def _sketch(self, settings: Settings) -> Sketches:
        sketcher = Sketcher(settings.dedup.sketch_parameters())
        return sketcher.sketch(self._texts, self._namespaces)

    def _of_banding(self, banding: Banding) -> BandingReport:
        started = perf_counter()
        settings = _with_banding(self._settings, banding)
        sketches = self._sketch(settings)
        report = BandingReport(banding, settings.dedup.num_perm, self._all_pairs(), self._levels())
        self._count_copies(report)
        codec = SignatureCodec.of(settings.dedup.sketch_parameters())
        estimate = Estimator(codec, sketches)
        alarms: list[tuple[float, float, int, int]] = []
        joined = np.arange(len(self._sets))
        for pairs in self._candidates(sketches.band_keys[:, :-1], banding):
            estimates = estimate(pairs)
            accepted = estimates >= self._threshold
            unite(joined, pairs.first[accepted], pairs.second[accepted])
            self._count_candidates(report, pairs, estimates)
            alarms = self._worst_alarms(alarms, pairs, estimates)
        self._count_expected(report)
        report.alarms = [self._example(a, b, j, e) for j, e, a, b in alarms]
        report.misses = self._misses(sketches, estimate)
        report.clusters = self._clusters(joined)
        report.documents = self._judge(settings)
        report.seconds = perf_counter() - started
        return report

    def _count_copies(self, report: BandingReport) -> None:
        copies = self._copies()
        report.candidates += copies
        report.histogram[-1] += copies
        report.levels[-1].found = report.levels[-1].accepted = copies

    def _candidates(self, keys: U64, banding: Banding) -> Iterator[Pairs]:
        """Yield the pairs of sets that share a band, each once, in portions."""
        orders = [np.argsort(keys[:, band], kind="stable") for band in range(keys.shape[1])]
        total = sum(pairs_in_runs(keys[order, band]) for band, order in enumerate(orders))
        if total > MOST_PAIRS:
            raise InputError(
                f"{banding} would make up to {total:,} candidate pairs; give more rows, or --limit"
            )
        width = max(_PORTION, len(keys))
        for band, order in enumerate(orders):
            self._tell(f"candidates of {banding}", band + 1, len(orders))
            at = 0
            while at < len(order):
                first, second, at = emit(keys, order, band, at, width)
                if len(first):
                    yield Pairs(first, second, exact.jaccards(self._sets, first, second))

    def _count_candidates(self, report: BandingReport, pairs: Pairs, estimates: F64) -> None:
        weights = self._weights(pairs)
        accepted = estimates >= self._threshold
        similar = pairs.jaccard >= self._threshold
        edges = self._edges()
        report.candidates += int(weights.sum())
        report.refuted += int(weights[~accepted].sum())
        report.false_alarms += int(weights[accepted & ~similar].sum())
        report.lost += int(weights[similar & ~accepted].sum())
        found = by_level(pairs.jaccard, weights, edges)
        passed = by_level(pairs.jaccard[accepted], weights[accepted], edges)
        for level, more, more_accepted in zip(report.levels[:-1], found, passed, strict=True):
            level.found += more
            level.accepted += more_accepted
        bars = np.minimum((pairs.jaccard * BINS).astype(np.int64), BINS - 1)
        for bar, count in enumerate(np.bincount(bars, weights=weights, minlength=BINS).tolist()):
            report.histogram[bar] += int(count)

    def _worst_alarms(
        self, known: list[tuple[float, float, int, int]], pairs: Pairs, estimates: F64
    ) -> list[tuple[float, float, int, int]]:
        at = np.flatnonzero((estimates >= self._threshold) & (pairs.jaccard < self._threshold))
        rows = zip(
            pairs.jaccard[at].tolist(),
            estimates[at].tolist(),
            pairs.first[at].tolist(),
            pairs.second[at].tolist(),
            strict=True,
        )
        return heapq.nsmallest(_EXAMPLES, itertools.chain(known, rows))

    def _misses(self, sketches: Sketches, estimate: Estimator) -> list[Example]:
        truth = self._truth
        similar = truth.where(truth.jaccard >= self._threshold)
        keys = sketches.band_keys[:, :-1]
        missed = similar.where(~share_a_band(keys, similar))
        worst = np.argsort(-missed.jaccard, kind="stable")[:_EXAMPLES]
        shown = Pairs(missed.first[worst], missed.second[worst], missed.jaccard[worst])
        rows = zip(*(column.tolist() for column in (*shown, estimate(shown))), strict=True)
        return [self._example(*row) for row in rows]

    def _count_expected(self, report: BandingReport) -> None:
        """Fill in how many pairs of each level the S-curve lets expect."""
        agreement = self._truth.jaccard**report.banding.rows
        with np.errstate(divide="ignore"):
            probability = -np.expm1(report.banding.bands * np.log1p(-agreement))
        weighted = probability * self._weights(self._truth)
        edges = np.array(self._edges())
        place = np.searchsorted(edges, self._truth.jaccard, side="right") - 1
        sums = np.bincount(place, weights=weighted, minlength=len(edges) - 1).tolist()
        for level, expected in zip(report.levels[:-1], sums, strict=True):
            level.expected = expected if level.pairs is not None else None
        report.levels[-1].expected = float(self._copies())

    def _clusters(self, joined: I64) -> ClusterScore | None:
        """Hold the clusters against the labels.

        Args:
            joined: for each set another of its cluster, or itself; see :func:`_unite`.
        """
        if self._corpus.labels is None:
            return None
        roots = np.array([root(joined, at) for at in range(len(joined))], dtype=np.int64)
        set_of = self._sets.set_of
        # Documents without text are each alone.
        alone = len(roots) + np.arange(len(set_of))
        clusters = np.where(set_of == NO_SET, alone, np.append(roots, 0)[set_of])
        _, groups = np.unique(np.array(self._corpus.labels), return_inverse=True)
        _, clusters = np.unique(clusters, return_inverse=True)
        labelled, together = pairs_of_equals(groups), pairs_of_equals(clusters)
        both = pairs_of_equals(groups * len(clusters) + clusters)
        by_chance = labelled * together / max(1, len(groups) * (len(groups) - 1) // 2)
        most = (labelled + together) / 2
        index = (both - by_chance) / (most - by_chance) if most > by_chance else 1.0
        return ClusterScore(labelled, together, both, index)

    def _example(self, first: int, second: int, jaccard: float, estimate: float) -> Example:
        one, two = sorted((int(self._first_of[first]), int(self._first_of[second])))
        documents = self._corpus.documents
        return Example(
            (documents[one].id, documents[two].id),
            (documents[one].text, documents[two].text),
            jaccard,
            estimate,
        )

    def _errors(self) -> list[Error]:
        """Hold the estimate of every pair, candidate or not, against the truth."""
        estimate = Estimator(
            SignatureCodec.of(self._settings.dedup.sketch_parameters()),
            self._sketch(self._settings),
        )
        truth = self._truth
        if len(truth) > _ESTIMATED_PAIRS:
            random = np.random.default_rng(1)
            truth = truth.where(random.random(len(truth)) < _ESTIMATED_PAIRS / len(truth))
        off = estimate(truth) - truth.jaccard
        errors = []
        for low, high in itertools.pairwise(self._edges()):
            within = (truth.jaccard >= low) & (truth.jaccard < high)
            if not within.any():
                continue
            theory = np.mean([estimate.standard_error(j) ** 2 for j in truth.jaccard[within]])
            errors.append(
                Error(
                    low,
                    high,
                    int(np.count_nonzero(within)),
                    float(off[within].mean()),
                    float(np.sqrt((off[within] ** 2).mean())),
                    math.sqrt(float(theory)),
                )
            )
        return errors

    def _background(self) -> Background:
        dedup = self._settings.dedup
        sample = self._random_similarities()
        rows = dedup.banding().rows
        for _ in range(3):  # the similarity that counts depends a little on the rows
            effective = max(_HARDLY, float(np.mean(sample**rows) ** (1 / rows)))
            proposal = choose_bands(
                dedup.threshold, dedup.recall, dedup.num_perm, dedup.corpus_documents, effective
            )
            rows = proposal.rows
        return Background(
            pairs=len(sample),
            mean=float(sample.mean()),
            quantiles={f"{q:g}": float(np.quantile(sample, q)) for q in _QUANTILES},
            effective=effective,
            proposal=proposal,
            random_candidates=proposal.random_candidates(dedup.corpus_documents, effective),
        )

    def _random_similarities(self) -> F64:
        """Return the similarity of random pairs of documents, without those above the floor."""
        documents = np.flatnonzero(self._sets.set_of != NO_SET)
        if len(documents) < 2:  # noqa: PLR2004 - a pair
            return np.zeros(1)
        random = np.random.default_rng(1)
        chosen = self._sets.set_of[random.choice(documents, (2, _RANDOM_PAIRS))]
        first, second = np.sort(chosen, axis=0)
        found = exact.jaccards(self._sets, first, second)
        below: F64 = found[found < self._floor]
        return below if len(below) else np.zeros(1)

    def _judge(self, settings: Settings) -> DocumentScore:
        """Let the stream judge the documents in order, and score what it did."""
        documents = self._corpus.documents
        originals = np.full(len(documents), -1, dtype=np.int64)
        with Deduplicator(settings) as deduplicator:
            for start in range(0, len(documents), _BATCH):
                self._tell("judging documents", start, len(documents))
                verdicts = deduplicator.process(documents[start : start + _BATCH])
                for at, verdict in enumerate(verdicts, start):
                    if verdict.outcome is Outcome.DUPLICATE and verdict.original is not None:
                        originals[at] = verdict.original.position.offset
        return self._score(originals)

    def _score(self, originals: I64) -> DocumentScore:
        """Score the verdicts.

        Args:
            originals: for each dropped document, which one it is said to repeat; else -1.
        """
        set_of = self._sets.set_of
        dropped = originals >= 0
        repeats = self._repeats(dropped)
        mine = set_of[dropped]
        theirs = set_of[originals[dropped]]
        known = (mine != NO_SET) & (theirs != NO_SET)
        first, second = np.sort([mine[known], theirs[known]], axis=0)
        named = exact.jaccards(self._sets, first, second) >= self._threshold
        return DocumentScore(
            documents=len(originals),
            repeats=int(np.count_nonzero(repeats)),
            dropped=int(np.count_nonzero(dropped)),
            right=int(np.count_nonzero(repeats & dropped)),
            named_right=int(np.count_nonzero(named)),
        )

    def _repeats(self, dropped: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Tell which documents truly have an earlier kept one at or above the threshold."""
        set_of = self._sets.set_of
        never = len(dropped)
        kept = np.flatnonzero(~dropped & (set_of != NO_SET))
        first_kept = np.full(len(self._sets), never, dtype=np.int64)
        np.minimum.at(first_kept, set_of[kept], kept)
        earliest = first_kept.copy()
        near = self._truth.where(self._truth.jaccard >= self._threshold)
        np.minimum.at(earliest, near.first, first_kept[near.second])
        np.minimum.at(earliest, near.second, first_kept[near.first])
        of_document = np.append(earliest, never)[set_of]
        repeats: NDArray[np.bool_] = of_document < np.arange(len(dropped))
        return repeats


def _profile_name(profile: str | Sequence[str]) -> str:
    """Name a profile, or the steps that one is composed of."""
    return profile if isinstance(profile, str) else ", ".join(profile)


def _with_banding(settings: Settings, banding: Banding) -> Settings:
    """Return the settings with these bands, and with as many values as they take."""
    update = {
        "bands": banding.bands,
        "rows": banding.rows,
        "num_perm": max(settings.dedup.num_perm, banding.values),
    }
    return settings.model_copy(update={"dedup": settings.dedup.model_copy(update=update)})


def _first_of_each(sets: ShingleSets) -> I64:
    """Return the first text of each set."""
    first = np.full(len(sets), -1, dtype=np.int64)
    known = np.flatnonzero(sets.set_of != NO_SET)[::-1]
    first[sets.set_of[known]] = known
    return first
