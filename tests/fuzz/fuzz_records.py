"""*Pure.* Records: decoding one, and preparing batches of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from streamdedup.engine.prepare import Preparer
from streamdedup.formats import objects
from streamdedup.formats.objects import Refusal
from streamdedup.formats.records import Decoder
from streamdedup.model import NO_TIMESTAMP, Position, Record
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import (
    IndexSettings,
    LimitSettings,
    RecordSettings,
    Settings,
)
from tests.fuzz.cases import Block, Finding, each, expect, mutated, odd_integer, odd_text

_CASES = 256
_LIMITS = LimitSettings(value_bytes=4096, text_bytes=64, id_bytes=16)
_FIELDS = RecordSettings(
    text_fields=("text", "a.b"),
    id_field="id",
    namespace_field="meta.space",
    event_time_field="time",
)
_DECODERS = (
    Decoder(RecordSettings(), LimitSettings()),
    Decoder(_FIELDS, _LIMITS),
    Decoder(_FIELDS, _LIMITS.model_copy(update={"long_text": "cut"})),
    Decoder(RecordSettings(format="text"), _LIMITS),
    Decoder(RecordSettings(format="text"), _LIMITS.model_copy(update={"long_text": "cut"})),
)
_SETTINGS = (LimitSettings(), _LIMITS, _LIMITS, _LIMITS, _LIMITS)
_EXAMPLES = (
    b'{"text": "A short story.", "id": "one", "time": "2024-02-29T12:00:00Z"}',
    b'{"text":"caf\\u00e9 \\ud83d\\ude00","id":17,"time":1700000000,"meta":{"space":"news"}}',
    b'{"a": {"b": "nested", "c": [1, 2.5, -3e2, true, false, null]}, "time": "2024-02-29"}',
    b'{"text": null, "a": {"b": "second"}, "id": null, "time": 1700000000000.5, "meta": 3}',
    '{"text": "\u4eca\u65e5\u306f \U0001f600 e\u0301", "id": "\u00fc"}'.encode(),
    b"plain text, two lines\nand an umlaut \xc3\xa4",
)
_TOKENS = (
    b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"\\u", b"\\ud800", b"\\udc00", b"\\u0000",
    b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-0", b"9" * 25, b"0." + b"1" * 30, b"1E5",
    b"9223372036854775807", b"18446744073709551616", b'"text"', b'"id"', b'"time"', b'"meta"',
    b'"a"', b'{"space":', b'{"b":', b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x00",
    b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"[" * 40, b'{"a":' * 30, b"x" * 70, b"\xf0\x9f\x98\x80" * 20,
    b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59", b"+292277026596-12-04", b"T24:00",
)  # fmt: skip


@contextmanager
def records() -> Iterator[Block]:
    """Any bytes become a document within the limits, or are refused with a reason."""

    def block(random: Random) -> int:
        return each([_case(random) for _ in range(_CASES)], _check_record)

    yield block


Case = tuple[int, bytes | None, bytes | None, int]


def _case(random: Random) -> Case:
    kind = random.random()
    value = random.choice(_EXAMPLES) if kind < 0.7 else _made(random)
    if kind < 0.65 or kind > 0.85:
        value = mutated(random, value, _TOKENS)
    key = None if random.random() < 0.7 else random.randbytes(int(random.random() * 20))
    return int(random.random() * len(_DECODERS)), value, key, odd_integer(random)


def _made(random: Random) -> bytes:
    """Return the JSON of a random object with the fields that the settings name."""
    names = random.sample(["text", "id", "time", "meta", "a", "other"], int(random.random() * 5))
    value = {name: _value(random, 3) for name in names}
    return json.dumps(value, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")


def _value(random: Random, depth: int) -> Any:
    kind = int(random.random() * (9 if depth else 7))
    if kind <= 2:
        return odd_text(random, 30)
    if kind == 3:
        return odd_integer(random)
    if kind == 4:
        return random.choice([None, True, False, 0.1, -1.5, 1e300, 1e18, 5e-324])
    if kind in {5, 6}:
        return random.choice(["2024-02-29", "2023-02-29", "2024-02-29T24:00", "20240229T1200Z", ""])
    if kind == 7:
        return [_value(random, depth - 1) for _ in range(int(random.random() * 3))]
    return {
        name: _value(random, depth - 1) for name in ("b", "space", "c") if random.random() < 0.6
    }


def _check_record(case: Case) -> None:
    which, value, key, timestamp_ms = case
    limits = _SETTINGS[which]
    try:
        document = _DECODERS[which].decode_value(value, key, timestamp_ms)
    except Refusal as refusal:
        refused = refusal.rejection
        expect(refused.stage == "decode" and refused.reason.isidentifier(), case, "odd reason")
        expect(0 < len(refused.message) <= 500, case, "odd message")
        if refused.reason == "InvalidJson" and _parses(value):
            raise Finding(case, "valid JSON is refused") from refusal
        return
    expect(len(document.text.encode("utf-8", "surrogatepass")) <= limits.text_bytes, case, "long")
    expect(len(document.id.encode()) <= limits.id_bytes, case, "long id")
    time_ms = document.event_time_ms
    expect(time_ms == timestamp_ms or 0 <= time_ms < 2**63, case, f"time {time_ms}")
    if which < 3 and value is not None:
        expect(objects.parse_json(value) == json.loads(value), case, "parsers differ")


def _parses(value: bytes | None) -> bool:
    """Tell whether the standard library accepts a value, by the rules that docs state."""
    try:
        json.loads((value or b"").decode(), parse_constant=objects._refuse_constant)  # noqa: SLF001
    except (ValueError, RecursionError):
        return False
    return True


def _preparer(**dedup: Any) -> Preparer:
    return Preparer(
        Settings(
            records=_FIELDS,
            limits=_LIMITS.model_copy(update={"text_bytes": 1000}),
            dedup=DedupSettings(num_perm=32, bands=8, rows=2, **dedup),
            index=IndexSettings(directory=Path("unused")),
        )
    )


@contextmanager
def batches() -> Iterator[Block]:
    """A batch of any records has the same sketches as its records one by one."""
    preparers = [
        _preparer(threshold=0.5),
        _preparer(threshold=0.5, shingle_unit="word", shingle_size=2, profile="post"),
        _preparer(threshold=0.5, shingle_bag=True, variant="classic", empty_text="reject"),
        _preparer(threshold=0.5, verify="exact", profile="forum", shingle_size=1),
    ]

    def block(random: Random) -> int:
        preparer = random.choice(preparers)
        batch = [
            Record(Position("t", 0, row), value, key, (), max(-(2**63), min(time_ms, 2**63 - 1)))
            for row, (_, value, key, time_ms) in enumerate(_case(random) for _ in range(32))
        ]
        return each([(preparer, batch)], lambda case: _check_batch(*case)) and len(batch)

    yield block


def _check_batch(preparer: Preparer, batch: list[Record]) -> None:
    whole = preparer.prepare_records(batch)
    rows = whole.rows.tolist()
    expect(sorted([*rows, *whole.rejections]) == list(range(len(batch))), batch, "records lost")
    for place, row in enumerate(rows):
        alone = preparer.prepare_records([batch[row]]).documents
        taken = whole.documents.take(np.array([place]))
        same = (
            list(alone.ids) == list(taken.ids)
            and alone.event_times_ms.tolist() == taken.event_times_ms.tolist()
            and alone.namespaces.tolist() == taken.namespaces.tolist()
            and alone.sketches.signatures.tolist() == taken.sketches.signatures.tolist()
            and alone.sketches.band_keys.tolist() == taken.sketches.band_keys.tolist()
            and list(alone.texts) == list(taken.texts)
        )
        expect(same, batch[row], "a record differs from itself in a batch")
        expect(taken.event_times_ms[0] >= NO_TIMESTAMP or batch[row].timestamp_ms < NO_TIMESTAMP,
               batch[row], "a negative time")  # fmt: skip
