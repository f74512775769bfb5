"""*Pure.* Kept sketches: the columns of a record batch of Parquet, checked, as documents.

docs/internals/format.md specifies the columns. pyarrow is optional: reading a file imports it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamdedup.batches import DocumentColumns, Sketches
from streamdedup.columns import I64, NO_BLOBS, U8, Blobs, Positions, Strings
from streamdedup.engine.arrow import blobs, load
from streamdedup.errors import IndexMismatch, InputError
from streamdedup.formats.sketches import ARCHIVE_TOPIC, KEPT_FORMAT, KEPT_TYPES
from streamdedup.sketch.parameters import SketchParameters

CONSTANT = ("fingerprint", "clock")
"""Columns that are read as dictionaries, since all rows have the same value."""


def check_schema(schema: Any, name: str) -> None:
    """Raise an InputError if a column is missing, or has another type; ignore further columns."""
    types = load("pyarrow").types
    for column, expected in KEPT_TYPES.items():
        if schema.get_field_index(column) < 0:
            raise InputError(
                f"{name} holds no kept sketches: it has no column {column!r}; "
                "docs/internals/format.md lists the columns"
            )
        found = schema.field(column).type
        if column in CONSTANT and types.is_dictionary(found):
            found = found.value_type
        if str(found) != expected:
            raise InputError(
                f"the column {column!r} of {name} is of type {found}, expected {expected}"
            )


def constants(batch: Any, name: str) -> tuple[str, bytes]:
    """Return the fingerprint and the clock of all rows; an InputError if a row has others."""
    formats = numbers(batch, "format", name)
    others = formats[formats != KEPT_FORMAT]
    if len(others):
        raise InputError(
            f"{name} holds kept sketches of format {others[0]}, this release reads {KEPT_FORMAT}; "
            "use the release that wrote them"
        )
    return _constant(batch, "fingerprint", name), _constant(batch, "clock", name)


def check_same(found: object, expected: object, name: str) -> None:
    """Raise an InputError if values of a file are not those of the archive's last file."""
    if found != expected:
        raise InputError(
            f"{name} has another fingerprint or clock than the last file; import the files of one "
            "archive"
        )


def check_fingerprint(found: str, parameters: SketchParameters, name: str) -> None:
    """Raise an IndexMismatch if sketches were made with other parameters."""
    expected = parameters.fingerprint()
    if found != expected:
        raise IndexMismatch(
            f"{name} was written with parameters {found}, the settings make {expected}; pass the "
            "configuration of the archive's deduplication with --config"
        )


def documents(
    batch: Any, parameters: SketchParameters, name: str, *, texts: bool
) -> tuple[DocumentColumns, I64]:
    """Return the documents of a batch, with texts if they are needed, and their effective times.

    Raises:
        InputError: a value is missing or has the wrong size.
        IndexMismatch: a text is missing.
    """
    places = numbers(batch, "place", name)
    zeros = np.zeros(len(places), dtype=np.int64)
    keys = _fixed(batch, "band_keys", 8 * (parameters.bands + 1), name)
    columns = DocumentColumns(
        ids=_ids(batch, name),
        positions=Positions((ARCHIVE_TOPIC,), zeros, zeros, places),
        event_times_ms=numbers(batch, "event_time_ms", name),
        namespaces=numbers(batch, "namespace", name).view(np.uint64),
        sketches=Sketches(
            signatures=_fixed(batch, "signature", parameters.signature_bytes, name),
            band_keys=keys.view("<u8").astype(np.uint64, copy=False),
        ),
        texts=_texts(batch, name) if texts else NO_BLOBS,
    )
    return columns, numbers(batch, "effective_time_ms", name)


def check_places(places: I64, last: int, name: str) -> None:
    """Raise an InputError if places do not ascend, from the one before them on."""
    wrong = np.flatnonzero(np.diff(places, prepend=last) <= 0)
    if len(wrong):
        row = wrong[0]
        before = places[row - 1] if row else last
        raise InputError(
            f"{name}: place {places[row]} comes after place {before}; the files in the order of "
            "their names must be those of one archive"
        )


def _column(batch: Any, column: str, name: str) -> Any:
    values = batch.column(column)
    if values.null_count:
        raise InputError(f"the column {column!r} of {name} has rows without a value")
    return values


def numbers(batch: Any, column: str, name: str) -> I64:
    """Return a column of integers, ``(n,)``; an InputError if a value is missing."""
    values: I64 = _column(batch, column, name).to_numpy(zero_copy_only=False)
    return values


def _constant(batch: Any, column: str, name: str) -> Any:
    found = _column(batch, column, name).unique()
    if len(found) != 1:
        raise InputError(
            f"the column {column!r} of {name} has {len(found)} values, expected one; import the "
            "files of one archive"
        )
    return found[0].as_py()


def _bytes(batch: Any, column: str, name: str) -> Blobs:
    return blobs(_column(batch, column, name).cast(load("pyarrow").large_binary()))


def _fixed(batch: Any, column: str, width: int, name: str) -> U8:
    """Return values that must have ``width`` bytes each, ``(n, width)``."""
    values = _bytes(batch, column, name)
    lengths = values.lengths()
    wrong = lengths[lengths != width]
    if len(wrong):
        raise InputError(
            f"the column {column!r} of {name} has a value of {wrong[0]} bytes, expected {width}"
        )
    rows: U8 = values.data[: values.size].reshape(len(values), width)
    return rows


def _ids(batch: Any, name: str) -> Strings:
    values = _bytes(batch, "id", name)
    try:
        return Strings(values.data, values.ends).check()
    except ValueError as error:
        raise InputError(f"the column 'id' of {name} is not valid UTF-8: {error}") from None


def _texts(batch: Any, name: str) -> Blobs:
    if batch.column("text").null_count:
        raise IndexMismatch(
            f"{name} was written without the texts that dedup.verify exact compares; set "
            "dedup.verify to estimate, or deduplicate the archive with dedup.verify exact"
        )
    return _bytes(batch, "text", name)
