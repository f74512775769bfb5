"""*Blocking.* Compiles every kernel ahead of time, for an image with a read-only file system.

``python -m streamdedup.cli.warm`` runs each kind of job once on a few texts, which puts every
kernel into numba's cache. A second run compiles no kernel and prints 0. ``deploy/Dockerfile`` runs
it.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from itertools import product
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


def main() -> None:
    """Run every kind of job once, and print the number of compiled kernels."""
    with install_recorder("numba:compile") as recorder:
        _warm()
    compiled = sum(event.is_end for _, event in recorder.buffer)
    sys.stdout.write(f"{compiled} kernels compiled\n")


def _warm() -> None:
    stories = [f"{first}. {second}." for first in _SENTENCES for second in _SENTENCES]
    # Some documents are so near the threshold that the texts themselves are compared.
    near = [story.rsplit(" ", words)[0] for story in stories for words in range(1, 6)]
    texts = (*stories, *near, *stories, *_SCRIPTS, *_SCRIPTS)
    documents = [Document(text) for text in texts]
    corpus = Corpus(documents, 0, [str(number % 3) for number in range(len(documents))])
    # Together these settings call each kernel with each of its argument types.
    kinds: tuple[dict[str, Any], ...] = (
        {"variant": "fast"},
        {"variant": "classic"},
        {"variant": "classic", "value_bits": 64},
    )
    for kind, unit in product(kinds, ("character", "word")):
        dedup = {**kind, "shingle_unit": unit, "verify": "exact"}
        settings = Settings.model_validate({"dedup": dedup})
        _deduplicate(settings, documents)
        evaluate(corpus, settings, [settings.dedup.banding()])
    # The shadow sample compares two records.
    records = RecordColumns.of(
        [Record(Position("warm", 0, row), b'{"text": "a story"}') for row in range(2)]
    )
    kept = Verdicts(np.full(len(records), KEPT, dtype=np.uint8), {})
    _, sample = take_sample(records, kept, (), one_in=1)
    if sample is not None:
        Audit(Settings()).compare(sample)
    _fill_index()
    times_ms = np.zeros(1, dtype=np.int64)
    partitions_of([b"key"], times_ms, 2)
    # As `index explain` and the hand-over of a backfill do.
    which_in_window(0, times_ms, 0)
    which_in_reach(times_ms, 0, 0)
    if find_spec("pyarrow") is not None:
        _backfill()


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


if __name__ == "__main__":
    main()
