"""*Blocking.* Builders for tests: small settings, indexes, and batches."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from hypothesis import HealthCheck, settings

from streamdedup.batches import (
    DocumentColumns,
    IndexUpdate,
    JudgedVerdicts,
    Judgement,
    MatchColumns,
    SketchedBatch,
    Sketches,
)
from streamdedup.columns import Positions, Strings
from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.engine.prepare import Preparer
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.model import (
    NO_TIMESTAMP,
    Document,
    Match,
    Outcome,
    Position,
    Rejection,
    SourceRange,
    Verdict,
)
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import IndexSettings, Settings
from streamdedup.sketch.parameters import SketchParameters

TOPIC = "documents"
MIB = 1024**2
COLUMNS = 9
"""Columns of band keys under the small settings: eight bands and the key of the whole text."""


def examples(count: int) -> settings:
    """Return hypothesis settings for so many examples, the same ones in every run.

    With ``STREAMDEDUP_TEST_QUICK=1``, as in ``make coverage``, a tenth of them.
    """
    if os.environ.get("STREAMDEDUP_TEST_QUICK") == "1":
        count = count // 10
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def small_settings(  # noqa: PLR0913 - one keyword for each setting that tests vary
    directory: Path,
    *,
    threshold: float = 0.5,
    bands: int = 8,
    shards: int = 2,
    bucket_size: int = 64,
    window: dt.timedelta | None = None,
    window_documents: int = 10_000,
    allowed_lateness: dt.timedelta | None = None,
    allowed_ahead: dt.timedelta | None = None,
    delta_documents: int = 65_536,
    seed: int = 1,
    verify: Literal["estimate", "exact"] = "estimate",
) -> Settings:
    """Return settings with small, fast sketches and an index that is not forced to disk."""
    return Settings(
        dedup=DedupSettings(
            threshold=threshold,
            num_perm=32,
            bands=bands,
            rows=2,
            shingle_size=3,
            seed=seed,
            verify=verify,
        ),
        index=IndexSettings(
            directory=directory,
            shards=shards,
            bucket_size=bucket_size,
            window=window,
            window_documents=window_documents,
            allowed_lateness=allowed_lateness,
            allowed_ahead=allowed_ahead,
            delta_documents=delta_documents,
            sync=False,
        ),
    )


def open_index(settings: Settings, log: str = LOCAL_LOG) -> Index:
    """Open the index of the settings."""
    parameters = settings.dedup.sketch_parameters()
    return Index(settings.index, parameters, log, texts=settings.dedup.keeps_texts)


def sketched(
    texts: Sequence[str | Document], settings: Settings, first: int = 0, partition: int = 0
) -> SketchedBatch:
    """Prepare documents at consecutive offsets of one partition."""
    documents = [text if isinstance(text, Document) else Document(text) for text in texts]
    positions = [Position(TOPIC, partition, first + row) for row in range(len(documents))]
    return Preparer(settings).prepare_documents(documents, positions)


def pass_through(
    index: Index, batches: Iterable[SketchedBatch], settings: Settings, rule: Rule | None = None
) -> list[Verdict]:
    """Judge batches one after another, and apply the update of each."""
    return [
        verdict
        for judgement in judgements(index, batches, rule or Rule.from_settings(settings))
        for verdict in judgement.verdicts
    ]


def judgements(index: Index, batches: Iterable[SketchedBatch], rule: Rule) -> Iterator[Judgement]:
    """Judge batches one after another, and apply the update of each."""
    for batch in batches:
        candidates = index.probe(batch.documents)
        judgement = resolve(batch, candidates, rule, index.next_number, index.clock)
        index.apply(judgement.update, index.applied + 1)
        yield judgement


def columns(
    band_keys: Sequence[Sequence[int]],
    first_offset: int = 0,
    *,
    ids: Sequence[str] | None = None,
    topic: str = TOPIC,
    num_bytes: int = 16,
) -> DocumentColumns:
    """Return documents with chosen band keys; every byte of a signature is the document's row."""
    count = len(band_keys)
    signatures = np.repeat(np.arange(count, dtype=np.uint8)[:, None], num_bytes, axis=1)
    width = len(band_keys[0]) if count else COLUMNS
    return DocumentColumns(
        ids=Strings.of(
            ids if ids is not None else [f"id-{first_offset + row}" for row in range(count)]
        ),
        positions=Positions.of([Position(topic, 0, first_offset + row) for row in range(count)]),
        event_times_ms=np.full(count, NO_TIMESTAMP, dtype=np.int64),
        namespaces=np.zeros(count, dtype=np.uint64),
        sketches=Sketches(signatures, np.array(band_keys, dtype=np.uint64).reshape(count, width)),
    )


def verdicts_of(verdicts: Sequence[Verdict]) -> JudgedVerdicts:
    """Return the column of some verdicts."""
    verdicts = [_complete(verdict) for verdict in verdicts]
    rows = [row for row, verdict in enumerate(verdicts) if verdict.rejection is None]
    judged = [verdicts[row] for row in rows]
    stored = [match for verdict in judged for match in verdict.matches]
    batch = SketchedBatch(
        Positions.of([verdict.position for verdict in verdicts]),
        _named([(each.id, each.position, each.event_time_ms) for each in judged]),
        np.array(rows, dtype=np.int64),
        frozenset(),
        {row: why for row, each in enumerate(verdicts) if (why := each.rejection) is not None},
        (),
    )
    ages_s = [np.nan if each.age_s is None else each.age_s for each in stored]
    matches = MatchColumns(
        ends=np.cumsum([len(each.matches) for each in judged], dtype=np.int64),
        ids=Strings.of([each.id for each in stored]),
        positions=Positions.of([each.position for each in stored]),
        estimates=np.array([each.jaccard_estimate for each in stored], dtype=np.float64),
        jaccards=np.array([np.nan if each.jaccard is None else each.jaccard for each in stored]),
        ages_s=np.array(ages_s, dtype=np.float64),
    )
    none = np.zeros(0, dtype=np.int64)
    refuted = replace(matches.take(none), ends=np.zeros_like(matches.ends))
    return JudgedVerdicts(batch, matches, refuted)


def _complete(verdict: Verdict) -> Verdict:
    """Return a verdict with a match if it is ``duplicate``, and a reason if it is ``rejected``."""
    if verdict.outcome is Outcome.DUPLICATE and not verdict.matches:
        return replace(verdict, matches=(Match("original", verdict.position, 1.0, None),))
    if verdict.outcome is Outcome.REJECTED and verdict.rejection is None:
        return replace(verdict, rejection=Rejection("decode", "MissingText", "why"))
    return verdict


def _named(documents: Sequence[tuple[str, Position, int]]) -> DocumentColumns:
    """Return documents with an id, a position and an event time, and without band keys."""
    count = len(documents)
    return DocumentColumns(
        Strings.of([id_ for id_, _, _ in documents]),
        Positions.of([position for _, position, _ in documents]),
        np.array([time for _, _, time in documents], dtype=np.int64),
        np.zeros(count, dtype=np.uint64),
        Sketches(np.zeros((count, 1), np.uint8), np.zeros((count, 1), np.uint64)),
    )


def update_of(documents: DocumentColumns, first_number: int) -> IndexUpdate:
    """Return the update that keeps all documents; their event times are the effective times."""
    ranges = tuple(SourceRange(*position, position.offset + 1) for position in documents.positions)
    return IndexUpdate(first_number, documents, ranges, documents.event_times_ms)


def parameters(**changes: Any) -> SketchParameters:
    """Return the parameters of the small settings, with changes."""
    unchanged = small_settings(Path()).dedup.sketch_parameters()
    return SketchParameters(**{**vars(unchanged), **changes})
