"""Sizes of records as the brokers count them: compressed, if that makes a difference."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from streamdedup.kafka.messages import TopicFacts
from streamdedup.kafka.sizes import Additions, Compression, fits, roomy_message_bytes, taken
from streamdedup.model import Position, Record
from streamdedup.settings.load import load_settings

KIB = 1024
WORDS = b"some words that are repeated until the value is large " * 4_000
NOISE = random.Random(1).randbytes(len(WORDS))
COMPRESSIONS = get_args(Compression)


def topic(max_message_bytes: int = 64 * KIB, compression: str = "producer") -> TopicFacts:
    """Return a topic with this limit."""
    return TopicFacts("clean", 1, max_message_bytes, 0, 0, compression)


def record(value: bytes | None = None, **fields: object) -> Record:
    """Return a record."""
    return Record(Position("documents", 0, 0), value, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_part_counts_compressed(compression: Compression) -> None:
    """Value, key and headers compress with each codec, and not without one."""
    parts = [record(WORDS), record(key=WORDS), record(headers=(("h", WORDS),))]
    compresses = compression != "none"
    assert [fits(topic(), part, compression) for part in parts] == [compresses] * 3


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_noise_takes_its_size(compression: Compression) -> None:
    """What cannot be compressed is sent as it is, and takes no more than before."""
    assert not fits(topic(), record(NOISE), compression)
    assert len(NOISE) <= taken(topic(), record(NOISE), compression) <= len(NOISE) + 100


def test_a_topic_that_compresses_itself() -> None:
    """Another codec may take more bytes than ours, and none takes all of them."""
    assert fits(topic(compression="zstd"), record(WORDS), "zstd")
    for compression in ("uncompressed", "gzip"):
        assert not fits(topic(compression=compression), record(WORDS), "zstd")


def test_a_record_that_fits_is_not_compressed() -> None:
    """Its size is known without that."""
    small = record(WORDS[: 16 * KIB])
    assert taken(topic(), small, "zstd") == 16 * KIB
    assert taken(topic(16 * KIB), small, "zstd", 0) == 16 * KIB


def test_the_name_of_a_header_may_hold_any_bytes() -> None:
    """Bytes that are not UTF-8 are surrogates in a name."""
    name = b"\xff".decode("utf-8", "surrogateescape")
    assert fits(topic(), record(WORDS, headers=((name, None),)), "zstd")


def test_new_topics_have_room_for_every_addition() -> None:
    """A record as large as the source accepts fits, with the largest ids and all matches."""
    settings = load_settings(
        output={"route": "annotate", "max_matches": 100}, limits={"id_bytes": 8 * KIB}
    )
    additions = Additions.from_settings(settings)
    room = roomy_message_bytes(settings, len(NOISE))
    for added in (additions.clean, additions.duplicates, additions.dead_letter):
        assert fits(topic(room), record(NOISE), "none", added)


def test_a_topic_accepts_a_record_of_exactly_its_room() -> None:
    """One byte more is too much."""
    room = 64 * KIB - 4096
    assert fits(topic(), record(NOISE[:room]), "none")
    assert not fits(topic(), record(NOISE[: room + 1]), "none")


def test_additions_count_the_longest_form_of_an_id() -> None:
    """A byte of an id takes up to six in JSON; ids are in the record and in its matches."""
    settings = load_settings(limits={"id_bytes": 100}, output={"max_matches": 3})
    additions = Additions.from_settings(settings)
    assert additions.clean == 4096 + 600
    assert additions.duplicates == 4096 + 2 * 600 + 3 * (1024 + 600)
    assert additions.dead_letter == 4096
