"""Blocks of documents: what is encoded is what is read by address."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.index import blocks
from streamdedup.index.memory import address
from streamdedup.index.rows import OFFSET, SOURCE
from tests.index.examples import DOCUMENTS, INT64, SEEDS, WIDTH, listed, rows_of
from tests.support.builders import examples


@given(documents=DOCUMENTS, seed=SEEDS)
@examples(150)
def test_round_trip(documents: list[tuple[list[int], str, bytes, bytes]], seed: int) -> None:
    """Documents come back from several blocks in any order, whatever their columns' widths."""
    parts = [documents, documents[::2]]
    values = [np.frombuffer(blocks.encode(rows_of(part)), dtype=np.uint8) for part in parts]
    rng = np.random.default_rng(seed)
    wanted = [(block, rng.integers(len(parts[block]))) for block in rng.integers(0, 2, 12)]
    found = blocks.gather(
        np.array([address(values[block]) for block, _ in wanted], dtype=np.int64),
        np.array([len(values[block]) for block, _ in wanted], dtype=np.int64),
        np.array([row for _, row in wanted], dtype=np.int64),
        WIDTH,
    )
    assert listed(found) == [parts[block][row] for block, row in wanted]


@given(documents=DOCUMENTS, asked=st.lists(st.tuples(INT64, INT64), max_size=5))
@examples(100)
def test_positions(
    documents: list[tuple[list[int], str, bytes, bytes]],
    asked: list[tuple[int, int]],
) -> None:
    """A position is found if, and only if, one document has both its source and its offset."""
    held = {(fields[SOURCE], fields[OFFSET]) for fields, *_ in documents}
    asked = [*asked, *held, *((source, 7) for source, _ in held)]
    value = np.frombuffer(blocks.encode(rows_of(documents)), dtype=np.uint8)
    found = blocks.find_positions(
        np.array([address(value)], dtype=np.int64),
        np.array([len(value)], dtype=np.int64),
        np.array([source for source, _ in asked], dtype=np.int64),
        np.array([offset for _, offset in asked], dtype=np.int64),
    )
    assert found.tolist() == [position in held for position in asked]
