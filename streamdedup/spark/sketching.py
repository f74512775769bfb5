"""*Blocking.* Sketches the documents of an archive, as the pool of a worker does."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash

from streamdedup.batches import SketchedBatch
from streamdedup.columns import I64, Blobs, Positions
from streamdedup.engine.arrow import TableFields
from streamdedup.engine.prepare import Preparer
from streamdedup.formats.sketches import ARCHIVE_TOPIC
from streamdedup.settings.sections import Settings
from streamdedup.spark.batches import PLACE, Batches, Task, as_binary, numbers, of_blobs

SKETCHES = (
    f"{PLACE} long, id string, event_time_ms long, namespace long, signature binary, "
    "band_keys binary, text binary, grp long, stage string, reason string, message string"
)
"""The schema of sketches. A rejected row has no signature, a document without text no ``grp``."""


def sketch(settings: Settings) -> Task:
    """Return the task that sketches documents: rows with a place, to rows of ``SKETCHES``."""

    def task(batches: Batches) -> Batches:
        preparer = Preparer(settings)
        preparer.warm()
        fields: TableFields | None = None
        for batch in batches:
            if fields is None:
                fields = TableFields(batch.schema, settings.records, "the archive")
            rows = fields.read(batch)
            places = numbers(batch, PLACE)
            zeros = np.zeros(len(batch), dtype=np.int64)
            positions = Positions((ARCHIVE_TOPIC,), zeros, zeros, places)
            sketched = preparer.prepare_fields(rows.fields, positions, rows.refused)
            yield _table(places, sketched)

    return task


def _table(places: I64, sketched: SketchedBatch) -> pa.RecordBatch:
    count, documents = len(places), sketched.documents
    indices = np.full(count, -1, dtype=np.int64)
    indices[sketched.rows] = np.arange(len(sketched.rows))
    index = pa.array(indices, mask=indices < 0)
    has_group = np.ones(len(documents), dtype=np.bool_)
    has_group[sorted(sketched.blank)] = False
    # Documents with equal sketches have equal numbers.
    columns_of_keys = documents.sketches.band_keys[:, -1:], documents.namespaces[:, None]
    keys = [np.ascontiguousarray(column).view(np.uint8) for column in columns_of_keys]
    contents = np.concatenate([documents.sketches.signatures, *keys], axis=1)
    digests = map(xxhash.xxh3_64_intdigest, contents)
    numbered = np.fromiter(digests, dtype=np.uint64, count=len(contents)).view(np.int64)
    groups = pa.array(numbered, mask=~has_group)
    rejected = [sketched.rejections.get(row) for row in range(count)]
    texts = of_blobs(documents.texts) if len(documents.texts) else pa.nulls(len(documents))
    ids = of_blobs(Blobs(documents.ids.data, documents.ids.ends))
    columns = {
        PLACE: pa.array(places),
        "id": ids.cast(pa.string()).take(index),
        "event_time_ms": pa.array(documents.event_times_ms).take(index),
        "namespace": pa.array(documents.namespaces.view(np.int64)).take(index),
        "signature": as_binary(documents.sketches.signatures).take(index),
        "band_keys": as_binary(documents.sketches.band_keys.astype("<u8")).take(index),
        "text": texts.cast(pa.binary()).take(index),
        "grp": groups.take(index),
    }
    for name in ("stage", "reason", "message"):
        values = [getattr(each, name, None) for each in rejected]
        columns[name] = pa.array(values, pa.string())
    return pa.RecordBatch.from_pydict(columns)
