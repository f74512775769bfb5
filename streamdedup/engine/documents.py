"""*Pure.* What callers of the Python API pass, as documents and positions; verdicts as arrays.

A value of the wrong type is an error that names the document, before anything is judged. A document
over a limit is not an error: it gets the verdict ``rejected``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import DUPLICATE, KEPT, OUTCOMES, JudgedVerdicts
from streamdedup.columns import F64
from streamdedup.engine.arrow import load
from streamdedup.formats.objects import Refusal
from streamdedup.formats.records import Decoder
from streamdedup.model import NO_TIMESTAMP, Document, Position

Item: TypeAlias = Document | str | Mapping[str, Any]
"""A document, its text, or an object whose fields the settings of ``records`` name."""

TOPIC = "python"
"""The topic in the positions of documents from the Python API."""
_SINGLE = (str, bytes, bytearray, memoryview, Mapping, Document)
_ITEMS = "str, dict or Document"
_ADVICE: dict[type, str] = {
    type(None): "remove missing values first, for example with dropna() or drop_nulls()",
    bytes: "decode it first, for example with decode()",
}
_TIMES_END = 2**62
_OUTCOMES = np.array([outcome.value for outcome in OUTCOMES], dtype=object)
_SHOWN_CHARACTERS = 60
_MISSING_OF_PANDAS = ("NAType", "NaTType")


def to_documents(items: Iterable[Item], decoder: Decoder) -> list[Document]:
    """Return the documents that a caller passes; their limits are checked later.

    Raises:
        TypeError: a document has the wrong type, or a single one is passed.
        ValueError: a document is an object that the settings cannot read, or its time is invalid.
    """
    if isinstance(items, _SINGLE):
        kind = type(items).__name__
        raise TypeError(
            f"expected several documents, found one value of type {kind}; for one document, pass "
            "a list: process([document])"
        )
    return [_document(index, item, decoder) for index, item in enumerate(_rows(items, _ITEMS))]


def _rows(items: Any, expected: str) -> Iterator[Any]:
    """Return the rows of a table, of which the iterator would yield the columns; else the items."""
    if callable(getattr(items, "collect", None)):  # of Polars, lazy
        raise TypeError(
            f"a {type(items).__name__} has no rows yet; pass what its collect() returns"
        )
    for name in ("to_pylist", "to_dicts"):  # of Arrow, of Polars
        convert = getattr(items, name, None)
        if callable(convert):
            return iter(list(convert()))
    if hasattr(items, "columns") and callable(getattr(items, "to_dict", None)):  # of pandas
        return iter(list(items.to_dict("records")))
    try:
        rows: Iterator[Any] = iter(items)
    except TypeError:
        found = type(items).__name__
        raise TypeError(f"expected an iterable of {expected}, found {found}") from None
    return rows


def _document(index: int, item: Any, decoder: Decoder) -> Document:
    if isinstance(item, Document):
        return _checked(index, item)
    plain = _plain(item)
    if isinstance(plain, str):
        return Document(plain)
    if isinstance(plain, Mapping):
        fields = {name: _plain(value) for name, value in plain.items()}
        try:
            return decoder.read(fields)
        except Refusal as refusal:
            raise ValueError(
                f"document {index}: {refusal}; correct or remove the document, or name other "
                "fields in the settings of records"
            ) from None
    advice = _ADVICE.get(type(plain), f"expected {_ITEMS}")
    raise TypeError(f"document {index} is {_shown(item)}; {advice}")


def _plain(value: Any) -> Any:
    """Return a value of numpy or Arrow as one of Python; None if it is missing."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]")  # nanoseconds would become an integer
    if isinstance(value, np.generic):
        value = value.item()
    elif hasattr(value, "as_py"):  # of Arrow
        value = value.as_py()
    is_nan = isinstance(value, float) and math.isnan(value)
    return None if is_nan or type(value).__name__ in _MISSING_OF_PANDAS else value


def _checked(index: int, document: Document) -> Document:
    for name in ("text", "id", "namespace"):
        value = getattr(document, name)
        if not isinstance(value, str):
            raise TypeError(f"document {index}: its {name} is {_shown(value)}; expected str")
    time = _integer(document.event_time_ms)
    expected = "whole milliseconds since the epoch"
    if time is None:
        found = _shown(document.event_time_ms)
        raise TypeError(f"document {index}: its event_time_ms is {found}; expected {expected}")
    if time != NO_TIMESTAMP and not 0 <= time < _TIMES_END:
        raise ValueError(f"document {index}: its event_time_ms is {time}; expected {expected}")
    return replace(document, event_time_ms=time)


def to_positions(given: Iterable[int | Position], count: int) -> list[Position]:
    """Return the positions that a caller gives to documents; an integer is an offset.

    Raises:
        TypeError: a position is neither an offset nor a position.
        ValueError: there is not one for each document, or they do not ascend.
    """
    positions: list[Position] = []
    ends: dict[tuple[str, int], int] = {}
    for index, item in enumerate(_rows(given, "integers or Positions")):
        position = item
        if not isinstance(item, Position):
            if (number := _integer(_plain(item))) is None:
                raise TypeError(
                    f"position {index} is {_shown(item)}; expected an integer or Position"
                )
            position = Position(TOPIC, 0, number)
        source, offset = (position.topic, position.partition), position.offset
        if not ends.get(source, 0) <= offset < _TIMES_END:
            raise ValueError(
                f"position {index} is {offset}; the offsets of a source must be 0 or more, and "
                "ascend"
            )
        ends[source] = offset + 1
        positions.append(position)
    if len(positions) != count:
        raise ValueError(f"there are {count} documents and {len(positions)} positions")
    return positions


def _integer(value: Any) -> int | None:
    """Return an integer of any type, such as one of numpy; None if the value is not an integer."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return operator.index(value)


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "..."
    return f"{text} of type {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class VerdictArrays:
    """The verdicts on ``n`` documents, in their order.

    Attributes:
        kept: ``(n,)`` bool, whether each document is kept.
        outcome: ``(n,)`` strings: kept, duplicate or rejected.
        original: ``(n,)`` strings, the id of the kept document that a duplicate repeats; else None.
        jaccard_estimate: ``(n,)`` float64, its similarity, estimated; else NaN.
        jaccard: ``(n,)`` float64, the similarity of the texts, if it was computed; else NaN.
        reason: ``(n,)`` strings, why a document was rejected; else None.
    """

    kept: NDArray[np.bool_]
    outcome: NDArray[np.object_]
    original: NDArray[np.object_]
    jaccard_estimate: F64
    jaccard: F64
    reason: NDArray[np.object_]

    @classmethod
    def of(cls, verdicts: JudgedVerdicts) -> VerdictArrays:
        """Return the verdicts on a batch."""
        count = len(verdicts)
        original, reason = (np.full(count, None, dtype=object) for _ in range(2))
        estimate, jaccard = (np.full(count, np.nan) for _ in range(2))
        rows = np.flatnonzero(verdicts.outcomes == DUPLICATE)
        if len(rows):
            matches = verdicts.matches.take(verdicts.document_rows[rows])
            first = np.concatenate([[0], matches.ends[:-1]])
            original[rows] = matches.ids.take(first).tolist()
            estimate[rows], jaccard[rows] = matches.estimates[first], matches.jaccards[first]
        for row, rejection in verdicts.rejections.items():
            reason[row] = rejection.reason
        kept = verdicts.outcomes == KEPT
        return cls(kept, _OUTCOMES[verdicts.outcomes], original, estimate, jaccard, reason)

    def __len__(self) -> int:
        return len(self.kept)

    def to_arrow(self) -> Any:
        """Return a table of Arrow with the attributes as columns; NaN becomes null.

        Raises:
            InputError: pyarrow is not installed.
        """
        arrow = load()
        return arrow.table(
            {
                "kept": self.kept,
                "outcome": arrow.array(self.outcome, arrow.string()),
                "original": arrow.array(self.original, arrow.string()),
                "jaccard_estimate": arrow.array(self.jaccard_estimate, from_pandas=True),
                "jaccard": arrow.array(self.jaccard, from_pandas=True),
                "reason": arrow.array(self.reason, arrow.string()),
            }
        )
