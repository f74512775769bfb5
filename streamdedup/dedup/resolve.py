"""*Pure.* Candidates to verdicts, in order.

Rule 1: this module decides whether a document is a duplicate, by :mod:`streamdedup.dedup.rule`.
Rule 2: a verdict depends on the earlier documents and on the rule, never on where a batch begins.

Each bucket of a document therefore holds the documents of the index, then those that this batch has
kept before it. Only the newest ``bucket_size`` of them count, and only those inside the window. An
erased document keeps its place there, and matches nothing. A
position that occurs again is a replay, whether it first occurred before this batch or in it.

The window holds the newest ``window_documents`` kept documents. If ``window_ms`` is set, it holds
only documents whose event time differs by less than that, and which are not out of reach by the
clock of the stream (:mod:`streamdedup.dedup.clock`). The clock advances after each document.

With exact verification, the similarity of the texts decides if the estimate is within
``BORDERLINE`` standard errors of the threshold. The best candidates are compared until their texts
have ``COMPARED_BYTES``; the estimate decides about the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import (
    Candidates,
    DocumentColumns,
    IndexUpdate,
    JudgedVerdicts,
    Judgement,
    JudgementCounts,
    MatchColumns,
    Met,
    SketchedBatch,
)
from streamdedup.columns import F64, I64, Positions, Strings
from streamdedup.dedup.clock import (
    UNLIMITED,
    Allowances,
    Clock,
    bounded_ms,
    compared_ms,
    effective_ms,
)
from streamdedup.dedup.judge import (
    NO_PLACE,
    BatchArrays,
    BestArrays,
    Documents,
    Hits,
    JudgingState,
    RuleArrays,
    decide,
    run,
    shared_bands,
    words_of,
)
from streamdedup.dedup.rule import NO_LIMIT, limit_ms, which_near
from streamdedup.model import NO_TIMESTAMP
from streamdedup.settings.sections import Settings
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.texts import NOT_STORED, TextSimilarity, text_bytes

BORDERLINE = 2.0
"""The texts are compared if the estimate is this many standard errors from the threshold, or fewer;
docs/adr/0006-exact-verification.md has the measurements."""
COMPARED_BYTES = 4 * 1024**2
"""Bytes of candidates' texts, in UTF-8, after which no more are compared with one document; the
same ADR has the reasons."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What makes a duplicate; see the settings of the same names."""

    threshold: float
    bucket_size: int
    window_documents: int
    max_matches: int
    codec: SignatureCodec  # codec of the stored signatures
    shingling: Shingling | None = None  # of texts that are compared; None to use estimates only
    borderline: float = 0.0  # largest distance from the threshold at which texts are compared
    compared_bytes: int = COMPARED_BYTES
    window_ms: int = NO_LIMIT  # documents match only if their event times differ by less
    reach_ms: int = NO_LIMIT  # how far the clock passes an effective time until it is out of reach
    allowances: Allowances = UNLIMITED  # limits of effective times around the clock

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the rule of the settings."""
        dedup = settings.dedup
        parameters = dedup.sketch_parameters()
        codec = SignatureCodec.of(parameters)
        return cls(
            threshold=dedup.threshold,
            bucket_size=settings.index.bucket_size,
            window_documents=settings.index.window_documents,
            max_matches=settings.output.max_matches,
            codec=codec,
            shingling=parameters.shingling() if dedup.keeps_texts else None,
            borderline=BORDERLINE * codec.standard_error(dedup.threshold),
            window_ms=limit_ms(settings.index.window),
            reach_ms=limit_ms(settings.index.reach()),
            allowances=Allowances.from_settings(settings.index),
        )


def resolve(
    batch: SketchedBatch,
    candidates: Candidates,
    rule: Rule,
    next_number: int,
    clock: Clock,
    latest_ms: int | None = None,
) -> Judgement:
    """Judge a batch by the documents of the index that share a bucket with it.

    ``clock`` is that after the last judged document; it is not changed. ``latest_ms`` is the wall
    clock, if it bounds event times; a time that is too far ahead of it counts as this one. None if
    the clock of the stream bounds effective times.
    """
    if latest_ms is not None:
        times_ms = bounded_ms(batch.documents.event_times_ms, latest_ms, rule.allowances)
        batch = replace(batch, documents=replace(batch.documents, event_times_ms=times_ms))
        rule = replace(rule, allowances=rule.allowances._replace(ahead_ms=None))
    return _Judging(batch, candidates, rule, next_number, clock.copy()).judgement()


class _Judging:
    """The judgement of one batch: prepares the kernels' arguments, and reads their results."""

    def __init__(
        self,
        batch: SketchedBatch,
        candidates: Candidates,
        rule: Rule,
        next_number: int,
        clock: Clock,
    ) -> None:
        self._batch = batch
        self._candidates = candidates
        self._rule = rule
        self._next_number = next_number
        self._counts = JudgementCounts()
        self._clock = clock
        self._compared: dict[tuple[int, int], float] = {}  # similarities of texts, by row and place
        documents = batch.documents
        count, stored = len(documents), len(candidates.numbers)
        judged = candidates.already_judged | judged_within(batch)
        # A document that was judged before does not advance the clock.
        times_ms = documents.event_times_ms
        now_ms = clock.advance(np.where(judged, NO_TIMESTAMP, times_ms))
        self._effective_ms = effective_ms(times_ms, now_ms, rule.allowances)
        skipped = np.zeros(count, dtype=np.bool_)
        skipped[list(batch.blank | candidates.already_kept)] = True
        self._positions = Positions.concatenate(
            [candidates.documents.positions, documents.positions]
        )
        _, sources = self._positions.sources()
        self._mine = _comparable(documents, self._effective_ms, sources[stored:])
        self._stored = _comparable(
            candidates.documents, candidates.effective_times_ms, sources[:stored]
        )
        self._arrays = BatchArrays(
            skipped,
            judged,
            first_rows(documents.positions, judged),
            now_ms,
            candidates.buckets,
            candidates.leaders,
        )
        self._hits = hits_of(candidates)
        estimates = rule.codec.estimates()
        compares = rule.shingling is not None
        self._limits = RuleArrays(
            threshold=rule.threshold,
            bucket_size=rule.bucket_size,
            window_documents=rule.window_documents,
            window_ms=rule.window_ms,
            reach_ms=rule.reach_ms,
            first_number=next_number,
            bits=rule.codec.bits,
            estimates=estimates,
            near=compares & which_near(estimates, rule.threshold, rule.borderline),
            has_texts=compares,
        )
        self._state = self._new_state(count, stored)

    def _new_state(self, count: int, stored: int) -> JudgingState:
        values, shared = len(self._limits.estimates), self._candidates.shared
        columns = self._candidates.buckets.shape[1]
        # A document has no more candidates than its buckets hold.
        room = min(stored + count, columns * self._rule.bucket_size)
        return JudgingState(
            counters=np.zeros(3, dtype=np.int64),
            unequal=np.zeros(values, dtype=np.int64),
            accepted=np.zeros(values, dtype=np.int64),
            nearest=np.full((count, 2), values, dtype=np.int64),
            kept=np.zeros(1, dtype=np.int64),
            kept_rows=np.empty(count, dtype=np.int64),
            kept_index=np.full(count, -1, dtype=np.int64),
            newest=np.full(shared, -1, dtype=np.int64),
            older=np.empty((count, columns), dtype=np.int64),
            sizes=np.zeros(shared, dtype=np.int64),
            seen=np.zeros(stored + count, dtype=np.int64),
            found=np.empty(room, dtype=np.int64),
            differences=np.empty(room, dtype=np.int64),
            matches=BestArrays.of(count, self._rule.max_matches),
            refuted=BestArrays.of(count, 1),
        )

    def judgement(self) -> Judgement:
        """Judge all documents."""
        self._run()
        state, batch, counts = self._state, self._batch, self._counts
        kept_rows = state.kept_rows[: state.kept[0]]
        counts.candidates, counts.verified, counts.buckets_truncated = state.counters.tolist()
        counts.refuted = counts.candidates - counts.verified
        counts.similarities = self._limits.estimates
        counts.by_similarity = state.unequal
        counts.accepted = state.accepted
        counts.met = self._met()
        update = IndexUpdate(
            self._next_number,
            batch.documents.take(kept_rows),
            batch.ranges,
            effective_times_ms=self._effective_ms[kept_rows],
            clock=self._clock.state(),
        )
        matches, refuted = state.matches, state.refuted
        is_refuted = (matches.counts == 0) & (refuted.counts > 0)
        verdicts = JudgedVerdicts(
            batch,
            self._columns(matches),
            self._columns(refuted._replace(counts=is_refuted.astype(np.int64))),
        )
        return Judgement(verdicts, update, counts)

    def _columns(self, best: BestArrays) -> MatchColumns:
        """Return the ids, positions and ages of the best candidates."""
        stored, documents = self._candidates.documents, self._batch.documents
        given = np.arange(best.places.shape[1]) < best.counts[:, None]
        places = best.places[given]
        rows = np.repeat(np.arange(len(given)), best.counts)
        theirs = np.concatenate([stored.event_times_ms, documents.event_times_ms])[places]
        mine = documents.event_times_ms[rows]
        known = (mine != NO_TIMESTAMP) & (theirs != NO_TIMESTAMP)
        pairs = zip(rows.tolist(), places.tolist(), strict=True)
        return MatchColumns(
            ends=np.cumsum(best.counts),
            ids=Strings.concatenate([stored.ids, documents.ids]).take(places),
            positions=self._positions.take(places),
            estimates=best.estimates[given],
            jaccards=np.array([self._compared.get(pair, np.nan) for pair in pairs], np.float64),
            ages_s=np.where(known, (mine - theirs) / 1000, np.nan),
        )

    def _met(self) -> Met:
        """Return what the documents met that were judged for the first time."""
        state, documents = self._state, self._batch.documents
        has_met = state.nearest[:, 0] < len(self._limits.estimates)
        rows = np.flatnonzero(has_met & ~self._arrays.judged)
        is_duplicate = state.matches.counts[rows] > 0
        best = np.where(is_duplicate, state.matches.places[rows, 0], NO_PLACE)
        shared = shared_bands(rows, best, self._arrays, self._hits)
        # Copies of one text have the same last key.
        texts = documents.sketches.band_keys[rows, -1]
        return Met(state.nearest[rows], is_duplicate, shared, texts)

    def _run(self) -> None:
        """Judge all documents, and compare the texts of those that need it."""
        state, limits, batch = self._state, self._limits, self._arrays
        documents = self._mine, self._stored
        texts = None if self._rule.shingling is None else TextSimilarity(self._rule.shingling)
        row, found = run(0, *documents, batch, self._hits, limits, state)
        while texts is not None and found:
            similarities = limits.estimates[state.differences[:found]]
            self._compare_texts(row, found, texts, similarities)
            decide(row, found, similarities, batch, limits, state)
            row, found = run(row + 1, *documents, batch, self._hits, limits, state)

    def _compare_texts(
        self, row: int, found: int, texts: TextSimilarity, similarities: F64
    ) -> None:
        """Replace the similarities of candidates whose estimate is too near the threshold.

        The estimate stays for candidates whose text is not stored, and beyond ``compared_bytes``.
        """
        state, limits, counts = self._state, self._limits, self._counts
        differences, stored = state.differences[:found], len(self._candidates.numbers)
        near = np.flatnonzero(limits.near[differences])
        # The best first, ties to the earliest.
        in_order = near[np.lexsort((state.found[near], differences[near]))]
        of_batch, of_index = self._batch.documents.texts, self._candidates.documents.texts
        mine = of_batch[row]
        compared_bytes = 0
        for candidate in in_order.tolist():
            place = int(state.found[candidate])
            theirs = of_index[place] if place < stored else of_batch[place - stored]
            if NOT_STORED in (mine, theirs):
                counts.exact_without_text += 1
            elif compared_bytes >= self._rule.compared_bytes:
                counts.exact_over_budget += 1
            else:
                compared_bytes += text_bytes(theirs)
                jaccard = texts.jaccard(mine, theirs)
                similarities[candidate] = self._compared[row, place] = jaccard
                if jaccard >= self._rule.threshold:
                    counts.exact_confirmed += 1
                else:
                    counts.exact_refuted += 1


def _comparable(documents: DocumentColumns, effective_times_ms: I64, sources: I64) -> Documents:
    return Documents(
        signatures=words_of(documents.sketches.signatures),
        namespaces=documents.namespaces,
        compared_ms=compared_ms(documents.event_times_ms, effective_times_ms),
        effective_ms=effective_times_ms,
        sources=sources,
        offsets=documents.positions.offsets,
    )


def judged_within(batch: SketchedBatch) -> NDArray[np.bool_]:
    """Return which documents have an offset that an earlier record of the batch has reached."""
    sources, of_rows = batch.positions.sources()
    judged = np.zeros(len(of_rows), dtype=np.bool_)
    for source in range(len(sources)):
        rows = np.flatnonzero(of_rows == source)
        offsets = batch.positions.offsets[rows]
        judged[rows[1:]] = offsets[1:] <= np.maximum.accumulate(offsets)[:-1]
    return judged[batch.rows]


def first_rows(positions: Positions, judged: NDArray[np.bool_]) -> I64:
    """Return the row in which the position of a document that was judged before first occurs.

    ``(n,)`` int64; -1 for positions that were not judged before, and in the first row itself.
    """
    firsts = np.full(len(positions), -1, dtype=np.int64)
    if judged.any():
        _, of_rows = positions.sources()
        seen: dict[tuple[int, int], int] = {}
        places = zip(of_rows.tolist(), positions.offsets.tolist(), strict=True)
        for row, place in enumerate(places):
            first = seen.setdefault(place, row)
            if first != row and judged[row]:
                firsts[row] = first
    return firsts


def hits_of(candidates: Candidates) -> Hits:
    """Return the hits of a batch as the kernels need them."""
    numbers = candidates.numbers
    places = np.searchsorted(numbers, candidates.hit_numbers)
    if candidates.erased:
        erased = np.array(sorted(candidates.erased), dtype=np.int64)
        places = np.where(np.isin(candidates.hit_numbers, erased), -1, places)
    rows, columns = candidates.buckets.shape
    starts = np.zeros(rows * columns + 1, dtype=np.int64)
    cells = candidates.hit_rows * columns + candidates.hit_columns
    np.cumsum(np.bincount(cells, minlength=rows * columns), out=starts[1:])
    return Hits(starts, places, numbers)
