"""*Pure.* Candidates to verdicts, in order.

Rule 1: everything that decides whether a document is a duplicate stands here.
Rule 2: a verdict depends on the documents before it and on the rule, never on where a batch begins.

So a document meets each of its buckets as if it had come alone: what the index holds, then what
this batch has kept before it, cut to the newest ``bucket_size``, cut to the window. And a position
that comes again is a replay wherever it came first: before this batch, or in it.

The window is one of number, the newest ``window_documents`` kept ones, and where ``window_ms`` is
set also one of time: effective times less than that apart, either way. The clock that effective
times depend on (:mod:`streamdedup.dedup.clock`) goes on with each kept document of the batch.

With exact verification the similarity of the texts themselves decides where the estimate is near
the threshold: within ``BORDERLINE`` standard errors, above and below.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streamdedup.dedup.clock import Clock
from streamdedup.dedup.similarity import TextSimilarity
from streamdedup.model import (
    NO_TIMESTAMP,
    U64,
    Candidates,
    DocumentColumns,
    IndexUpdate,
    Judgement,
    JudgementCounts,
    Match,
    Outcome,
    Position,
    SketchedBatch,
    Verdict,
)
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import milliseconds
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.texts import NOT_STORED

F64 = NDArray[np.float64]

BORDERLINE = 2.0
"""Standard errors of the estimate, at a similarity of the threshold, within which the texts are
compared; docs/adr/0006-exact-verification.md has the measurements."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What makes a duplicate; see the settings of the same names.

    Attributes:
        codec: how the signatures are stored.
        shingling: what the shingles of texts are, to compare these; None to go by estimates alone.
        borderline: distance of an estimate from the threshold up to which texts are compared.
        window_ms: how far apart effective times must not be; None for no limit.
    """

    threshold: float
    bucket_size: int
    window_documents: int
    max_matches: int
    codec: SignatureCodec
    shingling: Shingling | None = None
    borderline: float = 0.0
    window_ms: int | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the rule that the settings describe."""
        dedup = settings.dedup
        parameters = dedup.sketch_parameters()
        codec = SignatureCodec.of(parameters)
        window = settings.index.window
        return cls(
            threshold=dedup.threshold,
            bucket_size=settings.index.bucket_size,
            window_documents=settings.index.window_documents,
            max_matches=settings.output.max_matches,
            codec=codec,
            shingling=parameters.shingling() if dedup.keeps_texts else None,
            borderline=BORDERLINE * codec.standard_error(dedup.threshold),
            window_ms=None if window is None else milliseconds(window),
        )


def resolve(
    batch: SketchedBatch, candidates: Candidates, rule: Rule, next_number: int, clock: Clock
) -> Judgement:
    """Judge a batch.

    Args:
        batch: the sketched batch.
        candidates: what the index holds for its documents.
        rule: what makes a duplicate.
        next_number: number that the next kept document gets.
        clock: the clock after the last kept document; it is left as it is.
    """
    bench = _Bench(batch, candidates, rule, next_number, clock.copy())
    of_documents = [bench.judge(row) for row in range(len(batch.documents))]
    update = IndexUpdate(
        next_number,
        batch.documents.take(bench.kept_rows),
        batch.ranges,
        effective_times_ms=np.array(bench.kept_times_ms, dtype=np.int64),
        clock_ms=clock.now_ms,
    )
    return Judgement(_in_record_order(batch, of_documents), update, bench.counts)


def _in_record_order(batch: SketchedBatch, of_documents: list[Verdict]) -> list[Verdict]:
    verdicts = dict(zip(batch.rows, of_documents, strict=True))
    for place, rejection in batch.rejections.items():
        position = batch.positions[place]
        verdicts[place] = Verdict(Outcome.REJECTED, "", position, rejection=rejection)
    return [verdicts[place] for place in range(len(batch.positions))]


class _Bench:
    """The state of one judgement: what this batch has kept so far, and in which buckets."""

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
        self.kept_times_ms: list[int] = []
        self._clock = clock
        self._event_times_ms: list[int] = batch.documents.event_times_ms.tolist()
        self._stored_times_ms: list[int] = candidates.effective_times_ms.tolist()
        self._documents = batch.documents
        self._blank = batch.blank
        self._candidates = candidates
        self._rule = rule
        self._first_number = next_number
        self._hits = _hits_by_row(candidates)
        self._places = {number: at for at, number in enumerate(candidates.numbers.tolist())}
        judged = candidates.already_judged | _judged_within(batch)
        self._judged: list[bool] = judged.tolist()
        self._kept_positions: set[Position] = set()
        self._shared = _shared_buckets(batch.documents.sketches.band_keys)
        self._kept_in_bucket: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._texts = None if rule.shingling is None else TextSimilarity(rule.shingling)

    def judge(self, row: int) -> Verdict:
        """Judge one document; must be called in order."""
        if row in self._blank or self._already_kept(row):
            return self._verdict(row, ())
        matches = self._matches(row)
        if not matches and not self._judged[row]:
            self._keep(row)
        return self._verdict(row, matches)

    def _already_kept(self, row: int) -> bool:
        if row in self._candidates.already_kept:
            return True
        return self._judged[row] and self._documents.positions[row] in self._kept_positions

    def _keep(self, row: int) -> None:
        number = self._first_number + len(self.kept_rows)
        event_time_ms = self._event_times_ms[row]
        self.kept_rows.append(row)
        self.kept_times_ms.append(self._clock.effective_ms(event_time_ms))
        self._clock.keep(number, event_time_ms)
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
        found = self._look_up(row, numbers)
        if not found:
            return ()
        rows = [(place, at) for place, ats in found for at in ats]
        signature = self._documents.sketches.signatures[row]
        estimates = np.concatenate(
            [
                self._rule.codec.estimate_jaccard(signature, place.sketches.signatures[ats])
                for place, ats in found
            ]
        )
        exact = self._compare_texts(row, rows, estimates)
        similarities = estimates.copy()
        similarities[list(exact)] = list(exact.values())
        self._count(estimates, similarities, exact)
        best = sorted(
            (-similarity, place)
            for place, similarity in enumerate(similarities.tolist())
            if similarity >= self._rule.threshold
        )
        return tuple(
            self._match(row, *rows[place], float(estimates[place]), exact.get(place))
            for _, place in best[: self._rule.max_matches]
        )

    def _compare_texts(
        self, row: int, others: list[tuple[DocumentColumns, int]], estimates: F64
    ) -> dict[int, float]:
        """Compare the texts where the estimate is too near the threshold to decide.

        Args:
            row: the document.
            others: its ``m`` candidates.
            estimates: their estimated similarity, ``(m,)``.

        Returns:
            The similarity of the texts by the candidate's place; those that cannot be compared are
            left out.
        """
        if self._texts is None:
            return {}
        found = {}
        near = np.abs(estimates - self._rule.threshold) <= self._rule.borderline
        for place in np.flatnonzero(near).tolist():
            documents, other = others[place]
            mine, theirs = self._documents.texts[row], documents.texts[other]
            if NOT_STORED in (mine, theirs):
                self.counts.exact_without_text += 1
            else:
                found[place] = self._texts.jaccard(mine, theirs)
        return found

    def _numbers(self, row: int) -> list[int]:
        """Return the numbers in the document's buckets, ascending."""
        oldest = self._first_number + len(self.kept_rows) - self._rule.window_documents
        size = self._rule.bucket_size
        stored = self._hits.get(row, {})
        fresh = {
            bucket[0]: self._kept_in_bucket.get(bucket, []) for bucket in self._shared.get(row, ())
        }
        numbers: set[int] = set()
        for column in stored.keys() | fresh.keys():
            bucket = stored.get(column, []) + fresh.get(column, [])
            if len(bucket) >= size:
                self.counts.buckets_truncated += 1
            numbers.update(bucket[-size:])
        return sorted(number for number in numbers if number >= oldest)

    def _look_up(self, row: int, numbers: list[int]) -> list[tuple[DocumentColumns, list[int]]]:
        """Find the documents of ascending numbers: first those of the index, then the batch's."""
        numbers = self._in_window(row, numbers)
        stored = [self._places[number] for number in numbers if number < self._first_number]
        fresh = [self.kept_rows[number - self._first_number] for number in numbers[len(stored) :]]
        found = [
            (place, [at for at in ats if self._comparable(row, place, at)])
            for place, ats in ((self._candidates.documents, stored), (self._documents, fresh))
        ]
        return [(place, ats) for place, ats in found if ats]

    def _in_window(self, row: int, numbers: list[int]) -> list[int]:
        """Leave out the numbers whose effective time is too far from the document's."""
        window_ms = self._rule.window_ms
        if window_ms is None or not numbers:
            return numbers
        mine = self._clock.effective_ms(self._event_times_ms[row])
        return [number for number in numbers if abs(mine - self._time_ms(number)) < window_ms]

    def _time_ms(self, number: int) -> int:
        """Return the effective time of a candidate, as it counts now."""
        fresh = number - self._first_number
        stored = (
            self.kept_times_ms[fresh] if fresh >= 0 else self._stored_times_ms[self._places[number]]
        )
        return self._clock.settlement.seen_ms(number, stored)

    def _comparable(self, row: int, others: DocumentColumns, other: int) -> bool:
        """Whether the other is of the same namespace and, for a replay, really an earlier one."""
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


def _judged_within(batch: SketchedBatch) -> NDArray[np.bool_]:
    """Tell which documents have a position that an earlier record of the batch has passed."""
    judged = []
    next_offsets: dict[tuple[str, int], int] = {}
    for topic, partition, offset in batch.positions:
        known = next_offsets.get((topic, partition), 0)
        judged.append(offset < known)
        next_offsets[topic, partition] = max(known, offset + 1)
    return np.array(judged, dtype=np.bool_)[batch.rows]


def _hits_by_row(candidates: Candidates) -> dict[int, dict[int, list[int]]]:
    """Group the hits: document -> column -> numbers, ascending."""
    hits: dict[int, dict[int, list[int]]] = {}
    columns = zip(
        candidates.hit_rows.tolist(),
        candidates.hit_columns.tolist(),
        candidates.hit_numbers.tolist(),
        strict=True,
    )
    for row, column, number in columns:
        hits.setdefault(row, {}).setdefault(column, []).append(number)
    return hits


def _shared_buckets(band_keys: U64) -> dict[int, list[tuple[int, int]]]:
    """Find the buckets that several documents of the batch fall into: document -> buckets."""
    shared: dict[int, list[tuple[int, int]]] = defaultdict(list)
    in_order = np.sort(band_keys.T, axis=1)
    repeating = np.any(in_order[:, 1:] == in_order[:, :-1], axis=1)
    for column in np.flatnonzero(repeating).tolist():
        keys = band_keys[:, column]
        _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        for row in np.flatnonzero(counts[inverse] > 1).tolist():
            shared[row].append((column, int(inverse[row])))
    return shared
