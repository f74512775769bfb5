"""*Pure.* Candidates to verdicts, in order.

Rule 1: this module decides whether a document is a duplicate, and no other module does.
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

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import (
    Candidates,
    DocumentColumns,
    IndexUpdate,
    Judgement,
    JudgementCounts,
    SketchedBatch,
)
from streamdedup.dedup.buckets import hits_by_row, judged_within, shared_buckets
from streamdedup.dedup.clock import (
    UNLIMITED,
    Allowances,
    Clock,
    Times,
    bounded_ms,
    is_out_of_reach,
)
from streamdedup.dedup.similarity import TextSimilarity
from streamdedup.model import NO_TIMESTAMP, Match, Outcome, Position, Verdict
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import milliseconds
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.texts import NOT_STORED, text_bytes

F64 = NDArray[np.float64]

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
        window_ms: difference of event times from which on documents do not match; None for no
            limit.
        reach_ms: how far the clock passes an effective time until the document is out of reach;
            None for no limit.
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
    window_ms: int | None = None
    reach_ms: int | None = None
    allowances: Allowances = UNLIMITED

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the rule of the settings."""
        dedup = settings.dedup
        parameters = dedup.sketch_parameters()
        codec = SignatureCodec.of(parameters)
        window, reach = settings.index.window, settings.index.reach()
        return cls(
            threshold=dedup.threshold,
            bucket_size=settings.index.bucket_size,
            window_documents=settings.index.window_documents,
            max_matches=settings.output.max_matches,
            codec=codec,
            shingling=parameters.shingling() if dedup.keeps_texts else None,
            borderline=BORDERLINE * codec.standard_error(dedup.threshold),
            window_ms=None if window is None else milliseconds(window),
            reach_ms=None if reach is None else milliseconds(reach),
            allowances=Allowances.from_settings(settings.index),
        )

    def holds_time(self, time_ms: int, other: Times, now_ms: int) -> bool:
        """Tell whether a kept document is in the window by time.

        Args:
            time_ms: the time by which the document in question is compared.
            other: the times of the kept document.
            now_ms: the clock of the stream.
        """
        if self.window_ms is None:
            return True
        return abs(time_ms - other.compared_ms) < self.window_ms and not is_out_of_reach(
            other.effective_ms, now_ms, self.reach_ms
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
    judging = _Judging(batch, candidates, rule, next_number, clock.copy())
    of_documents = [judging.judge(row) for row in range(len(batch.documents))]
    update = IndexUpdate(
        next_number,
        batch.documents.take(judging.kept_rows),
        batch.ranges,
        effective_times_ms=np.array(judging.kept_effective_ms, dtype=np.int64),
        clock=judging.clock.state(),
    )
    return Judgement(_in_record_order(batch, of_documents), update, judging.counts)


def _in_record_order(batch: SketchedBatch, of_documents: list[Verdict]) -> list[Verdict]:
    """Return the verdicts on all records: those on documents, and the rejections."""
    verdicts = dict(zip(batch.rows, of_documents, strict=True))
    for record, rejection in batch.rejections.items():
        position = batch.positions[record]
        verdicts[record] = Verdict(Outcome.REJECTED, "", position, rejection=rejection)
    return [verdicts[record] for record in range(len(batch.positions))]


class _Judging:
    """The state of one judgement: the documents kept so far, and their buckets."""

    def __init__(
        self,
        batch: SketchedBatch,
        candidates: Candidates,
        rule: Rule,
        next_number: int,
        clock: Clock,
    ) -> None:
        self.counts = JudgementCounts()
        self.kept_rows: list[int] = []
        self.kept_effective_ms: list[int] = []
        self.clock = clock
        self._event_times_ms: list[int] = batch.documents.event_times_ms.tolist()
        self._stored_times_ms: list[int] = candidates.documents.event_times_ms.tolist()
        self._stored_effective_ms: list[int] = candidates.effective_times_ms.tolist()
        self._documents = batch.documents
        self._blank = batch.blank
        self._candidates = candidates
        self._rule = rule
        self._first_number = next_number
        self._hits = hits_by_row(candidates)
        self._stored_rows = {number: row for row, number in enumerate(candidates.numbers.tolist())}
        judged = candidates.already_judged | judged_within(batch)
        self._judged: list[bool] = judged.tolist()
        self._kept_positions: set[Position] = set()
        self._shared = shared_buckets(batch.documents.sketches.band_keys)
        self._kept_in_bucket: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._texts = None if rule.shingling is None else TextSimilarity(rule.shingling)

    def judge(self, row: int) -> Verdict:
        """Judge one document; must be called in order."""
        is_compared = row not in self._blank and not self._already_kept(row)
        matches = self._matches(row) if is_compared else ()
        if not self._judged[row]:
            if is_compared and not matches:
                self._keep(row)
            self.clock.advance(self._event_times_ms[row])
        return self._verdict(row, matches)

    def _already_kept(self, row: int) -> bool:
        if row in self._candidates.already_kept:
            return True
        return self._judged[row] and self._documents.positions[row] in self._kept_positions

    def _keep(self, row: int) -> None:
        number = self._first_number + len(self.kept_rows)
        self.kept_rows.append(row)
        self.kept_effective_ms.append(self._effective_ms(row))
        self._kept_positions.add(self._documents.positions[row])
        for bucket in self._shared.get(row, ()):
            self._kept_in_bucket[bucket].append(number)

    def _verdict(self, row: int, matches: tuple[Match, ...]) -> Verdict:
        documents = self._documents
        return Verdict(
            Outcome.DUPLICATE if matches else Outcome.KEPT,
            documents.ids[row],
            documents.positions[row],
            self._event_times_ms[row],
            matches,
        )

    def _matches(self, row: int) -> tuple[Match, ...]:
        if row not in self._hits and row not in self._shared:
            return ()
        numbers = self._numbers(row)
        if not numbers:
            return ()
        sources = self._look_up(row, numbers)
        if not sources:
            return ()
        others = [(documents, other) for documents, rows in sources for other in rows]
        signature = self._documents.sketches.signatures[row]
        estimates = np.concatenate(
            [
                self._rule.codec.estimate_jaccard(signature, documents.sketches.signatures[rows])
                for documents, rows in sources
            ]
        )
        exact = self._compare_texts(row, others, estimates)
        similarities = estimates.copy()
        similarities[list(exact)] = list(exact.values())
        self._count(estimates, similarities, exact)
        best = sorted(
            (-similarity, candidate)
            for candidate, similarity in enumerate(similarities.tolist())
            if similarity >= self._rule.threshold
        )
        return tuple(
            self._match(row, *others[candidate], float(estimates[candidate]), exact.get(candidate))
            for _, candidate in best[: self._rule.max_matches]
        )

    def _compare_texts(
        self, row: int, others: list[tuple[DocumentColumns, int]], estimates: F64
    ) -> dict[int, float]:
        """Compare the texts of the candidates whose estimate is too near the threshold to decide.

        Args:
            row: the document.
            others: its ``m`` candidates.
            estimates: their estimated similarity, ``(m,)`` float64.

        Returns:
            The similarity of the texts by the candidate's index; without candidates whose text is
            not stored, and those beyond ``compared_bytes``.
        """
        if self._texts is None:
            return {}
        exact = {}
        compared_bytes = 0
        near = np.flatnonzero(np.abs(estimates - self._rule.threshold) <= self._rule.borderline)
        for candidate in near[np.argsort(-estimates[near], kind="stable")].tolist():
            documents, other = others[candidate]
            mine, theirs = self._documents.texts[row], documents.texts[other]
            if NOT_STORED in (mine, theirs):
                self.counts.exact_without_text += 1
            elif compared_bytes >= self._rule.compared_bytes:
                self.counts.exact_over_budget += 1
            else:
                compared_bytes += text_bytes(theirs)
                exact[candidate] = self._texts.jaccard(mine, theirs)
        return exact

    def _numbers(self, row: int) -> list[int]:
        """Return the numbers of the documents in a document's buckets, ascending."""
        oldest = self._first_number + len(self.kept_rows) - self._rule.window_documents
        size = self._rule.bucket_size
        stored = self._hits.get(row, {})
        fresh = {
            bucket[0]: self._kept_in_bucket.get(bucket, []) for bucket in self._shared.get(row, ())
        }
        numbers: set[int] = set()
        for column in stored.keys() | fresh.keys():
            bucket = stored.get(column, []) + fresh.get(column, [])[-size:]
            if len(bucket) >= size:
                self.counts.buckets_truncated += 1
            numbers.update(bucket[-size:])
        numbers -= self._candidates.erased
        return sorted(number for number in numbers if number >= oldest)

    def _look_up(self, row: int, numbers: list[int]) -> list[tuple[DocumentColumns, list[int]]]:
        """Return the rows of ascending numbers: those in the index, then those in the batch."""
        numbers = self._in_window(row, numbers)
        stored = [self._stored_rows[number] for number in numbers if number < self._first_number]
        fresh = [self.kept_rows[number - self._first_number] for number in numbers[len(stored) :]]
        comparable = [
            (documents, [other for other in rows if self._is_comparable(row, documents, other)])
            for documents, rows in ((self._candidates.documents, stored), (self._documents, fresh))
        ]
        return [(documents, rows) for documents, rows in comparable if rows]

    def _in_window(self, row: int, numbers: list[int]) -> list[int]:
        """Return the numbers that are in reach, and inside the window of the document."""
        if self._rule.window_ms is None or not numbers:
            return numbers
        mine, now_ms = Times(self._event_times_ms[row], self._effective_ms(row)), self.clock.now_ms
        return [
            number
            for number in numbers
            if self._rule.holds_time(mine.compared_ms, self._times(number), now_ms)
        ]

    def _effective_ms(self, row: int) -> int:
        return self.clock.effective_ms(self._event_times_ms[row], self._rule.allowances)

    def _times(self, number: int) -> Times:
        fresh = number - self._first_number
        if fresh >= 0:
            return Times(self._event_times_ms[self.kept_rows[fresh]], self.kept_effective_ms[fresh])
        stored = self._stored_rows[number]
        return Times(self._stored_times_ms[stored], self._stored_effective_ms[stored])

    def _is_comparable(self, row: int, others: DocumentColumns, other: int) -> bool:
        """Tell whether the other has the same namespace and, for a replay, is an earlier one."""
        documents = self._documents
        if others.namespaces[other] != documents.namespaces[row]:
            return False
        if not self._judged[row]:
            return True
        mine, theirs = documents.positions[row], others.positions[other]
        return mine[:2] != theirs[:2] or theirs.offset < mine.offset

    def _match(
        self,
        row: int,
        others: DocumentColumns,
        other: int,
        estimate: float,
        jaccard: float | None,
    ) -> Match:
        mine = self._event_times_ms[row]
        theirs = int(others.event_times_ms[other])
        known = NO_TIMESTAMP not in (mine, theirs)
        return Match(
            id=others.ids[other],
            position=others.positions[other],
            jaccard_estimate=estimate,
            age_s=(mine - theirs) / 1000 if known else None,
            jaccard=jaccard,
        )

    def _count(self, estimates: F64, similarities: F64, exact: dict[int, float]) -> None:
        threshold = self._rule.threshold
        verified = int(np.count_nonzero(similarities >= threshold))
        confirmed = sum(jaccard >= threshold for jaccard in exact.values())
        self.counts.candidates += len(similarities)
        self.counts.verified += verified
        self.counts.refuted += len(similarities) - verified
        self.counts.exact_confirmed += confirmed
        self.counts.exact_refuted += len(exact) - confirmed
        self.counts.similarities.extend(estimates.tolist())
