"""Documents as columns of arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.index.examples import DOCUMENTS, WIDTH, listed, rows_of
from tests.support.builders import examples


@given(documents=DOCUMENTS, gone=st.sets(st.integers(0, 19)))
@examples(60)
def test_erase(documents: list[tuple[list[int], str, bytes, bytes]], gone: set[int]) -> None:
    """An erased document has no signature, id, text and namespace; times and position remain."""
    gone = {row for row in gone if row < len(documents)}
    found = listed(rows_of(documents).erase(np.array(sorted(gone), dtype=np.int64)))
    assert found == [
        ([*document[0][:4], 0], "", b"", bytes(WIDTH)) if row in gone else document
        for row, document in enumerate(documents)
    ]


@given(documents=DOCUMENTS, wanted=st.text(max_size=2))
@examples(60)
def test_rows_with_id(documents: list[tuple[list[int], str, bytes, bytes]], wanted: str) -> None:
    """Whole ids are compared; a command line may ask for one that is not valid text."""
    ids = (["ab", wanted, "a", ""] * 5)[: len(documents)]
    rows = rows_of([(each[0], id_, *each[2:]) for each, id_ in zip(documents, ids, strict=True)])
    for id_ in (wanted, "b", "a", "\udcff"):
        assert rows.rows_with_id(id_) == [row for row, each in enumerate(ids) if each == id_]
