"""What callers of the Python API pass: texts, objects, tables, and mistakes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from streamdedup import Deduplicator
from streamdedup.engine.documents import to_documents, to_positions
from streamdedup.formats.records import Decoder
from streamdedup.model import NO_TIMESTAMP, Document, Position
from streamdedup.settings.sections import LimitSettings, RecordSettings

RECORDS = RecordSettings(
    text_fields=("title", "body.text"), event_time_field="at", namespace_field="site"
)
ROWS: list[dict[str, Any]] = [{"title": "first", "id": "a"}, {"title": "second", "id": 7}]
READ = [Document("first", "a"), Document("second", "7")]
TEXTS = ["first", "second"]
FRAME = pd.DataFrame({"title": TEXTS, "id": ["a", "7"]})
TABLE = pa.table({"title": TEXTS, "id": ["a", "7"]})
STRING_TYPES = [None, "object", "category", "string[python]", "string[pyarrow]"]
DAY = dt.date(2024, 1, 1)
DAY_MS = 1_704_067_200_000


def read(items: Any, records: RecordSettings = RECORDS) -> list[Document]:
    """Return the documents under given settings."""
    return to_documents(items, Decoder(records, LimitSettings()))


def texts() -> Iterator[str]:
    """Yield the texts."""
    yield from TEXTS


COLUMNS = {
    **{f"pandas {kind}": pd.Series(TEXTS, dtype=kind) for kind in STRING_TYPES},
    "pandas arrow": pd.Series(TEXTS, dtype=pd.ArrowDtype(pa.string())),
    "pandas index": pd.Index(TEXTS),
    "pandas filtered": pd.Series(["no", *TEXTS])[[False, True, True]],
    "arrow": pa.array(TEXTS),
    "arrow large": pa.array(TEXTS, pa.large_string()),
    "arrow dictionary": pa.array(TEXTS).dictionary_encode(),
    "arrow chunked": pa.chunked_array([TEXTS[:1], TEXTS[1:]]),
    "arrow scalars": list(pa.array(TEXTS)),
    "polars": pl.Series(TEXTS),
    "polars categorical": pl.Series(TEXTS, dtype=pl.Categorical),
    "numpy": np.array(TEXTS),
    "numpy object": np.array(TEXTS, dtype=object),
    "numpy scalars": list(np.array(TEXTS)),
    "generator": texts(),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_values_of_a_column_are_texts(column: Any) -> None:
    """The texts are strings of Python, whatever the library has."""
    documents = read(column)
    assert documents == [Document(text) for text in TEXTS]
    assert {type(document.text) for document in documents} == {str}


TABLES = {
    "list": ROWS,
    "iterator": iter(ROWS),
    "pandas": FRAME,
    "arrow": TABLE,
    "arrow batch": TABLE.to_batches()[0],
    "arrow structs": TABLE.to_struct_array(),
    "polars": pl.DataFrame(TABLE),
    "polars structs": pl.DataFrame(TABLE).to_struct(),
    "polars rows": pl.DataFrame(TABLE).iter_rows(named=True),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_rows_of_a_table_are_documents(table: Any) -> None:
    """The columns of a table are never taken for texts."""
    assert read(table) == READ


IDS = {
    **{f"pandas {kind}": pd.Series(["5", None], dtype=kind) for kind in STRING_TYPES},
    "pandas nan": pd.Series(["5", float("nan")], dtype=object),
    "pandas NA": pd.Series(["5", pd.NA], dtype=object),
    "pandas NaT": pd.Series(["5", pd.NaT], dtype=object),
    "pandas Int64": pd.Series([5, None], dtype="Int64"),
    "pandas arrow": pd.Series([5, None], dtype=pd.ArrowDtype(pa.int64())),
    "numpy integer": np.array([np.int64(5), None], dtype=object),
    "numpy string": np.array([np.str_("5"), None], dtype=object),
    "arrow": pa.array([5, None]),
    "arrow strings": pa.array(["5", None]),
    "arrow scalars": list(pa.array([5, None])),
    "polars": pl.Series([5, None]),
    "polars strings": pl.Series(["5", None]),
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_a_missing_id_is_left_out(ids: Any) -> None:
    """None, NaN, NA and null are the same; whole numbers of any type are ids."""
    expected = [Document("first", "5"), Document("second")]
    assert (
        read({"title": text, "id": id_} for text, id_ in zip(TEXTS, ids, strict=True)) == expected
    )
    if isinstance(ids, pd.Series):
        assert read(pd.DataFrame({"title": TEXTS, "id": ids})) == expected
    elif isinstance(ids, pa.Array):
        assert read(pa.table({"title": TEXTS, "id": ids})) == expected
    elif isinstance(ids, pl.Series):
        assert read(pl.DataFrame({"title": TEXTS, "id": ids})) == expected


def test_integers_of_numpy_are_ids() -> None:
    """A column without missing values has the type of numpy."""
    frame = pd.DataFrame({"title": TEXTS, "id": np.arange(2, dtype=np.uint8)})
    assert read(frame) == [Document("first", "0"), Document("second", "1")]


TIMES = {
    "pandas": pd.Series([pd.Timestamp(DAY), None]),
    "pandas zone": pd.Series([pd.Timestamp(DAY, tz="Europe/Berlin") + pd.Timedelta("1h"), None]),
    "pandas number": pd.Series([DAY_MS, None]),
    "pandas date": pd.Series([DAY, None]),
    "numpy": [np.datetime64(DAY, "ns"), np.datetime64("NaT", "ns")],
    "numpy number": [np.int64(DAY_MS), np.float32("nan")],
    "arrow": pa.array([DAY_MS, None], pa.timestamp("ms")),
    "arrow nanoseconds": pa.array([DAY_MS * 10**6 + 1, None], pa.timestamp("ns", "UTC")),
    "arrow date": pa.array([DAY, None]),
    "polars": pl.Series([dt.datetime(2024, 1, 1), None]),  # noqa: DTZ001 - a time without a zone
    "polars date": pl.Series([DAY, None]),
}


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_times_of_a_column_are_event_times(times: Any) -> None:
    """A missing time is left out; a date is its first moment in UTC."""
    rows = [{"title": text, "at": time} for text, time in zip(TEXTS, times, strict=True)]
    assert [document.event_time_ms for document in read(rows)] == [DAY_MS, NO_TIMESTAMP]


def test_a_missing_field_of_a_text_is_left_out() -> None:
    """A document with one of its text fields is a document."""
    frame = pd.DataFrame({"title": ["a", None], "body": [{"text": "b"}, {"text": "c"}]})
    assert read(frame) == [Document("a\nb"), Document("c")]


MISSING = {
    **{f"pandas {kind}": pd.Series(["fine", None], dtype=kind) for kind in STRING_TYPES},
    "pandas nan": pd.Series(["fine", float("nan")], dtype=object),
    "pandas NA": pd.Series(["fine", pd.NA], dtype=object),
    "arrow": pa.array(["fine", None]),
    "arrow scalars": list(pa.array(["fine", None])),
    "polars": pl.Series(["fine", None]),
}


@pytest.mark.parametrize("column", MISSING.values(), ids=MISSING)
def test_a_missing_text_is_named(column: Any) -> None:
    """The error has the row and the remedy."""
    with pytest.raises(TypeError, match=r"^document 1 is .*; remove missing values first"):
        read(column)
    with pytest.raises(
        ValueError, match=r"^document 1: .* it has the fields 'title' \(null\), 'n';"
    ):
        read({"title": text, "n": 1} for text in column)


def test_a_table_can_be_filtered_by_its_verdicts() -> None:
    """The verdicts have the order of the rows, and its index may be the positions."""
    frame = pd.DataFrame({"text": ["The same words here.", "Others.", "The same words here."]})
    with Deduplicator() as deduplicator:
        verdicts = deduplicator.process(frame, positions=frame.index)
        again = deduplicator.process(frame["text"], positions=frame.index)
    assert frame[[verdict.kept for verdict in verdicts]].index.tolist() == [0, 1]
    assert again == verdicts


def test_texts_objects_and_documents_may_be_mixed() -> None:
    """The settings of ``records`` name the fields of an object."""
    time = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    object_ = {"title": "t", "body": {"text": "b"}, "at": time, "site": "s", "other": 1}
    milliseconds = int(time.timestamp() * 1000)
    assert read(["text", object_, Document("d", event_time_ms=np.int64(5))]) == [  # type: ignore[arg-type]
        Document("text"),
        Document("t\nb", "", milliseconds, "s"),
        Document("d", event_time_ms=5),
    ]


@pytest.mark.parametrize(
    "items", ["text", np.str_("text"), b"text", {"title": TEXTS}, Document("text")], ids=repr
)
def test_a_single_document_is_not_an_iterable_of_documents(items: Any) -> None:
    """Its characters, bytes or keys are not judged; the error shows the remedy."""
    with pytest.raises(TypeError, match=r"one value of type .*pass a list: process\("):
        read(items)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (5, "document 1 is 5 of type int; expected str, dict or Document"),
        (None, "document 1 is None of type NoneType; remove missing values first"),
        (b"bytes", "document 1 is b'bytes' of type bytes; decode it first"),
        (np.bytes_(b"bytes"), "document 1 is .* of type bytes_; decode it first"),
        (FRAME, "^document 1 is title id 0 first a 1 second 7 of type DataFrame; expected str"),
        (("a", "b"), "document 1 is .* of type tuple"),
        (Document(None), "document 1: its text is None of type NoneType; expected str"),  # type: ignore[arg-type]
        (Document("x", id=5), "document 1: its id is 5 of type int; expected str"),  # type: ignore[arg-type]
        (Document("x", namespace=5), "document 1: its namespace is 5"),  # type: ignore[arg-type]
        (Document("x", event_time_ms=1.5), r"document 1: its event_time_ms is 1\.5"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_value_of_another_type_is_named(wrong: Any, message: str) -> None:
    """The error has the document's index, the value and the expected type."""
    with pytest.raises(TypeError, match=message):
        read(["fine", wrong])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"text": "x", "id": None},
            r"'body.text'; it has the fields 'text', 'id' \(null\); set records.text_fields; cor",
        ),
        ({"title": 5.0}, "document 1: field 'title' is of type float, not a string"),
        ({"title": "x", "id": 1.0}, "document 1: field 'id' is of type float"),
        ({"title": "x", "at": "today"}, "document 1: field 'at' is not a valid time"),
        (
            Document("x", event_time_ms=2**63),
            "document 1: its event_time_ms is 9223372",
        ),
        (Document("x", event_time_ms=-2), "document 1: its event_time_ms is -2"),
    ],
    ids=repr,
)
def test_an_object_that_is_not_a_document_is_named(wrong: Any, message: str) -> None:
    """The error has the document's index, and says which settings name the fields."""
    with pytest.raises(ValueError, match=message):
        read(["fine", wrong])


def test_what_cannot_be_iterated_is_named() -> None:
    """The error says what is expected."""
    with pytest.raises(TypeError, match="expected an iterable of str, dict or Document, found int"):
        read(5)


def test_a_lazy_table_is_named() -> None:
    """The error says how to get its rows."""
    with pytest.raises(TypeError, match=r"^a LazyFrame has no rows yet; pass what its collect\(\)"):
        read(pl.LazyFrame({"title": TEXTS}))


OFFSETS = {
    "pandas": pd.Series([2, 5]),
    "pandas Int64": pd.Series([2, 5], dtype="Int64"),
    "pandas index": pd.Index([2, 5]),
    "numpy": np.array([2, 5], dtype=np.uint64),
    "arrow": pa.array([2, 5]),
    "arrow chunked": pa.chunked_array([[2], [5]]),
    "polars": pl.Series([2, 5]),
}


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
def test_values_of_a_column_are_offsets(offsets: Any) -> None:
    """Integers of every library are offsets."""
    assert to_positions(offsets, 2) == [Position("python", 0, 2), Position("python", 0, 5)]


def test_positions_are_offsets_or_positions() -> None:
    """Integers of any type are offsets; each source has its own."""
    given = [3, Position("file", 0, 1), np.int64(9), Position("file", 0, 7)]
    assert to_positions(given, 4) == [  # type: ignore[arg-type]
        Position("python", 0, 3),
        Position("file", 0, 1),
        Position("python", 0, 9),
        Position("file", 0, 7),
    ]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([1, 1], ValueError, "position 1 is 1; .* ascend"),
        ([2, 1], ValueError, "position 1 is 1; .* ascend"),
        ([-1, 0], ValueError, "position 0 is -1"),
        ([0, 2**62], ValueError, "position 1 is 4611686018427387904"),
        ([1], ValueError, "2 documents and 1 positions"),
        ([0, "1"], TypeError, "position 1 is '1' of type str"),
        (
            pa.array([0, None]),
            TypeError,
            "position 1 is None of type NoneType; expected an integer",
        ),
        (pd.Series([0, None]), TypeError, r"position 0 is 0\.0 of type float; expected an integer"),
        (5, TypeError, "expected an iterable of integers or Positions, found int"),
    ],
)
def test_invalid_positions(given: Any, error: type[Exception], message: str) -> None:
    """A position that cannot be an identity is refused before anything is judged."""
    with pytest.raises(error, match=message):
        to_positions(given, 2)
