"""*Pure.* Made-up JSON documents with planted copies, the same in every run and process.

A document is made from its place in the stream alone, so that a copy can be made without its
original in memory. A near copy has a similarity of about 0.9: one word in forty is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64, U64

POST_BYTES = 300
ARTICLE_BYTES = 3000
EXACT = 0.10
"""Share of the documents that repeat the text of an earlier one."""
NEAR = 0.05
"""Share of the documents that repeat an earlier one with some words replaced."""

_SEED = 20_260_101
_VOCABULARY = 20_000
_SLOTS = 2**16
"""Entries of the table that words are drawn from, by 16 bits: a frequent word has many entries."""
_TOGETHER = 1000
"""Documents that are made together."""
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
        replaced: share of a near copy's words that are replaced; at least one word is.
    """

    def __init__(self, mean_bytes: int, stream: int = 0, replaced: float = _REPLACED) -> None:
        self._key = mixed(np.array([_SEED, stream], dtype=np.uint64))
        self._mean = (mean_bytes - _ENVELOPE_BYTES) / _MEAN_WORD_BYTES
        self._replaced = replaced
        self._table = np.array(_table(), dtype=np.object_)

    def values(self, planned: Plan, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the JSON of the documents from place ``start`` to ``stop``, exclusive."""
        stop = len(planned.originals) if stop is None else stop
        for first in range(start, stop, _TOGETHER):
            places = np.arange(first, min(first + _TOGETHER, stop))
            originals = planned.originals[places]
            texts = self.texts(originals, np.where(planned.near[places], places, originals))
            for place, text in zip(places.tolist(), texts, strict=True):
                yield encode(document_id(place), text)

    def texts(self, originals: I64, places: I64) -> list[str]:
        """Return the texts of originals and of near copies.

        Args:
            originals: places of documents that are no copies, ``(n,)``.
            places: for a near copy its own place, for a text as it is the original's, ``(n,)``.
        """
        keys = mixed(originals.astype(np.uint64) ^ self._key[0]) + self._key[1]
        spread = 1 + _SPREAD * (2 * _uniform(mixed(keys)) - 1)
        counts = np.maximum(1, np.rint(self._mean * spread)).astype(np.int64)
        columns = np.arange(int(counts.max(initial=1)))
        slots = _drawn(keys + np.uint64(1), len(columns))
        present = columns < counts[:, None]
        rows = np.flatnonzero(places != originals)
        if len(rows):
            changes = mixed(keys[rows] ^ places[rows].astype(np.uint64))
            lots = mixed(changes[:, None] + columns.astype(np.uint64))
            lots[~present[rows]] = np.uint64(2**64 - 1)
            ranks = lots.argsort(axis=1).argsort(axis=1)
            replaced = np.maximum(1, np.rint(counts[rows] * self._replaced))
            others = _drawn(changes ^ self._key[0], len(columns))
            slots[rows] = np.where(ranks < replaced[:, None], others, slots[rows])
        words = self._table[slots[present]].tolist()
        ends = np.cumsum(counts).tolist()
        return [" ".join(words[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def mixed(counters: U64) -> U64:
    """Return SplitMix64's output for counters (Steele, Lea, Flood 2014, figure 17), elementwise."""
    words = (counters + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _uniform(words: U64) -> NDArray[np.float64]:
    """Return numbers in [0, 1)."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _drawn(keys: U64, count: int) -> NDArray[np.uint16]:
    """Return ``count`` entries of the table for each key, ``(n, count)``."""
    steps = np.arange(-(-count // 4), dtype=np.uint64)
    return mixed(keys[:, None] + steps).view(np.uint16)[:, :count]


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
