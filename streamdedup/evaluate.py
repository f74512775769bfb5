"""*Blocking* (reads the corpus, and judges it against an index on disk). How good the sketches are.

The exact similarity of every pair is computed first (:mod:`streamdedup.exact`), over the same
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from streamdedup import exact
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.errors import InputError
from streamdedup.exact import F64, NO_SET, Pairs, ShingleSets
from streamdedup.files.lines import LineReader
from streamdedup.formats.records import Decoder, Refusal
from streamdedup.model import I64, U64, Document, Outcome, Position, Record, Sketches
from streamdedup.settings.sections import Settings
from streamdedup.sketch.bands import Banding, choose_bands
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.sketcher import Sketcher, namespace_hash

MOST_PAIRS = 200_000_000
"""Pairs of different sets that a report looks at."""
BINS = 50
"""Bars of the histogram of candidates, each as wide as the others."""

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


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents to evaluate on, in order.

    Attributes:
        rejected: lines that are no documents.
        labels: for each document the name of the group that people put it into, if they did.
    """

    documents: list[Document]
    rejected: int = 0
    labels: list[str] | None = None

    def __len__(self) -> int:
        return len(self.documents)


@dataclass(frozen=True, slots=True)
class Example:
    """Two documents of which the sketches say something wrong."""

    ids: tuple[str, str]
    texts: tuple[str, str]
    jaccard: float
    estimate: float


@dataclass(slots=True)
class Level:
    """What became of the pairs whose true similarity lies in ``[low, high)``; 1 has its own level.

    Attributes:
        pairs: how many there are; None below the floor, where they are not counted.
        found: how many of them were candidates.
        expected: how many the S-curve lets expect.
        accepted: candidates whose estimate reaches the threshold.
    """

    low: float
    high: float
    pairs: int | None
    found: int = 0
    expected: float | None = None
    accepted: int = 0

    @property
    def missed(self) -> int | None:
        """Pairs that were never compared."""
        return None if self.pairs is None else self.pairs - self.found


@dataclass(frozen=True, slots=True)
class Truth:
    """How many pairs have a true similarity in ``[low, high)``; 1 has its own level."""

    low: float
    high: float
    pairs: int


@dataclass(frozen=True, slots=True)
class Error:
    """The error of the estimate on pairs whose true similarity lies in ``[low, high)``.

    Attributes:
        deviation: root mean square of the error.
        theory: what independent permutations would have at these similarities.
    """

    low: float
    high: float
    pairs: int
    bias: float
    deviation: float
    theory: float


@dataclass(frozen=True, slots=True)
class DocumentScore:
    """What the stream did with the documents, held against their true similarity.

    Attributes:
        repeats: documents with an earlier kept one at or above the threshold.
        dropped: documents that were judged duplicates.
        right: documents that are both.
        named_right: dropped documents whose named original really is that similar.
    """

    documents: int
    repeats: int
    dropped: int
    right: int
    named_right: int

    @property
    def precision(self) -> float:
        """Share of the dropped documents that repeat a kept one."""
        return self.right / self.dropped if self.dropped else 1.0

    @property
    def recall(self) -> float:
        """Share of the documents that repeat a kept one that were dropped."""
        return self.right / self.repeats if self.repeats else 1.0


@dataclass(frozen=True, slots=True)
class ClusterScore:
    """Documents joined by accepted pairs, held against the groups that people made.

    Attributes:
        labelled: pairs of documents in one group.
        joined: pairs of documents in one cluster.
        both: pairs that are in one group and in one cluster.
        adjusted_rand_index: agreement of groups and clusters; 0 is that of chance (Hubert and
            Arabie 1985).
    """

    labelled: int
    joined: int
    both: int
    adjusted_rand_index: float

    @property
    def precision(self) -> float:
        """Share of the joined pairs that people put together."""
        return self.both / self.joined if self.joined else 1.0

    @property
    def recall(self) -> float:
        """Share of the pairs that people put together that are joined."""
        return self.both / self.labelled if self.labelled else 1.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.both / max(1, self.joined + self.labelled)


@dataclass(slots=True)
class BandingReport:
    """What one way to cut the signatures did.

    Attributes:
        pairs: all pairs of documents that could be compared.
        candidates: pairs that share a band.
        refuted: candidates whose estimate is below the threshold.
        false_alarms: candidates whose estimate reaches the threshold, and that are below it.
        lost: candidates at or above the threshold that the estimate takes for less.
        histogram: candidates by true similarity, in :data:`BINS` equal bars.
        misses: the most similar pairs that share no band.
        alarms: the least similar pairs whose estimate reaches the threshold.
        clusters: where the corpus has labels.
    """

    banding: Banding
    num_perm: int
    pairs: int
    levels: list[Level]
    candidates: int = 0
    refuted: int = 0
    false_alarms: int = 0
    lost: int = 0
    histogram: list[int] = field(default_factory=lambda: [0] * BINS)
    misses: list[Example] = field(default_factory=list)
    alarms: list[Example] = field(default_factory=list)
    documents: DocumentScore | None = None
    clusters: ClusterScore | None = None
    seconds: float = 0.0

    @property
    def never_compared(self) -> float:
        """Share of all pairs that are no candidates."""
        return 1.0 - self.candidates / self.pairs if self.pairs else 1.0

    @property
    def refuted_share(self) -> float:
        """Share of the candidates that were compared in vain."""
        return self.refuted / self.candidates if self.candidates else 0.0


@dataclass(frozen=True, slots=True)
class Background:
    """How similar unrelated documents are, from random pairs below the floor.

    Attributes:
        mean: of their similarity.
        quantiles: the similarity that such a share of them stays below.
        effective: the one similarity that, were all pairs so similar, would give as many random
            candidates as the real ones do, with the rows of the proposal.
        proposal: the bands that follow from it.
        random_candidates: unrelated documents that a lookup would meet with these.
    """

    pairs: int
    mean: float
    quantiles: dict[str, float]
    effective: float
    proposal: Banding
    random_candidates: float


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found out about a corpus."""

    documents: int
    rejected: int
    without_shingles: int
    distinct: int
    pairs: int
    floor: float
    threshold: float
    profile: str
    shingles: str
    variant: str
    verify: str
    corpus_documents: int
    truth: list[Truth]
    errors: list[Error]
    background: Background
    bandings: list[BandingReport]
    seconds: dict[str, float]


def read_corpus(
    paths: Iterable[str],
    settings: Settings,
    limit: int | None = None,
    label_field: str | None = None,
) -> Corpus:
    """Read JSON Lines files into memory.

    Args:
        paths: files, plain or packed; ``-`` is standard input.
        settings: ``records`` and ``limits`` matter here.
        limit: read no more documents.
        label_field: dotted path of the group that people put a document into; a document without
            it is in a group of its own.

    Raises:
        InputError: a file cannot be read, or there is nothing in them.
    """
    decoder = Decoder(settings.records, settings.limits)
    # A label is read as an id is: a document without one has its position.
    labelling = settings.records.model_copy(update={"id_field": label_field})
    label_of = Decoder(labelling, settings.limits).decode
    documents: list[Document] = []
    labels: list[str] = []
    rejected = 0
    for record in _records(paths, settings.limits.value_bytes):
        if limit is not None and len(documents) >= limit:
            break
        try:
            document = decoder.decode(record)
            if label_field is not None:
                labels.append(label_of(record).id)
        except Refusal:
            rejected += 1
        else:
            documents.append(document)
    if not documents:
        raise InputError(f"there are no documents to evaluate on ({rejected} lines are rejected)")
    return Corpus(documents, rejected, None if label_field is None else labels)


def _records(paths: Iterable[str], most_bytes: int) -> Iterator[Record]:
    for path in paths:
        reader = LineReader(path, most_bytes)
        try:
            while (line := reader.read()) is not None:
                if line.content.strip():
                    yield Record(Position(reader.name, 0, line.number + 1), line.content)
        finally:
            reader.close()


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
        counts = _by_level(self._truth.jaccard, self._weights(self._truth), edges)
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
        estimate = _Estimator(codec, sketches)
        alarms: list[tuple[float, float, int, int]] = []
        joined = np.arange(len(self._sets))
        for pairs in self._candidates(sketches.band_keys[:, :-1], banding):
            estimates = estimate(pairs)
            accepted = estimates >= self._threshold
            _unite(joined, pairs.first[accepted], pairs.second[accepted])
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
        total = sum(_pairs_in_runs(keys[order, band]) for band, order in enumerate(orders))
        if total > MOST_PAIRS:
            raise InputError(
                f"{banding} would make up to {total:,} candidate pairs; give more rows, or --limit"
            )
        width = max(_PORTION, len(keys))
        for band, order in enumerate(orders):
            self._tell(f"candidates of {banding}", band + 1, len(orders))
            at = 0
            while at < len(order):
                first, second, at = _emit(keys, order, band, at, width)
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
        found = _by_level(pairs.jaccard, weights, edges)
        passed = _by_level(pairs.jaccard[accepted], weights[accepted], edges)
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

    def _misses(self, sketches: Sketches, estimate: _Estimator) -> list[Example]:
        truth = self._truth
        similar = truth.where(truth.jaccard >= self._threshold)
        keys = sketches.band_keys[:, :-1]
        missed = similar.where(~_share_a_band(keys, similar))
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
        roots = np.array([_root(joined, at) for at in range(len(joined))], dtype=np.int64)
        set_of = self._sets.set_of
        # Documents without text are each alone.
        alone = len(roots) + np.arange(len(set_of))
        clusters = np.where(set_of == NO_SET, alone, np.append(roots, 0)[set_of])
        _, groups = np.unique(np.array(self._corpus.labels), return_inverse=True)
        _, clusters = np.unique(clusters, return_inverse=True)
        labelled, together = _pairs_of_equals(groups), _pairs_of_equals(clusters)
        both = _pairs_of_equals(groups * len(clusters) + clusters)
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
        estimate = _Estimator(
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


class _Estimator:
    """Estimates the similarity of pairs of sets from their stored signatures."""

    def __init__(self, codec: SignatureCodec, sketches: Sketches) -> None:
        self._codec = codec
        self._signatures = sketches.signatures

    def __call__(self, pairs: Pairs) -> F64:
        """Return the estimate of each pair."""
        estimates = np.empty(len(pairs))
        order = np.argsort(pairs.first, kind="stable")
        first = pairs.first[order]
        starts = np.flatnonzero(np.diff(first, prepend=-1)).tolist()
        for start, stop in itertools.pairwise([*starts, len(first)]):
            rows = order[start:stop]
            estimates[rows] = self._codec.estimate_jaccard(
                self._signatures[first[start]], self._signatures[pairs.second[rows]]
            )
        return estimates

    def standard_error(self, jaccard: float) -> float:
        """Return the deviation that theory lets expect."""
        return self._codec.standard_error(jaccard)


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as what JSON can say."""
    return _plain(report)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """Turn dataclasses into mappings, with their properties."""
    if isinstance(value, Banding):
        return {"bands": value.bands, "rows": value.rows}
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if not hasattr(value, "__dataclass_fields__"):
        return value
    properties = [name for name, one in vars(type(value)).items() if isinstance(one, property)]
    return {
        name: _plain(getattr(value, name)) for name in [*value.__dataclass_fields__, *properties]
    }


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


def _by_level(jaccard: F64, weights: I64, edges: Sequence[float]) -> list[int]:
    """Sum the weights of the pairs of each level; identical sets belong to none of them."""
    place = np.searchsorted(np.array(edges), jaccard, side="right") - 1
    sums = np.bincount(place, weights=weights, minlength=len(edges))
    return [int(one) for one in sums[: len(edges) - 1].tolist()]


def _pairs_in_runs(ordered: U64) -> int:
    """Return how many pairs of equal keys there are among keys in order."""
    bounds = np.flatnonzero(np.diff(ordered)) + 1
    lengths = np.diff(np.concatenate(([0], bounds, [len(ordered)])))
    return int((lengths * (lengths - 1) // 2).sum())


def _pairs_of_equals(names: I64) -> int:
    """Return how many pairs of documents have the same name."""
    _, counts = np.unique(names, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())


def _share_a_band(keys: U64, pairs: Pairs) -> NDArray[np.bool_]:
    shared = np.zeros(len(pairs), dtype=np.bool_)
    for band in range(keys.shape[1]):
        shared |= keys[pairs.first, band] == keys[pairs.second, band]
    return shared


@numba.njit(cache=True, nogil=True)
def _emit(keys, order, band, start, width):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Pair up what shares this band and none before it, from a place in the order on."""
    first = np.empty(width, dtype=np.int64)
    second = np.empty(width, dtype=np.int64)
    count = 0
    at = start
    end = start
    while at < len(order):
        # Where the run of equal keys ends, once for all of the run.
        if end <= at:
            end = at + 1
            while end < len(order) and keys[order[end], band] == keys[order[at], band]:
                end += 1
        if count + end - at > width:
            break
        for other in range(at + 1, end):
            a, b = min(order[at], order[other]), max(order[at], order[other])
            known = False
            for before in range(band):
                if keys[a, before] == keys[b, before]:
                    known = True
                    break
            if not known:
                first[count] = a
                second[count] = b
                count += 1
        at += 1
    return first[:count].copy(), second[:count].copy(), at


@numba.njit(cache=True, nogil=True)
def _root(joined, at):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    while joined[at] != at:
        joined[at] = joined[joined[at]]
        at = joined[at]
    return at


@numba.njit(cache=True, nogil=True)
def _unite(joined, first, second):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Join the clusters of each pair; each set leads to the smallest of its cluster."""
    for at in range(len(first)):
        one, two = _root(joined, first[at]), _root(joined, second[at])
        joined[max(one, two)] = min(one, two)
