"""*Pure.* Made-up JSON documents with planted copies, the same in every run and process.

A document is made from its place in the stream alone, so that a copy can be made without its
original in memory. A near copy has a similarity of about .9: one word in forty is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64

POST_BYTES = 300
ARTICLE_BYTES = 3000
EXACT = 0.10
"""Share of the documents that repeat the text of an earlier one."""
NEAR = 0.05
"""Share of the documents that repeat an earlier one with some words replaced."""

_SEED = 20_260_101
_VOCABULARY = 20_000
_SLOTS = 2**16
"""Entries of the table that words are drawn from: a frequent word has many entries."""
_REPLACED = 1 / 40
_SPREAD = 0.25
"""The number of words varies by this share of the mean."""
_ENVELOPE_BYTES = len('{"id":"document-0000000000","text":""}')
_MEAN_WORD_BYTES = 8.15
"""Of a drawn word and a space; a test checks the size of documents."""

_CAPITALS, _COMMAS, _STOPS, _ACCENTS = 0.06, 0.06, 0.07, 0.005
"""Shares of the table's entries; about one post in six has a letter that is not ASCII."""

Rows = NDArray[np.bool_]


class Plan(NamedTuple):
    """Which documents of a stream are copies, and of which documents.

    Attributes:
        originals: for each copy the place of its original, else the own place, ``(n,)`` int64.
        near: whether each document is a near copy, ``(n,)``.
    """

    originals: I64
    near: Rows

    @property
    def copies(self) -> Rows:
        """Whether each document is a copy, ``(n,)``."""
        copies: Rows = self.originals != np.arange(len(self.originals))
        return copies


def plan(count: int, exact: float = EXACT, near: float = NEAR, lanes: int = 1) -> Plan:
    """Plan a stream: each copy repeats any earlier document that is not a copy.

    Args:
        count: number of documents.
        exact: share of exact copies.
        near: share of near copies.
        lanes: partitions that the documents go to in turn. A copy is in the partition of its
            original, because a reader sees partitions in any order.
    """
    rng = np.random.default_rng([_SEED, count])
    originals = np.arange(count, dtype=np.int64)
    nears: Rows = np.zeros(count, dtype=np.bool_)
    for lane in range(lanes):
        places = originals[lane::lanes].copy()
        drawn = rng.random(len(places))
        copies: Rows = drawn < exact + near
        copies[:1] = False
        earlier = np.cumsum(~copies)[copies]
        originals[lane::lanes][copies] = places[~copies][rng.integers(0, earlier)]
        nears[lane::lanes] = copies & (drawn < near)
    return Plan(originals, nears)


class Documents:
    """Writes the documents of a stream.

    Args:
        mean_bytes: mean size of a document's JSON.
        stream: number of the stream; the texts of two streams are unrelated.
    """

    def __init__(self, mean_bytes: int, stream: int = 0) -> None:
        self._seed = (_SEED, stream)
        self._mean = (mean_bytes - _ENVELOPE_BYTES) / _MEAN_WORD_BYTES
        self._table = _table()

    def values(self, planned: Plan, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the JSON of the documents from place ``start`` to ``stop``, exclusive."""
        originals, near = planned.originals[start:stop].tolist(), planned.near[start:stop].tolist()
        for place, (original, changed) in enumerate(zip(originals, near, strict=True), start):
            yield encode(document_id(place), self.text(original, place if changed else None))

    def text(self, original: int, changed_for: int | None = None) -> str:
        """Return the text of a document that is not a copy, or of a near copy of it.

        Args:
            original: the place of the document.
            changed_for: the place of the near copy; None for the text itself.
        """
        rng = np.random.default_rng([*self._seed, original])
        count = max(1, round(self._mean * rng.uniform(1 - _SPREAD, 1 + _SPREAD)))
        slots = rng.integers(0, _SLOTS, count)
        if changed_for is not None:
            changes = np.random.default_rng([*self._seed, original, changed_for])
            replaced = changes.permutation(count)[: max(1, round(count * _REPLACED))]
            slots[replaced] = changes.integers(0, _SLOTS, len(replaced))
        table = self._table
        return " ".join([table[slot] for slot in slots.tolist()])


def document_id(place: int) -> str:
    """Return the id of the document at a place."""
    return f"document-{place:010d}"


def encode(name: str, text: str) -> bytes:
    """Return the JSON of a document."""
    content = {"id": name, "text": text}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _table() -> list[str]:
    """Return words in Zipf's frequencies, some with a capital, an accent or punctuation."""
    rng = np.random.default_rng(_SEED)
    lengths = rng.integers(2, 13, _VOCABULARY).tolist()
    words = [bytes(rng.integers(97, 123, length, np.uint8)).decode() for length in lengths]
    frequencies = 1 / np.arange(10, _VOCABULARY + 10)
    drawn = rng.choice(_VOCABULARY, _SLOTS, p=frequencies / frequencies.sum()).tolist()
    table = [words[index] for index in drawn]
    for slot in np.flatnonzero(rng.random(_SLOTS) < _CAPITALS).tolist():
        table[slot] = table[slot].capitalize()
    for slot in np.flatnonzero(rng.random(_SLOTS) < _ACCENTS).tolist():
        table[slot] = table[slot][:-1] + "é"
    for share, sign in ((_COMMAS, ","), (_STOPS, ".")):
        for slot in np.flatnonzero(rng.random(_SLOTS) < share).tolist():
            table[slot] += sign
    return table
