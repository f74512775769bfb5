"""*Pure.* Bytes of our own: texts, positions, columns, changelog entries, clocks, headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np

from streamdedup.batches import DocumentColumns, IndexUpdate, Sketches
from streamdedup.columns import Blobs, Positions, Strings
from streamdedup.dedup.clock import Clock
from streamdedup.errors import IndexDamaged, IndexMismatch
from streamdedup.formats import changelog
from streamdedup.formats.arrays import has_version
from streamdedup.formats.corrections import count_replays, read_dead_letter, replay_headers
from streamdedup.formats.outputs import dead_letter_headers
from streamdedup.index.layout import Header, decode_header, difference, parameters_of
from streamdedup.model import (
    Position,
    Record,
    Rejection,
    SourceRange,
    format_position,
    parse_position,
)
from streamdedup.settings.dedup import DedupSettings
from streamdedup.sketch.texts import TextPacker, text_bytes, unpack_text
from tests.fuzz.cases import Block, each, expect, mutated, odd_integer, odd_text

_CASES = 256
FINGERPRINT = "0123456789abcdef"
"""Of the sketch parameters."""
_NO_LIMIT = 2**40
_REFUSALS = (IndexDamaged, IndexMismatch)


def _each_mutated(
    make: Callable[[Random], bytes], tokens: tuple[bytes, ...], check: Callable[[bytes], None]
) -> Block:
    """Return the block that checks damaged copies of what ``make`` returns."""

    def block(random: Random) -> int:
        sound = [make(random) for _ in range(_CASES // 8)]
        return each([mutated(random, each_, tokens) for each_ in sound * 8], check)

    return block


@contextmanager
def texts() -> Iterator[Block]:
    """A packed text is unpacked again; damaged bytes are a text or an error of ours."""
    packer = TextPacker(10_000)
    tokens = (b"\x28\xb5\x2f\xfd", b"\xff" * 8, b"\x00", b"\xe0", b"\x20", b"\xa0\xff\xff\xff\xff")

    def make(random: Random) -> bytes:
        text = odd_text(random, 60) * random.choice([1, 1, 40])
        packed = packer.pack(text)
        expect(unpack_text(packed) == text, text, "another text")
        expect(text_bytes(packed) == len(text.encode("utf-8", "surrogatepass")), text, "size")
        return packed

    def check(data: bytes) -> None:
        for read in (unpack_text, text_bytes):
            try:
                read(data)
            except IndexDamaged:
                continue

    yield _each_mutated(make, tokens, check)


@contextmanager
def positions() -> Iterator[Block]:
    """A text is a position that is written the same way, or a ValueError."""
    tokens = (b":", b"::", b"-1", b"0", b"\xd9\xa3", b"\n", b" ", b"9" * 20, b"\x00", b"topic")

    def make(random: Random) -> bytes:
        offset = random.getrandbits(int(random.random() * 63))
        position = Position("documents.a-b", random.getrandbits(20), offset)
        text = format_position(position)
        expect(parse_position(text) == position, text, "another position")
        return text.encode()

    def check(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        try:
            position = parse_position(text)
        except ValueError:
            return
        expect(parse_position(format_position(position)) == position, text, "not the same again")

    yield _each_mutated(make, tokens, check)


@contextmanager
def strings() -> Iterator[Block]:
    """A column accepts exactly the bytes and ends of valid strings, and gives these strings."""

    def block(random: Random) -> int:
        return each([_column(random) for _ in range(_CASES)], _check_column)

    yield block


def _column(random: Random) -> tuple[bytes, list[int]]:
    values = [
        odd_text(random, 6).encode("utf-8", "replace") for _ in range(int(random.random() * 5))
    ]
    data, ends = b"".join(values), np.cumsum([len(value) for value in values]).tolist()
    if random.random() < 0.7:
        data = mutated(random, data, (b"\xff", b"\xc3", b"\xa4", b"a", b"\xed\xa0\x80"))
    if ends and random.random() < 0.5:
        ends[random.randrange(len(ends))] += random.choice([-1, 1, 2**31, -len(data), 3])
    return data, [int(end) for end in ends]


def _check_column(case: tuple[bytes, list[int]]) -> None:
    data, ends = case
    column = Strings(np.frombuffer(data, dtype=np.uint8), np.array(ends, dtype=np.int64))
    starts = [0, *ends][: len(ends)]
    expected: list[str] | None = None
    if sorted([0, *ends]) == [0, *ends] and len(data) == (ends[-1] if ends else 0):
        try:
            expected = [data[a:b].decode() for a, b in zip(starts, ends, strict=True)]
        except UnicodeDecodeError:
            expected = None
    try:
        column.check()
    except ValueError:
        expect(expected is None, case, "valid strings are refused")
        return
    expect(expected is not None and list(column) == expected, case, "invalid strings pass")
    if expected:
        rows = np.arange(len(expected))[::-2]
        expect(list(column.take(rows)) == expected[::-2], case, "other rows")
        expect(list(Strings.concatenate([column, column])) == expected * 2, case, "not joined")
        expect(list(Strings.of(expected)) == expected, case, "not the same again")


def _update(random: Random, count: int) -> IndexUpdate:
    generator = np.random.default_rng(random.getrandbits(64))
    places = [
        Position(random.choice(["a", "b.c", ""]), random.getrandbits(31), random.getrandbits(63))
        for _ in range(count)
    ]
    times = generator.integers(-(2**63), 2**63 - 1, (2, count), dtype=np.int64)
    documents = DocumentColumns(
        ids=Strings.of([odd_text(random, 8).encode("utf-8", "replace").decode() for _ in places]),
        positions=Positions.of(places),
        event_times_ms=times[0],
        namespaces=generator.integers(0, 2**64 - 1, count, dtype=np.uint64),
        sketches=Sketches(
            generator.integers(0, 255, (count, 4), dtype=np.uint8),
            generator.integers(0, 2**64 - 1, (count, 3), dtype=np.uint64),
        ),
        texts=Blobs.of([random.randbytes(row) for row in range(count)] if count % 2 else []),
    )
    ranges = tuple(SourceRange(*place, place.offset + 1) for place in places[:2])
    deleted = tuple(random.getrandbits(62) for _ in range(count // 3))
    is_ahead = count % 5 == 0
    return IndexUpdate(
        random.getrandbits(62), documents, ranges, times[1], b"clock", deleted, is_ahead
    )


def _plain(update: IndexUpdate) -> tuple[Any, ...]:
    """Return everything in an update, so that every column is read."""
    documents = update.documents
    return (
        update.first_number,
        update.ranges,
        update.clock,
        update.is_ahead,
        update.deleted,
        update.effective_times_ms.tolist(),
        list(documents.ids),
        list(documents.positions),
        documents.positions.sources()[0],
        documents.event_times_ms.tolist(),
        documents.namespaces.tolist(),
        documents.sketches.signatures.tolist(),
        documents.sketches.band_keys.tolist(),
        list(documents.texts),
    )


def _check_entry(data: bytes) -> None:
    has_version(data)
    try:
        update = changelog.decode(data, FINGERPRINT)
    except _REFUSALS as error:
        expect("\n" not in str(error) and len(str(error)) < 1000, data, "a long message")
        return
    read = _plain(update)
    [again] = changelog.encode(update, FINGERPRINT, _NO_LIMIT)
    expect(_plain(changelog.decode(again, FINGERPRINT)) == read, data, "not the same again")


def _sound_entry(random: Random) -> tuple[IndexUpdate, bytes]:
    update = _update(random, int(random.random() * 7))
    [entry] = changelog.encode(update, FINGERPRINT, _NO_LIMIT)
    return update, entry


@contextmanager
def changelog_bytes() -> Iterator[Block]:
    """A valid entry is read again; damaged bytes are an update or an error of ours."""
    tokens = (
        b"\x91" * 3000, b"\x81\xa1a" * 3000, b"\xc1", b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x82\xa7version\x03\xa1x", b"\xdf\x7f\xff\xff\xff", b"\xc0", b"\xcf" + b"\xff" * 8,
        b"\xa1\xff",
        b"\xc7\x04\xff\x00\x00\x00\x00", b"\xd3\x80" + b"\x00" * 7, b"\xca\x7f\xc0\x00\x00",
    )  # fmt: skip

    def block(random: Random) -> int:
        update, entry = _sound_entry(random)
        found = changelog.decode(entry, FINGERPRINT)
        expect(_plain(found) == _plain(update), entry, "another update")
        return each([mutated(random, entry, tokens) for _ in range(32)], _check_entry) + 1

    yield block


@contextmanager
def changelog_fields() -> Iterator[Block]:
    """An entry whose fields do not fit together is an update or an error of ours."""

    def block(random: Random) -> int:
        _, entry = _sound_entry(random)
        fields = msgspec.msgpack.decode(entry)
        return each([altered(random, fields) for _ in range(32)], _check_entry)

    yield block


def altered(random: Random, fields: dict[str, Any]) -> bytes:
    """Return a map in which one or two fields have other values."""
    changed = dict(fields)
    for name in random.sample(sorted(fields), 1 + int(random.random() * 2)):
        changed[name] = _other(random, fields[name])
    return msgspec.msgpack.encode(changed)


def _other(random: Random, value: Any) -> Any:
    kind = random.random()
    if kind < 0.1:
        return random.choice([None, "", b"", [], {}, 0.5, True, 7])
    if isinstance(value, bytes):
        if kind < 0.6:
            return mutated(random, value, (b"\x00" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f"))
        wide = np.array([odd_integer(random) % 2**64 for _ in range(len(value) // 8)], np.uint64)
        return wide.tobytes()
    if isinstance(value, list):
        return [_other(random, each) for each in value] * random.choice([0, 1, 1, 2])
    if isinstance(value, int):
        return max(-(2**63), min(odd_integer(random), 2**64 - 1))
    return odd_text(random).encode("utf-8", "replace").decode()


@contextmanager
def clocks() -> Iterator[Block]:
    """The bytes of a clock are a clock that runs, or an error of ours."""

    def check(state: bytes) -> None:
        try:
            clock = Clock.from_state(state)
        except IndexDamaged:
            return
        again = Clock.from_state(clock.state())
        expect(again.state() == clock.state(), state, "not the same again")
        clock.advance(np.arange(20, dtype=np.int64))

    def make(random: Random) -> bytes:
        times = [odd_integer(random) for _ in range(int(random.random() * 19))]
        bounded = [max(-(2**63), min(time, 2**64 - 1)) for time in times]
        now = max(-(2**63), min(odd_integer(random), 2**64 - 1))
        return msgspec.msgpack.encode([now, bounded])

    tokens = (b"\x92", b"\x90", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7, b"\x91" * 3000)
    damaged = _each_mutated(make, tokens, check)

    def block(random: Random) -> int:
        if random.random() < 0.5:
            return damaged(random)
        return each([make(random) for _ in range(_CASES)], check)

    yield block


@contextmanager
def corrections() -> Iterator[Block]:
    """A dead letter is read as it was written, and any headers give a dead letter or nothing."""
    names = (
        "streamdedup-replays", "streamdedup-replayed-from", "__streamdedup.errors.topic",
        "__streamdedup.errors.partition", "__streamdedup.errors.offset",
        "__streamdedup.errors.stage",
        "__streamdedup.errors.exception.class.name", "__streamdedup.errors.value.omitted", "other",
    )  # fmt: skip

    def header(random: Random) -> tuple[str, bytes | None]:
        kind = random.random()
        if kind < 0.1:
            return random.choice(names), None
        if kind < 0.4:
            return random.choice(names), str(odd_integer(random)).encode()
        if kind < 0.6:
            return random.choice(names), b"t:%d:%d" % (odd_integer(random), odd_integer(random))
        return random.choice(names), random.randbytes(int(random.random() * 12))

    def make(random: Random) -> Record:
        before = tuple(header(random) for _ in range(int(random.random() * 4)))
        original = Record(Position("t", 3, random.getrandbits(40)), b"value", None, before)
        rejection = Rejection("decode", "InvalidJson", odd_text(random))
        headers = dead_letter_headers(original, rejection, omitted=random.random() < 0.5)
        letter = Record(Position("dead", 0, 1), b"value", None, tuple(headers))
        found = read_dead_letter(letter)
        expect(
            found is not None
            and found.original == original
            and (found.stage, found.reason) == ("decode", "InvalidJson"),
            letter, "another dead letter",
        )  # fmt: skip
        changed = [header(random) if random.random() < 0.2 else each_ for each_ in headers]
        return Record(letter.position, b"value", None, tuple(changed))

    def check(record: Record) -> None:
        found = read_dead_letter(record)
        if found is not None:
            counts = count_replays({found.original.position: found.copy})
            replay_headers(found.original, counts[found.original.position])

    yield lambda random: each([make(random) for _ in range(_CASES)], check)


@contextmanager
def headers() -> Iterator[Block]:
    """The header of an index is read, or refused by an error of ours that fits on a line."""
    parameters = [
        DedupSettings().sketch_parameters(),
        DedupSettings(shingle_unit="word", profile="post", seed=2**62).sketch_parameters(),
    ]
    sound = [Header(3, each_.described(), "documents-changelog") for each_ in parameters]
    encoded = [msgspec.json.encode(each_) for each_ in sound]
    tokens = (
        b"{", b"}",
        b'"', b":", b"null", b"[" * 3000, b'{"a":' * 3000, b"9" * 30, b"1.5", b"\xff", b"-1",
        b'"parameters":{', b'"format":3,', b'"format":2,', b"\\ud800", b"true", b'"num_perm":',
        b'"profile":"news"',
    )  # fmt: skip

    def check(raw: bytes) -> None:
        try:
            header = decode_header(raw, Path("index"))
            difference(header, sound[0])
            parameters_of(header).fingerprint()
        except _REFUSALS as error:
            expect("\n" not in str(error), raw, "more than a line")

    yield _each_mutated(lambda random: random.choice(encoded), tokens, check)
