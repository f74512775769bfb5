"""Documents and band keys for the tests of the index's parts."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from streamdedup.columns import U64, Blobs, Strings
from streamdedup.index.rows import StoredRows

INT64 = st.integers(-(2**63), 2**63 - 1)
SEEDS = st.integers(0, 2**32 - 1)
SHIFT = np.uint64(24)
WIDTH = 8
SIZES = st.sampled_from([1, 2, 7, 4096])
VARIETIES = st.sampled_from([1, 3, 200])

FIELDS = st.one_of(
    st.lists(INT64, min_size=5, max_size=5),
    st.lists(st.integers(0, 300), min_size=5, max_size=5),
    st.lists(st.integers(2**40, 2**40 + 70_000), min_size=5, max_size=5),
)
DOCUMENTS = st.lists(
    st.tuples(
        FIELDS, st.text(max_size=5), st.binary(max_size=5), st.binary(min_size=8, max_size=8)
    ),
    min_size=1,
    max_size=20,
)


def rows_of(documents: list[tuple[list[int], str, bytes, bytes]]) -> StoredRows:
    """Return documents as columns."""
    return StoredRows(
        np.array([list(signature) for *_, signature in documents], dtype=np.uint8),
        np.array([fields for fields, *_ in documents], dtype=np.int64),
        Strings.of([id_ for _, id_, _, _ in documents]),
        Blobs.of([text for _, _, text, _ in documents]),
    )


def listed(rows: StoredRows) -> list[tuple[list[int], str, bytes, bytes]]:
    """Return what :func:`rows_of` was given."""
    signatures = [bytes(row) for row in rows.signatures]
    return list(zip(rows.fields.tolist(), rows.ids, rows.texts, signatures, strict=True))


def some_keys(seed: int, count: int, variety: int, columns: int = 1) -> U64:
    """Return band keys, some of which agree in the upper 8 or 40 bits only."""
    rng = np.random.default_rng(seed)
    upper = rng.integers(0, variety, (count, columns), dtype=np.uint64)
    spread = upper * np.uint64(0x9E3779B97F4A7C15)
    lower = rng.integers(0, 2**24, (count, columns), dtype=np.uint64)
    near = rng.integers(0, 3, (count, columns), dtype=np.uint64) << SHIFT
    return (spread >> np.uint64(56) << np.uint64(56)) | near | lower


def expected_bucket(keys: U64, key: int, size: int, first: int) -> list[int]:
    """Return the newest numbers of a key, newest first."""
    same = np.flatnonzero(keys >> SHIFT == np.uint64(key >> 24))
    found: list[int] = (first + same[::-1][:size]).tolist()
    return found
