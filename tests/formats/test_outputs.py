"""Output records: the duplicate record by its schema, and the headers."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import jsonschema
import pytest

from streamdedup.columns import Positions
from streamdedup.formats.outputs import (
    OutputRule,
    clean_headers,
    dead_letter_headers,
    duplicate_record,
    kept_headers,
    rejected_record,
)
from streamdedup.formats.schemas import duplicates_schema
from streamdedup.model import NO_TIMESTAMP, Match, Outcome, Position, Record, Rejection, Verdict
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import OutputSettings, Settings
from tests.support.paths import ROOT

SCHEMAS = ROOT / "docs" / "schemas"
RULE = OutputRule(0.8, "0123456789abcdef", include_value=False)
WITH_VALUE = OutputRule(0.8, "0123456789abcdef", include_value=True)
FULL = replace(RULE, headers="full")
POSITION = Position("posts", 3, 42)
OWN = (("trace", b"\x00\xff"), ("trace", None), ("streamdedup-id", b"theirs"))
RECORD = Record(POSITION, b'{"text":"caf\xc3\xa9"}', b"key", OWN, 1)
MATCHES = (
    Match("orig\u00e9", Position("posts", 0, 7), 0.98765432, 12.5),
    Match("second", Position("posts", 1, 8), 0.79, None, 0.81234567),
)
DUPLICATE = Verdict(Outcome.DUPLICATE, "mine", POSITION, 1_700_000_000_123, MATCHES)
KEPT = Verdict(Outcome.KEPT, "mine", POSITION)


def validator(name: str) -> jsonschema.Draft202012Validator:
    """Return the validator of a schema, after checking the schema itself."""
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


VALUES = [
    pytest.param(b'{"text":"caf\xc3\xa9"}', {"value": '{"text":"caf\u00e9"}'}, id="utf-8"),
    pytest.param(b"\xef\xbb\xbfx", {"value": "\ufeffx"}, id="byte-order-mark"),
    pytest.param(b"a\x00b", {"value": "a\x00b"}, id="nul"),
    pytest.param(b"", {"value": ""}, id="empty"),
    pytest.param(b"\xff", {"value_base64": base64.b64encode(b"\xff").decode()}, id="binary"),
    pytest.param(None, {"value": None}, id="null"),
]


@pytest.mark.parametrize("rule", [replace(RULE, schema_id=7), replace(WITH_VALUE, schema_id=7)])
@pytest.mark.parametrize("time_ms", [NO_TIMESTAMP, 1_700_000_000_123])
def test_duplicate_record_in_avro(rule: OutputRule, time_ms: int) -> None:
    """It has the fields of the JSON form; bytes stay bytes."""
    verdict = replace(DUPLICATE, event_time_ms=time_ms)
    written = duplicate_record(b"\xff", verdict, rule)
    schema = fastavro.parse_schema(json.loads(duplicates_schema("avro").text))
    read = fastavro.schemaless_reader(io.BytesIO(written[5:]), schema, None)
    assert isinstance(read, dict)
    plain = json.loads(duplicate_record(None, verdict, RULE))
    time = read.pop("event_time")
    assert plain.pop("event_time") == (
        time and time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
    assert read.pop("value") == (b"\xff" if rule.include_value else None)
    assert read["matches"][0].pop("jaccard") is None
    assert written[:5] == b"\0\0\0\0\x07"
    assert read == plain


def test_published_schemas() -> None:
    """The documentation has the schemas that the command prints."""
    for form, name in (("avro", "duplicate-record.avsc"), ("json", "duplicate-record.schema.json")):
        schema = duplicates_schema("avro" if form == "avro" else "json")
        assert schema.text == (SCHEMAS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("value", "fields"), VALUES)
def test_duplicate_record(value: bytes | None, fields: dict[str, Any]) -> None:
    """A duplicate record has every field of the schema, and the value if configured."""
    record = Record(POSITION, value)
    expected = {
        "schema_version": 1,
        "id": "mine",
        "position": {"topic": "posts", "partition": 3, "offset": 42},
        "event_time": "2023-11-14T22:13:20.123Z",
        "original": "orig\u00e9",
        "matches": [
            {
                "id": "orig\u00e9",
                "position": {"topic": "posts", "partition": 0, "offset": 7},
                "jaccard_estimate": 0.987654,
                "age_s": 12.5,
            },
            {
                "id": "second",
                "position": {"topic": "posts", "partition": 1, "offset": 8},
                "jaccard_estimate": 0.79,
                "age_s": None,
                "jaccard": 0.812346,
            },
        ],
        "threshold": 0.8,
        "fingerprint": "0123456789abcdef",
    }
    without = json.loads(duplicate_record(record.value, DUPLICATE, RULE))
    assert without == expected
    with_value = json.loads(duplicate_record(record.value, DUPLICATE, WITH_VALUE))
    assert with_value == expected | fields
    for content in (without, with_value):
        validator("duplicate-record").validate(content)


@pytest.mark.parametrize(("value", "fields"), VALUES)
def test_rejected_record(value: bytes | None, fields: dict[str, Any]) -> None:
    """A rejected line has every field of its schema, and the complete value."""
    rejection = Rejection("decode", "InvalidJson", "no JSON: \ud800")
    content = json.loads(rejected_record(Record(POSITION, value), rejection))
    validator("rejected-record").validate(content)
    assert (
        content
        == {
            "schema_version": 1,
            "position": {"topic": "posts", "partition": 3, "offset": 42},
            "stage": "decode",
            "reason": "InvalidJson",
            "message": "no JSON: \\ud800",
        }
        | fields
    )


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"original": None},
        {"matches": []},
        {"threshold": 1.5},
        {"fingerprint": "xyz"},
        {"event_time": "yesterday"},
        {"more": 1},
        {"value": "a", "value_base64": "YQ=="},
    ],
    ids="-".join,
)
def test_schema_refuses(change: dict[str, Any]) -> None:
    """The schema rejects wrong fields."""
    content = json.loads(duplicate_record(RECORD.value, DUPLICATE, RULE)) | change
    assert not validator("duplicate-record").is_valid(content)


@pytest.mark.parametrize(
    ("event_time_ms", "text"),
    [
        (-1, None),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_999, "2023-11-14T22:13:20.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, None),
        (2**62, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
    ids=["none", "epoch", "now", "last", "behind-the-last", "far", "farthest", "first"],
)
def test_event_time(event_time_ms: int, text: str | None) -> None:
    """An event time is written to the millisecond, or as null if it has no ISO 8601 form."""
    verdict = Verdict(Outcome.DUPLICATE, "mine", POSITION, event_time_ms, MATCHES)
    assert json.loads(duplicate_record(RECORD.value, verdict, RULE))["event_time"] == text


def test_compact_headers() -> None:
    """One header traces a kept record to its source; a duplicate also names its best match."""
    assert clean_headers(KEPT, RULE) == [("sd", b"3:42")]
    expected = [
        ("sd", b"3:42"),
        ("sd-original", "orig\u00e9".encode()),
        ("sd-jaccard", b"0.987654"),
    ]
    assert clean_headers(DUPLICATE, RULE) == expected
    verified = replace(DUPLICATE, matches=(replace(MATCHES[0], jaccard=0.98),))
    assert clean_headers(verified, RULE)[-1] == ("sd-jaccard", b"0.980000")


def test_headers_of_kept_records() -> None:
    """They are those of their verdicts."""
    positions = [POSITION, Position("posts", 0, 2**40)]
    for rule in (RULE, replace(RULE, headers="none")):
        expected = [clean_headers(replace(KEPT, position=each), rule) for each in positions]
        assert kept_headers(Positions.of(positions), rule) == expected


def test_the_rule_of_the_settings() -> None:
    """Each setting has its place."""
    settings = Settings(
        dedup=DedupSettings(threshold=0.7),
        output=OutputSettings(include_value=True, headers="full"),
    )
    expected = OutputRule(0.7, settings.fingerprint, True, "full")
    assert OutputRule.from_settings(settings) == expected
    assert OutputRule.from_settings(settings, 7) == replace(expected, schema_id=7)


def test_no_headers() -> None:
    """Nothing is added."""
    assert clean_headers(KEPT, replace(RULE, headers="none")) == []


def test_full_headers() -> None:
    """Each field of the verdict has a header."""
    headers = clean_headers(KEPT, FULL)
    assert headers == [
        ("streamdedup-verdict", b"kept"),
        ("streamdedup-id", b"mine"),
        ("streamdedup-topic", b"posts"),
        ("streamdedup-partition", b"3"),
        ("streamdedup-offset", b"42"),
        ("streamdedup-fingerprint", b"0123456789abcdef"),
    ]


def test_annotated_headers() -> None:
    """The headers of a duplicate on the clean topic have the content of its duplicate record."""
    headers = dict(clean_headers(DUPLICATE, FULL))
    assert headers["streamdedup-verdict"] == b"duplicate"
    assert headers["streamdedup-original"] == "orig\u00e9".encode()
    assert headers["streamdedup-jaccard-estimate"] == b"0.987654"
    assert "streamdedup-jaccard" not in headers
    record = json.loads(duplicate_record(RECORD.value, DUPLICATE, RULE))
    assert json.loads(headers["streamdedup-matches"] or b"") == record["matches"]
    verified = replace(DUPLICATE, matches=(replace(MATCHES[0], jaccard=0.98),))
    headers = dict(clean_headers(verified, FULL))
    assert headers["streamdedup-jaccard"] == b"0.980000"


@pytest.mark.parametrize("omitted", [False, True], ids=["whole", "value-omitted"])
def test_dead_letter_headers(omitted: bool) -> None:
    """A dead letter has its source position, the step that refused it, and the reason."""
    rejection = Rejection("decode", "IdNotUnicode", "a \ud800 in it")
    expected = [
        *OWN,
        ("__streamdedup.errors.topic", b"posts"),
        ("__streamdedup.errors.partition", b"3"),
        ("__streamdedup.errors.offset", b"42"),
        ("__streamdedup.errors.stage", b"decode"),
        ("__streamdedup.errors.exception.class.name", b"IdNotUnicode"),
        ("__streamdedup.errors.exception.message", b"a \\ud800 in it"),
    ]
    if omitted:
        expected.append(("__streamdedup.errors.value.omitted", b"16"))
    assert dead_letter_headers(RECORD, rejection, omitted=omitted) == expected
