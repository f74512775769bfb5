"""*Blocking.* Kept sketches in Parquet, as the deduplication of an archive on Spark writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamdedup.batches import DocumentColumns
from streamdedup.columns import I64, U8, U64, Positions
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.engine.prepare import Preparer
from streamdedup.model import Document, Position, Verdict
from streamdedup.settings.sections import Settings
from tests.testkit.texts import Writer

SCHEMA = pa.schema(
    {
        "format": pa.int32(),
        "fingerprint": pa.string(),
        "clock": pa.binary(),
        "place": pa.int64(),
        "id": pa.string(),
        "event_time_ms": pa.int64(),
        "effective_time_ms": pa.int64(),
        "namespace": pa.int64(),
        "signature": pa.binary(),
        "band_keys": pa.binary(),
        "text": pa.binary(),
    }
)


MINUTE = 60_000
START_MS = 1_700_000_000_000


def documents(count: int, seed: int = 1) -> list[Document]:
    """Return documents a minute apart, of which a third repeat an earlier one or most of it.

    One in twelve is 90 minutes late.
    """
    writer = Writer(seed)
    texts = writer.stream(count, (12, 12), 1 / 3, (0, 1), recent=100)
    texts[7] = " "
    return [
        Document(text, f"document-{number}", START_MS + (number - late) * MINUTE)
        for number, text in enumerate(texts)
        for late in [90 if writer.chance.random() < 1 / 12 else 0]
    ]


class Archive(NamedTuple):
    """An archive that was judged.

    Attributes:
        verdicts: one for each document.
        kept: the kept documents that have text; their offsets are places.
        effective_times_ms: of the kept documents, ``(n,)``.
        clock: state of the clock after the last document.
    """

    verdicts: list[Verdict]
    kept: DocumentColumns
    effective_times_ms: I64
    clock: bytes

    def table(self, settings: Settings) -> pa.Table:
        """Return the kept sketches."""
        return table(
            self.kept,
            self.effective_times_ms,
            self.clock,
            settings.fingerprint,
        )


def judge(settings: Settings, documents: Sequence[Document], batch: int = 50) -> Archive:
    """Judge documents at places from 0 on."""
    verdicts: list[Verdict] = []
    updates = []
    preparer = Preparer(settings)
    with Deduplicator(settings) as deduplicator:
        for start in range(0, len(documents), batch):
            part = documents[start : start + batch]
            positions = [Position("archive", 0, start + row) for row in range(len(part))]
            positions_of = Positions.of(positions)
            judgement = deduplicator.judge(preparer.prepare_documents(part, positions_of))
            deduplicator.apply(judgement)
            verdicts += list(judgement.verdicts)
            updates.append(judgement.update)
        clock = deduplicator.index.clock.state()
    return Archive(
        verdicts,
        DocumentColumns.concatenate([update.documents for update in updates]),
        np.concatenate([update.effective_times_ms for update in updates]),
        clock,
    )


def table(
    kept: DocumentColumns, effective_times_ms: I64, clock: bytes, fingerprint: str
) -> pa.Table:
    """Return documents as a table of kept sketches; their offsets are the places."""
    count = len(kept)
    texts = kept.texts.tolist() if len(kept.texts) else [None] * count
    columns: list[Any] = [
        pa.repeat(pa.scalar(1, pa.int32()), count),
        pa.repeat(fingerprint, count),
        pa.repeat(pa.scalar(clock, pa.binary()), count),
        kept.positions.offsets,
        kept.ids.tolist(),
        kept.event_times_ms,
        effective_times_ms,
        kept.namespaces.view(np.int64),
        _binary(kept.sketches.signatures),
        _binary(kept.sketches.band_keys.astype("<u8", copy=False)),
        pa.array(texts, pa.binary()),
    ]
    return pa.table(columns, schema=SCHEMA)


def write(
    folder: Path, content: pa.Table, files: int = 1, row_group_size: int | None = None
) -> None:
    """Write a table as a folder of Parquet files, as Spark does."""
    folder.mkdir(parents=True)
    folder.joinpath("_SUCCESS").touch()
    rows = -(-len(content) // files)
    for number in range(files):
        path = folder / f"part-{number:05d}.zstd.parquet"
        part = content.slice(number * rows, rows)
        pq.write_table(part, path, compression="zstd", row_group_size=row_group_size)
        folder.joinpath(f".{path.name}.crc").touch()


def _binary(rows: U8 | U64) -> pa.Array:
    """Return the rows of an array as values of equal size."""
    data = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    ends = np.arange(len(data) + 1, dtype=np.int32) * data.shape[1]
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(data), buffers)
