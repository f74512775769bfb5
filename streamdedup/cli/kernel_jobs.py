"""*Blocking.* Jobs that call every kernel once, on a few texts, for ``streamdedup warm``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numba.core.event import install_recorder

from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.evaluate import evaluate
from streamdedup.batches import KEPT, DocumentColumns, IndexUpdate, Sketches, Verdicts
from streamdedup.columns import Blobs, Positions, RecordColumns, Strings
from streamdedup.dedup.resolve import Rule
from streamdedup.dedup.rule import which_in_reach, which_in_window
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.engine.prepare import Preparer
from streamdedup.formats import changelog
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.kafka.partition import partitions_of
from streamdedup.model import Document, Position, Record, SourceRange
from streamdedup.observe.audit import Audit, take_sample
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import IndexSettings, Settings

_SENTENCES = (
    "The council met on Monday to settle the budget for the coming year",
    "A storm closed the harbour, and all the ferries stayed in port",
    "Readers of the evening paper wrote in about the price of bread",
)
_SCRIPTS = (
    "",
    "  with   runs of   spaces  ",
    "Der Rat tagte am Montag, um über den Haushalt für das nächste Jahr zu befinden",
    "Le conseil s'est re\u0301uni lundi\u2026 \u2167 \ufb01n",
    "Совет собрался в понедельник, чтобы утвердить бюджет на будущий год",
    "市議会は月曜日に来年度の予算を決めるために開かれた",
    "시의회는 월요일에 내년도 예산을 확정하기 위해 모였다",
)


_DEFAULT: dict[str, Any] = {"variant": "fast"}
_CLASSIC: tuple[dict[str, Any], ...] = (
    {"variant": "classic"},
    {"variant": "classic", "value_bits": 64},
)
_UNITS = ("character", "word")


def _settings(kind: dict[str, Any], unit: str) -> Settings:
    return Settings.model_validate({"dedup": {**kind, "shingle_unit": unit, "verify": "exact"}})


def _documents() -> list[Document]:
    stories = [f"{first}. {second}." for first in _SENTENCES for second in _SENTENCES]
    # Some documents are so near the threshold that the texts themselves are compared.
    near = [story.rsplit(" ", words)[0] for story in stories for words in range(1, 6)]
    texts = (*stories, *near, *stories, *_SCRIPTS, *_SCRIPTS)
    return [Document(text) for text in texts]


def _judge_documents() -> None:
    """Judge documents with the default sketch, and take an index through its life."""
    for unit in _UNITS:
        _deduplicate(_settings(_DEFAULT, unit), _documents())
    _fill_index()
    times_ms = np.zeros(1, dtype=np.int64)
    partitions_of([b"key"], times_ms, 2)
    # As `index explain` and the hand-over of a backfill do.
    which_in_window(0, times_ms, 0)
    which_in_reach(times_ms, 0, 0)


def _sketch_and_evaluate() -> None:
    """Sketch documents in the other ways, evaluate, and compare a sample."""
    documents = _documents()
    positions = [Position("warm", 0, row) for row in range(len(documents))]
    for kind in _CLASSIC:
        for unit in _UNITS:
            Preparer(_settings(kind, unit)).prepare_documents(documents, positions)
    _evaluate(_DEFAULT)
    # The shadow sample compares two records.
    records = RecordColumns.of(
        [Record(Position("warm", 0, row), b'{"text": "a story"}') for row in range(2)]
    )
    kept = Verdicts(np.full(len(records), KEPT, dtype=np.uint8), {})
    _, sample = take_sample(records, kept, (), one_in=1)
    if sample is not None:
        Audit(Settings()).compare(sample)
    if find_spec("pyarrow") is not None:
        _backfill()


def _evaluate(kind: dict[str, Any]) -> None:
    documents = _documents()
    corpus = Corpus(documents, 0, [str(number % 3) for number in range(len(documents))])
    for unit in _UNITS:
        settings = _settings(kind, unit)
        evaluate(corpus, settings, [settings.dedup.banding()])


def _finish() -> None:
    # Two processes that save the same kernel for different types can lose one of them.
    for job in SIDE_BY_SIDE:
        job()
    for kind in _CLASSIC:
        for unit in _UNITS:
            _deduplicate(_settings(kind, unit), _documents())
        _evaluate(kind)


SIDE_BY_SIDE = (_judge_documents, _sketch_and_evaluate)
"""Two jobs that share few kernels."""
LAST = _finish
"""What is left or lost, once both are done."""


def compiled_by(job: Callable[[], None]) -> int:
    """Run a job; return the number of kernels that it has compiled."""
    with install_recorder("numba:compile") as recorder:
        job()
    return sum(event.is_end for _, event in recorder.buffer)


def _deduplicate(settings: Settings, documents: list[Document]) -> None:
    """Judge a stream, also one document per batch, and replay its changelog entries."""
    preparer = Preparer(settings)
    preparer.warm()
    fingerprint = settings.fingerprint
    with Deduplicator(settings) as judging, Deduplicator(settings) as replaying:
        offset = 0
        for batch in (documents, documents, *([one] for one in documents)):
            positions = [Position("warm", 0, offset + row) for row in range(len(batch))]
            offset += len(batch)
            judgement = judging.judge(preparer.prepare_documents(batch, positions))
            judging.apply(judgement)
            for entry in changelog.encode(
                judgement.update, fingerprint, settings.batch.changelog_entry_bytes
            ):
                replaying.index.apply(
                    changelog.decode(entry, fingerprint), replaying.index.applied + 1
                )


def _fill_index() -> None:
    """Take a small index through flushes, merges, expiry, opening and a replay."""
    parameters = DedupSettings().sketch_parameters()
    count, batches = 16, 24

    def update(first: int) -> IndexUpdate:
        keys = np.random.default_rng(first).integers(
            0, 2**64, (count, parameters.bands + 1), np.uint64
        )
        signatures = np.zeros((count, parameters.signature_bytes), dtype=np.uint8)
        times = np.arange(first, first + count)
        documents = DocumentColumns(
            Strings.of([str(number) for number in times]),
            Positions(("warm",), np.zeros_like(times), np.zeros_like(times), times),
            times,
            np.zeros(count, dtype=np.uint64),
            Sketches(signatures, keys),
            Blobs.of([b"text"] * count),
        )
        ranges = (SourceRange("warm", 0, first, first + count),)
        return IndexUpdate(first, documents, ranges, times)

    with tempfile.TemporaryDirectory() as directory:
        settings = IndexSettings(
            directory=Path(directory), window_documents=8 * count, delta_documents=count, sync=False
        )
        with Index(settings, parameters, LOCAL_LOG, texts=True) as index:
            for batch in range(batches):
                index.apply(update(batch * count), batch + 1)
                index.flush()
                index.settle()
        with Index(settings, parameters, LOCAL_LOG, texts=True) as index:
            index.probe(update((batches - 1) * count).documents)


def _backfill() -> None:
    """Estimate and judge a pair as Spark's processes do, with the read-only arrays of Arrow."""
    import pyarrow as pa

    from streamdedup.spark import verdicts

    rule = Rule.from_settings(Settings())
    signature = bytes(rule.codec.num_bytes)
    pair = pa.RecordBatch.from_pylist([{"a": 0, "b": 1, "one": signature, "two": signature}])
    edge = dict.fromkeys(verdicts.PARTS, 0) | {"b": 1, "estimate": 1.0, "jaccard": 1.0, "id": "0"}
    members = [edge | {"kind": verdicts.MEMBER, "a": place, "b": place} for place in (0, 1)]
    rows = pa.RecordBatch.from_pylist([edge, *members])
    list(verdicts.estimate(rule)(iter([pair])))
    list(verdicts.judge_components(rule)(iter([rows])))
