"""Tables and columns as documents, and verdicts as arrays."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from streamdedup import Deduplicator, Settings, Verdict, VerdictArrays
from streamdedup.engine.arrow import to_fields
from streamdedup.engine.documents import to_documents
from streamdedup.formats.records import Decoder
from streamdedup.model import Outcome
from streamdedup.settings.sections import LimitSettings, RecordSettings

RECORDS = RecordSettings(event_time_field="at", namespace_field="site")
TEXTS = [
    "One story of the sea and its ships",
    "Zwei Geschichten \u00fcber Schiffe",
    "",
    "One story",
]
TIME = dt.datetime(2024, 1, 1, 12, 0, 0, 5_000, dt.UTC)
TABLE = pa.table(
    {
        "text": TEXTS,
        "id": pa.array([5, None, 7, 8], pa.int32()),
        "at": pa.array([TIME, None, TIME, None], pa.timestamp("ns", "Europe/Berlin")),
        "site": pa.array(["a", None, "a", "b"]).dictionary_encode(),
        "unused": [{"x": 1}, None, {}, {"x": 2}],
    }
)
FRAME = pd.DataFrame(
    {
        "text": TEXTS,
        "id": pd.Series([5, None, 7, 8], dtype="Int64"),
        "at": pd.Series([pd.Timestamp(TIME), None, pd.Timestamp(TIME), None]),
        "site": pd.Series(["a", None, "a", "b"], dtype="category"),
        "unused": [object(), 1, "x", None],
    }
)
TABLES = {
    "arrow": TABLE,
    "arrow batch": TABLE.to_batches()[0],
    "arrow slices": pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
    "pandas": FRAME,
    "pandas filtered": pd.concat([FRAME, FRAME])[[True] * 4 + [False] * 4],
    "polars": pl.DataFrame(TABLE),
    "polars slice": pl.concat([pl.DataFrame(TABLE)] * 2).slice(4),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_columns_are_read_like_rows(table: Any) -> None:
    """The fields are those that the documents have, which are read one by one."""
    fields = to_fields(table, RECORDS)
    assert fields is not None
    decode = Decoder(RECORDS, LimitSettings()).decode_fields
    namespaces = fields.namespaces or [b""] * 4
    columns = (fields.texts, fields.ids, namespaces, fields.event_times_ms.tolist())
    found = [decode(*row) for row in zip(*columns, strict=True)]
    rows = list(table.to_dict("records")) if isinstance(table, pd.DataFrame) else table
    expected = to_documents(iter(rows) if isinstance(rows, list) else rows, DECODER)
    assert found == expected
    assert [document.id for document in found] == ["5", "", "7", "8"]


DECODER = Decoder(RECORDS, LimitSettings())


@pytest.mark.parametrize(
    "column",
    [
        TABLE["text"],
        TABLE["text"].chunk(0),
        TABLE["text"].dictionary_encode(),
        TABLE["text"].cast(pa.string_view()),
        TABLE["text"].cast(pa.binary()),
        pd.Series(TEXTS),
        pd.Series(TEXTS, dtype="category"),
        pl.Series(TEXTS),
    ],
    ids=lambda column: f"{type(column).__name__} {getattr(column, 'type', '')}",
)
def test_a_column_is_read_without_objects(column: Any) -> None:
    """Its texts have no ids."""
    fields = to_fields(column, RECORDS)
    assert fields is not None
    assert [text.decode() for text in fields.texts] == TEXTS
    assert fields.ids.size == 0


@pytest.mark.parametrize(
    "items",
    [
        TEXTS,
        [{"text": "a"}],
        TABLE.rename_columns(["body", "id", "at", "site", "unused"]),
        TABLE.set_column(0, "text", pa.array(["a", None, "b", "c"])),
        TABLE.set_column(1, "id", pa.array([1.5, 2.5, 3.5, 4.5])),
        TABLE.to_struct_array(),
        pd.Series(["a", 5], dtype=object),
        pd.DataFrame({"text": ["a"], "id": [object()], "at": [None], "site": [None]}),
        pa.array([1, 2]),
    ],
    ids=lambda items: type(items).__name__,
)
def test_what_is_not_a_table_of_documents_is_read_by_rows(items: Any) -> None:
    """There the error can name the document."""
    assert to_fields(items, RECORDS) is None


@pytest.mark.parametrize("stream", [TABLE, TABLE["text"]], ids=["table", "column"])
def test_a_stream_is_judged_like_its_table(stream: Any) -> None:
    """A stream of Arrow can be read only once, and no document of it is lost."""
    with Deduplicator() as deduplicator:
        expected = deduplicator.process_arrays(stream).kept.tolist()
    assert len(expected) == len(TEXTS)
    with Deduplicator() as deduplicator:
        assert deduplicator.process_arrays(reader(stream)).kept.tolist() == expected
    with Deduplicator() as deduplicator:
        assert [each.kept for each in deduplicator.process(reader(stream))] == expected


class OneColumn:
    """A stream of one column, as other libraries of Arrow have it."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        column, self._column = self._column, None
        return column.__arrow_c_stream__(schema)


def reader(items: pa.Table | pa.ChunkedArray) -> Any:
    """Return a stream that can be read once."""
    return items.to_reader() if isinstance(items, pa.Table) else OneColumn(items)


def test_an_invalid_row_of_a_stream_is_named() -> None:
    """The rows are still there when the error looks for the document."""
    table = pa.table({"text": ["a", None]})
    with (
        Deduplicator() as deduplicator,
        pytest.raises(ValueError, match=r"^document 1: .* no text"),
    ):
        deduplicator.process(table.to_reader())


def test_a_stream_that_breaks_is_an_error() -> None:
    """What follows is not judged as if the rows before had not been there."""
    batches = TABLE.to_batches()

    def broken() -> Iterator[pa.RecordBatch]:
        yield batches[0]
        raise OSError("the disk is gone")

    stream = pa.RecordBatchReader.from_batches(TABLE.schema, broken())
    with Deduplicator() as deduplicator, pytest.raises(OSError, match="the disk is gone"):
        deduplicator.process(stream)


def test_tables_need_no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars has the rows; the verdicts are the same."""
    frame: Any = pl.DataFrame({"text": TEXTS})
    with Deduplicator() as deduplicator:
        expected = deduplicator.process(frame)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert to_fields(frame, RECORDS) is None
    with Deduplicator() as deduplicator:
        assert deduplicator.process(frame) == expected


def judged(documents: Any, **settings: Any) -> tuple[list[Verdict], VerdictArrays]:
    """Return the verdicts as objects, and as arrays."""
    made = Settings(**settings)
    with Deduplicator(made) as first, Deduplicator(made) as second:
        return first.process(documents), second.process_arrays(documents)


def test_arrays_have_what_verdicts_have() -> None:
    """For kept, duplicate and rejected documents, with and without exact similarities."""
    texts = ["The same words are here again, said twice", "x" * 200, "Others are over there"]
    table = pa.table({"text": [*texts, texts[0] + "!", texts[0]], "id": ["a", "b", "c", "d", "e"]})
    limits = LimitSettings(text_bytes=100)
    for dedup in ({}, {"verify": "exact", "threshold": 0.9}):
        verdicts, arrays = judged(table, dedup=dedup, limits=limits)
        assert arrays.kept.tolist() == [True, False, True, False, False]
        assert arrays.outcome.tolist() == [verdict.outcome.value for verdict in verdicts]
        assert [verdict.id for verdict in verdicts] == ["a", "b", "c", "d", "e"]
        assert arrays.original.tolist() == [None, None, None, "a", "a"]
        assert arrays.reason.tolist() == [None, "TextTooLarge", None, None, None]
        for row, verdict in enumerate(verdicts):
            best = verdict.original
            for name in ("jaccard_estimate", "jaccard"):
                expected = getattr(best, name) if best else None
                value = getattr(arrays, name)[row]
                assert np.isnan(value) if expected is None else value == expected
        rows = arrays.to_arrow().to_pylist()
        assert rows[3] | {"jaccard": None} == {
            "kept": False,
            "outcome": "duplicate",
            "original": "a",
            "jaccard": None,
            "jaccard_estimate": arrays.jaccard_estimate[3],
            "reason": None,
        }
        assert rows[0]["jaccard_estimate"] is None
        assert len(arrays) == 5


def test_arrays_filter_tables() -> None:
    """Of each library, in its own way."""
    texts = [
        "The same words are here again",
        "Others are over there",
        "The same words are here again",
    ]
    with Deduplicator() as deduplicator:
        kept = deduplicator.process_arrays(texts).kept
    assert pa.table({"text": texts}).filter(pa.array(kept)).num_rows == 2
    assert len(pd.DataFrame({"text": texts})[kept]) == 2
    assert len(pl.DataFrame({"text": texts}).filter(kept)) == 2


def test_a_repeated_call_with_positions_gets_the_old_verdicts() -> None:
    """The positions of a table are offsets; no document is an empty batch."""
    table = pa.table({"text": TEXTS})
    with Deduplicator() as deduplicator:
        first = deduplicator.process_arrays(table, positions=range(4))
        again = deduplicator.process_arrays(table, positions=range(4))
        assert again.outcome.tolist() == first.outcome.tolist() == ["kept"] * 4
        assert len(deduplicator.process_arrays(table.slice(0, 0))) == 0
        verdicts = deduplicator.process(table, positions=range(4, 8))
    assert [verdict.outcome for verdict in verdicts][:2] == [Outcome.DUPLICATE] * 2
