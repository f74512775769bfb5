"""*Pure.* Compares sampled documents exactly with recent kept ones, without any sketch.

Texts are decoded, normalised and cut into shingles as for a sketch, and nothing else is shared with
it: neither values, nor bands, nor the index. So this sees every kind of miss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import DUPLICATE, KEPT, Verdicts
from streamdedup.columns import F64, I64, U64, Positions, RecordColumns
from streamdedup.dedup.resolve import BORDERLINE
from streamdedup.dedup.rule import is_near, limit_ms, which_in_window
from streamdedup.formats.objects import Refusal
from streamdedup.formats.records import Decoder
from streamdedup.formats.schemas import FRAME_HEADER, NO_SCHEMAS, Schema
from streamdedup.model import NO_TIMESTAMP, Document, Headers, Position
from streamdedup.settings.sections import Settings
from streamdedup.sketch.sketcher import Sketcher, namespace_hash
from streamdedup.sketch.texts import shingle_sets, similarities

Result = Literal["found", "wrong", "missed", "refuted", "alone"]
"""What became of a sampled document: a duplicate that repeats a recent kept document, or one whose
original is recent and does not reach the threshold; a kept one that repeats a recent one, without a
common bucket or with an estimate below the threshold; one of which this cannot be told."""
BLOCK = 8
"""Consecutive offsets that are sampled together, so that texts are prepared once for all."""
DOCUMENTS = 2_000
"""Most kept documents that a sampled one is compared with."""
VALUES_BYTES = 4 * 1024**2
"""Most bytes of the values of these documents."""
_GOLDEN, _FIRST, _SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def is_sampled(positions: Positions, one_in: int) -> NDArray[np.bool_]:
    """Return which documents are sampled, one in so many, at least 1: ``(n,)`` bool.

    Of each stretch of ``one_in`` blocks of offsets, one block is sampled. The hash, splitmix64 of
    partition and stretch, decides which, so that each offset is sampled with the same probability
    (stratified sampling). A replay samples the same documents.
    """
    blocks, parts = (positions.offsets // BLOCK).astype(np.uint64), np.uint64(one_in)
    stretches = blocks // parts
    words = stretches + positions.partitions.astype(np.uint64) * _FIRST + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    words ^= words >> np.uint64(31)
    return np.asarray(blocks % parts == words % parts)


@dataclass(frozen=True, slots=True)
class Prepared:
    """``n`` documents that can be compared."""

    rows: I64  # (n,), which records they are
    texts: list[str]  # normalised
    namespaces: U64  # (n,)
    times_ms: I64  # (n,)
    shingles: U64  # all sets of shingles, one behind the other
    ends: I64  # (n,), where each ends

    def set_of(self, index: int) -> U64:
        """Return the shingles of one document."""
        begin = int(self.ends[index - 1]) if index else 0
        return self.shingles[begin : int(self.ends[index])]


class RecentKept:
    """Kept records of one batch, and their rows in it, ``(n,)`` int64."""

    def __init__(self, records: RecordColumns, rows: I64) -> None:
        self.records = records
        self.rows = rows
        self.size = int(records.sizes().sum())  # bytes of their values
        self._prepared: Prepared | None = None

    def prepared(self, audit: Audit) -> Prepared:
        """Return the documents; they are prepared once."""
        if self._prepared is None:
            self._prepared = audit.prepare(self.records)
        return self._prepared


@dataclass(frozen=True, slots=True)
class Sample:
    """Sampled documents of one batch, and what they are compared with."""

    records: RecordColumns  # n records, none of them rejected
    rows: I64  # (n,), their rows in the batch
    originals: list[Position | None]  # the position of each original; None for a kept document
    earlier: tuple[RecentKept, ...]  # kept documents of earlier batches, and last of this one


def take_sample(
    records: RecordColumns, verdicts: Verdicts, earlier: Sequence[RecentKept], one_in: int
) -> tuple[RecentKept, Sample | None]:
    """Return the kept documents of a batch, and its sample if it has one; see `is_sampled`.

    ``verdicts`` has the order of the records, and ``earlier`` the kept documents of batches before.
    """
    kept = np.flatnonzero(verdicts.outcomes == KEPT)[-DOCUMENTS:]
    sizes = records.sizes()[kept]
    kept = kept[np.cumsum(sizes[::-1])[::-1] <= VALUES_BYTES]
    current = RecentKept(_values(records, kept), kept)
    sampled = is_sampled(records.positions, one_in) & (verdicts.outcomes <= DUPLICATE)
    rows = np.flatnonzero(sampled)
    if not len(rows):
        return current, None
    originals = [
        verdicts[row].matches[0].position if verdicts.outcomes[row] == DUPLICATE else None
        for row in rows.tolist()
    ]
    return current, Sample(_values(records, rows), rows, originals, (*earlier, current))


def _values(records: RecordColumns, rows: I64) -> RecordColumns:
    """Return records without what no text needs: keys, and headers but those with a schema."""
    part = records.take(rows)
    headers: list[Headers] = [()] * len(part)
    if any(part.headers):
        headers = [tuple(each for each in one if each[0] == FRAME_HEADER) for one in part.headers]
    keys = [None] * len(part)
    return RecordColumns(part.positions, part.values, keys, headers, part.timestamps_ms)


class Audit:
    """Compares samples; used by one thread. The schemas may grow."""

    def __init__(self, settings: Settings, schemas: Mapping[bytes, Schema] = NO_SCHEMAS) -> None:
        dedup = settings.dedup
        self._decoder = Decoder(settings.records, settings.limits, schemas)
        self._sketcher = Sketcher(dedup.sketch_parameters())
        self._shingling = dedup.sketch_parameters().shingling()
        self._threshold = dedup.threshold
        error = self._sketcher.codec.standard_error(dedup.threshold)
        self._borderline = BORDERLINE * error if dedup.keeps_texts else 0.0
        self._window_ms = limit_ms(settings.index.window)

    def prepare(self, records: RecordColumns) -> Prepared:
        """Decode records, and cut their texts into shingles; records without text are left out."""
        rows, documents = list[int](), list[Document]()
        for row, record in enumerate(records):
            try:
                documents.append(self._decoder.decode(record))
            except Refusal:
                continue
            rows.append(row)
        texts = self._sketcher.normalise([document.text for document in documents])
        sets = list(shingle_sets(texts, self._shingling)) if texts else []
        return Prepared(
            np.array(rows, dtype=np.int64),
            texts,
            np.array([namespace_hash(each.namespace) for each in documents], dtype=np.uint64),
            np.array([each.event_time_ms for each in documents], dtype=np.int64),
            np.concatenate([np.empty(0, dtype=np.uint64), *sets]),
            np.cumsum([len(each) for each in sets], dtype=np.int64),
        )

    def compare(self, sample: Sample) -> Counter[str]:
        """Compare a sample; return how many documents have each result."""
        mine = self.prepare(sample.records)
        return Counter(self._result(sample, mine, index) for index in range(len(mine.rows)))

    def _result(self, sample: Sample, mine: Prepared, index: int) -> Result:
        row = int(mine.rows[index])
        original = sample.originals[row]
        best, nearest, has_original = 0.0, "", False
        for recent in sample.earlier:
            theirs = recent.prepared(self)
            if not len(theirs.rows):
                continue
            allowed = self._allowed(mine, index, theirs)
            if recent is sample.earlier[-1]:
                allowed &= recent.rows[theirs.rows] < sample.rows[row]
            found: F64 = np.where(
                allowed,
                similarities(mine.set_of(index), theirs.shingles, theirs.ends, self._threshold),
                0.0,
            )
            top = int(found.argmax())
            if found[top] > best:
                best, nearest = float(found[top]), theirs.texts[top]
            if original is not None and not has_original:
                has_original = original in recent.records.positions
        if best >= self._threshold:
            if original is not None:
                return "found"
            return "refuted" if self._refutes(mine.texts[index], nearest) else "missed"
        return "wrong" if has_original else "alone"

    def _allowed(self, mine: Prepared, index: int, theirs: Prepared) -> NDArray[np.bool_]:
        """Return which documents are of the same namespace and in the window by time."""
        allowed = theirs.namespaces == mine.namespaces[index]
        time_ms = int(mine.times_ms[index])
        if time_ms != NO_TIMESTAMP:
            is_known = theirs.times_ms != NO_TIMESTAMP
            allowed &= ~is_known | which_in_window(time_ms, theirs.times_ms, self._window_ms)
        return np.asarray(allowed)

    def _refutes(self, text: str, other: str) -> bool:
        """Return whether the signatures of two texts show that they are below the threshold."""
        sketches = self._sketcher.sketch([text, other], np.zeros(2, dtype=np.uint64))
        signatures = sketches.signatures
        [estimate] = self._sketcher.codec.estimate_jaccard(signatures[0], signatures[1:])
        return bool(
            estimate < self._threshold and not is_near(estimate, self._threshold, self._borderline)
        )
