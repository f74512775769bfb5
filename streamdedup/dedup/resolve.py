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

from streamdedup.batches import (
    Candidates,
    DocumentColumns,
    IndexUpdate,
    JudgedVerdicts,
    Judgement,
    JudgementCounts,
    Matches,
    Met,
    SketchedBatch,
)
from streamdedup.columns import I64, Positions
from streamdedup.dedup.buckets import first_rows, hits_of, judged_within
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
    Documents,
    JudgingState,
    RuleArrays,
    decide,
    run,
    shared_bands,
    words_of,
)
from streamdedup.dedup.rule import NO_LIMIT, limit_ms, which_near
from streamdedup.dedup.similarity import TextSimilarity
from streamdedup.model import NO_TIMESTAMP
from streamdedup.settings.sections import Settings
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.texts import NOT_STORED, text_bytes

BORDERLINE = 2.0
"""The texts are compared if the estimate is this many standard errors from the threshold, or fewer;
docs/adr/0006-exact-verification.md has the measurements."""
COMPARED_BYTES = 4 * 1024**2
"""Bytes of candidates' texts, in UTF-8, after which no more are compared with one document; the
same ADR has the reasons."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What makes a duplicate; see the settings of the same names.

    Attributes:
        codec: codec of the stored signatures.
        shingling: how texts are cut into shingles to be compared; None to use estimates only.
        borderline: largest distance of an estimate from the threshold at which texts are compared.
        compared_bytes: bytes of texts after which no further one is compared for a document.
        window_ms: difference of event times from which on documents do not match, or ``NO_LIMIT``.
        reach_ms: how far the clock passes an effective time until the document is out of reach, or
            ``NO_LIMIT``.
        allowances: limits of effective times around the clock.
    """

    threshold: float
    bucket_size: int
    window_documents: int
    max_matches: int
    codec: SignatureCodec
    shingling: Shingling | None = None
    borderline: float = 0.0
    compared_bytes: int = COMPARED_BYTES
    window_ms: int = NO_LIMIT
    reach_ms: int = NO_LIMIT
    allowances: Allowances = UNLIMITED

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
    """Judge a batch.

    Args:
        batch: the sketched batch.
        candidates: the documents of the index that share a bucket with the batch.
        rule: what makes a duplicate.
        next_number: number of the next kept document.
        clock: the clock after the last judged document; it is not changed.
        latest_ms: the wall clock, if it bounds event times; a time that is too far ahead of it
            counts as this one. None if the clock of the stream bounds effective times.
    """
    if latest_ms is not None:
        times_ms = bounded_ms(batch.documents.event_times_ms, latest_ms, rule.allowances)
        batch = replace(batch, documents=replace(batch.documents, event_times_ms=times_ms))
        rule = replace(rule, allowances=rule.allowances._replace(ahead_ms=None))
    return _Judging(batch, candidates, rule, next_number, clock.copy()).judgement()


class _Judging:
    """The judgement of one batch: prepares the arguments of the kernels, and reads their results.

    Args:
        batch: the sketched batch.
        candidates: the documents of the index that share a bucket with the batch.
        rule: what makes a duplicate.
        next_number: number of the next kept document.
        clock: the clock after the last judged document; it is advanced.
    """

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
        documents = batch.documents
        count = len(documents)
        judged = candidates.already_judged | judged_within(batch)
        # A document that was judged before does not advance the clock.
        times_ms = documents.event_times_ms
        now_ms = clock.advance(np.where(judged, NO_TIMESTAMP, times_ms))
        self._effective_ms = effective_ms(times_ms, now_ms, rule.allowances)
        skipped = np.zeros(count, dtype=np.bool_)
        skipped[list(batch.blank | candidates.already_kept)] = True
        both = Positions.concatenate([candidates.documents.positions, documents.positions])
        _, sources = both.sources()
        stored = len(candidates.numbers)
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
        self._limits = self._limits_of(rule)
        self._state = self._new_state(count, stored)

    def _limits_of(self, rule: Rule) -> RuleArrays:
        estimates = rule.codec.estimates()
        compares = rule.shingling is not None
        return RuleArrays(
            threshold=rule.threshold,
            bucket_size=rule.bucket_size,
            window_documents=rule.window_documents,
            window_ms=rule.window_ms,
            reach_ms=rule.reach_ms,
            first_number=self._next_number,
            bits=rule.codec.bits,
            estimates=estimates,
            near=compares & which_near(estimates, rule.threshold, rule.borderline),
            has_texts=compares,
        )

    def _new_state(self, count: int, stored: int) -> JudgingState:
        most, shared = self._rule.max_matches, self._candidates.shared
        columns = self._candidates.buckets.shape[1]
        # A document has no more candidates than its buckets hold.
        room = min(stored + count, columns * self._rule.bucket_size)
        return JudgingState(
            counters=np.zeros(3, dtype=np.int64),
            unequal=np.zeros(len(self._limits.estimates), dtype=np.int64),
            accepted=np.zeros(len(self._limits.estimates), dtype=np.int64),
            nearest=np.full((count, 2), len(self._limits.estimates), dtype=np.int64),
            kept=np.zeros(1, dtype=np.int64),
            kept_rows=np.empty(count, dtype=np.int64),
            kept_index=np.full(count, -1, dtype=np.int64),
            newest=np.full(shared, -1, dtype=np.int64),
            older=np.empty((count, columns), dtype=np.int64),
            sizes=np.zeros(shared, dtype=np.int64),
            seen=np.zeros(stored + count, dtype=np.int64),
            found=np.empty(room, dtype=np.int64),
            differences=np.empty(room, dtype=np.int64),
            match_counts=np.zeros(count, dtype=np.int64),
            match_places=np.empty((count, most), dtype=np.int64),
            match_estimates=np.empty((count, most), dtype=np.float64),
            match_similarities=np.empty((count, most), dtype=np.float64),
            refuted_places=np.full(count, -1, dtype=np.int64),
            refuted_estimates=np.zeros(count, dtype=np.float64),
            refuted_similarities=np.full(count, -1.0, dtype=np.float64),
        )

    def judgement(self) -> Judgement:
        """Judge all documents."""
        compared = self._run()
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
        matches = Matches(
            state.match_counts,
            state.match_places,
            state.match_estimates,
            compared,
            self._candidates.documents,
        )
        refuted = Matches(
            ((state.match_counts == 0) & (state.refuted_places >= 0)).astype(np.int64),
            state.refuted_places[:, np.newaxis],
            state.refuted_estimates[:, np.newaxis],
            compared,
            self._candidates.documents,
        )
        return Judgement(JudgedVerdicts(batch, matches, refuted), update, counts)

    def _met(self) -> Met:
        """Return what the documents met that were judged for the first time."""
        state, documents = self._state, self._batch.documents
        has_met = state.nearest[:, 0] < len(self._limits.estimates)
        rows = np.flatnonzero(has_met & ~self._arrays.judged)
        is_duplicate = state.match_counts[rows] > 0
        best = np.where(is_duplicate, state.match_places[rows, 0], NO_PLACE)
        shared = shared_bands(rows, best, self._arrays, self._hits)
        # Copies of one text have the same last key.
        texts = documents.sketches.band_keys[rows, -1]
        return Met(state.nearest[rows], is_duplicate, shared, texts)

    def _run(self) -> dict[tuple[int, int], float]:
        """Judge all documents; return the similarities of texts, by row and place."""
        state, limits, batch = self._state, self._limits, self._arrays
        documents = self._mine, self._stored
        compared: dict[tuple[int, int], float] = {}
        texts = None if self._rule.shingling is None else TextSimilarity(self._rule.shingling)
        row, found = run(0, *documents, batch, self._hits, limits, state)
        while texts is not None and found:
            similarities = limits.estimates[state.differences[:found]]
            for candidate, jaccard in self._compare_texts(row, found, texts).items():
                similarities[candidate] = jaccard
                compared[row, int(state.found[candidate])] = jaccard
            decide(row, found, similarities, batch, limits, state)
            row, found = run(row + 1, *documents, batch, self._hits, limits, state)
        return compared

    def _compare_texts(self, row: int, found: int, texts: TextSimilarity) -> dict[int, float]:
        """Compare the texts of the candidates whose estimate is too near the threshold to decide.

        Returns:
            The similarity of the texts by the candidate's index; without candidates whose text is
            not stored, and those beyond ``compared_bytes``.
        """
        state, limits, counts = self._state, self._limits, self._counts
        differences = state.differences[:found]
        near = np.flatnonzero(limits.near[differences])
        # The best first, ties to the earliest.
        in_order = near[np.lexsort((state.found[near], differences[near]))]
        mine = self._batch.documents.texts[row]
        exact: dict[int, float] = {}
        compared_bytes = 0
        for candidate in in_order.tolist():
            theirs = self._text_at(int(state.found[candidate]))
            if NOT_STORED in (mine, theirs):
                counts.exact_without_text += 1
            elif compared_bytes >= self._rule.compared_bytes:
                counts.exact_over_budget += 1
            else:
                compared_bytes += text_bytes(theirs)
                jaccard = exact[candidate] = texts.jaccard(mine, theirs)
                if jaccard >= self._rule.threshold:
                    counts.exact_confirmed += 1
                else:
                    counts.exact_refuted += 1
        return exact

    def _text_at(self, place: int) -> bytes:
        stored = len(self._candidates.numbers)
        if place < stored:
            return self._candidates.documents.texts[place]
        return self._batch.documents.texts[place - stored]


def _comparable(documents: DocumentColumns, effective_times_ms: I64, sources: I64) -> Documents:
    """Return what the kernels compare of documents."""
    return Documents(
        signatures=words_of(documents.sketches.signatures),
        namespaces=documents.namespaces,
        compared_ms=compared_ms(documents.event_times_ms, effective_times_ms),
        effective_ms=effective_times_ms,
        sources=sources,
        offsets=documents.positions.offsets,
    )
