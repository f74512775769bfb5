"""What callers of the Python API pass: texts, objects, tables, and mistakes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from streamdedup.engine.documents import to_documents, to_positions
from streamdedup.formats.records import Decoder
from streamdedup.model import Document, Position
from streamdedup.settings.sections import LimitSettings, RecordSettings

RECORDS = RecordSettings(
    text_fields=("title", "body.text"), event_time_field="at", namespace_field="site"
)
ROWS: list[dict[str, Any]] = [{"title": "first", "id": "a"}, {"title": "second", "id": 7}]
READ = [Document("first", "a"), Document("second", "7")]


def read(items: Any, records: RecordSettings = RECORDS) -> list[Document]:
    """Return the documents under given settings."""
    return to_documents(items, Decoder(records, LimitSettings()))


class Table:
    """Has columns and rows, and its iterator yields the columns, as in a library of tables."""

    columns = ("title", "id")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


class PandasTable(Table):
    """Returns its rows as pandas does."""

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        """Return the rows."""
        assert orient == "records"
        return ROWS


class ArrowTable(Table):
    """Returns its rows as a table, or a column, of Arrow does."""

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the rows."""
        return ROWS


class PolarsTable(Table):
    """Returns its rows as Polars does."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows."""
        return ROWS


@pytest.mark.parametrize(
    "items",
    [ROWS, iter(ROWS), PandasTable(), ArrowTable(), PolarsTable()],
    ids=["list", "iterator", "pandas", "arrow", "polars"],
)
def test_rows_of_a_table_are_documents(items: Iterable[Any]) -> None:
    """The columns of a table are never taken for texts."""
    assert read(items) == READ


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
    assert read(np.array(["x", "y"])) == [Document("x"), Document("y")]


@pytest.mark.parametrize("items", ["text", b"text", {"title": "text"}, Document("text")], ids=repr)
def test_a_single_document_is_not_an_iterable_of_documents(items: Any) -> None:
    """Its characters, bytes or keys are not judged; the error shows the remedy."""
    with pytest.raises(TypeError, match=r"one value of type .*pass a list: process\("):
        read(items)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "document 1 is None of type NoneType; expected str, dict or Document"),
        (float("nan"), "document 1 is nan of type float"),
        (b"bytes", "document 1 is b'bytes' of type bytes"),
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
        ({"text": "x"}, "document 1: the document has no text field 'title', .* fields are 'text'"),
        ({"title": float("nan")}, "document 1: field 'title' is of type float, not a string"),
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
    ],
)
def test_invalid_positions(given: list[Any], error: type[Exception], message: str) -> None:
    """A position that cannot be an identity is refused before anything is judged."""
    with pytest.raises(error, match=message):
        to_positions(given, 2)
