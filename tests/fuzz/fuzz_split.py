"""*Pure.* What edges and the judge send one another: sketched ranges and verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import msgspec
import numpy as np

from streamdedup.batches import SketchedRange
from streamdedup.columns import Positions
from streamdedup.errors import IndexMismatch, TopicError
from streamdedup.formats import sketches, verdicts
from streamdedup.formats.verdicts import ReadVerdicts, VerdictEncoder
from streamdedup.model import Match, Outcome, Position, Rejection, SourceRange, Verdict
from tests.fuzz.cases import Block, each, expect, mutated
from tests.fuzz.fuzz_formats import FINGERPRINT, altered
from tests.support.builders import columns, verdicts_of

_NO_LIMIT = 2**40
_TOKENS = (b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 3000, b"\xff" * 8,
           b"\x00" * 8, b"\xcb\x7f\xf8" + b"\x00" * 6, b"\xd3\x80" + b"\x00" * 7)  # fmt: skip


def _check_sketches(data: bytes) -> None:
    try:
        sketched = sketches.decode(data, FINGERPRINT)
    except (IndexMismatch, TopicError) as error:
        expect("\n" not in str(error) and len(str(error)) < 1000, data, "a long message")
        return
    _, _, start, stop = sketched.source
    for offset in sketched.documents.positions.offsets.tolist():
        expect(start <= offset < stop, data, "an offset beside the range")
    [again] = sketches.encode(sketched, FINGERPRINT, _NO_LIMIT)
    expect(len(sketches.decode(again, FINGERPRINT)) == len(sketched), data, "not the same again")


@contextmanager
def sketched_ranges() -> Iterator[Block]:
    """Damaged bytes and fields are a range that can be used, or an error of ours."""

    def block(random: Random) -> int:
        count = int(random.random() * 6)
        sketched = SketchedRange(
            SourceRange("documents", 0, 5, 20),
            columns([[random.getrandbits(64)] * 9 for _ in range(count)], 5),
            frozenset(range(count // 3)),
            {19: Rejection("decode", "BadJson", "no")},
        )
        [value] = sketches.encode(sketched, FINGERPRINT, _NO_LIMIT)
        fields = msgspec.msgpack.decode(value, strict=False)
        return each(
            [
                *(mutated(random, value, _TOKENS) for _ in range(16)),
                *(altered(random, fields) for _ in range(16)),
            ],
            _check_sketches,
        )

    yield block


def _check_verdicts(data: bytes) -> None:
    try:
        judged = verdicts.decode(data)
    except TopicError as error:
        expect("\n" not in str(error) and len(str(error)) < 1000, data, "a long message")
        return
    count = 20
    positions = Positions(
        ("documents",), np.zeros(count, np.int64), np.zeros(count, np.int64), np.arange(count)
    )
    for verdict in ReadVerdicts(positions, [judged]):
        expect(verdict.outcome is not Outcome.REJECTED or verdict.rejection is not None, data, "?")


@contextmanager
def judged_ranges() -> Iterator[Block]:
    """Damaged bytes and fields are verdicts that can be used, or an error of ours."""

    def block(random: Random) -> int:
        found = [
            Verdict(
                Outcome.DUPLICATE,
                f"id-{offset}",
                Position("documents", 0, offset),
                0,
                (Match("m", Position("old", 0, random.getrandbits(40)), 0.9, 1.0),),
            )
            for offset in range(int(random.random() * 6))
        ]
        column = verdicts_of(found)
        sketched = SketchedRange(
            SourceRange("documents", 0, 0, 20),
            column.documents,
            frozenset(),
            {19: Rejection("decode", "BadJson", "no")},
        )
        encoder = VerdictEncoder(column, _NO_LIMIT, keeps_ids=random.random() < 0.5)
        [value] = encoder.encode(sketched, 0)
        fields = msgspec.msgpack.decode(value)
        return each(
            [
                *(mutated(random, value, _TOKENS) for _ in range(16)),
                *(altered(random, fields) for _ in range(16)),
            ],
            _check_verdicts,
        )

    yield block
