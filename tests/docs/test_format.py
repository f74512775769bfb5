"""docs/format.md and the internals describe every reason, field and header."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import streamdedup
from streamdedup.formats import changelog, outputs
from streamdedup.index.layout import Checkpoint, FileEntry, Header, SegmentEntry, ShardEntry
from streamdedup.model import Match, Outcome, Position, Record, Rejection, Verdict
from tests.support.paths import ROOT

PAGES = ("format.md", "internals/format.md", "internals/stored-index.md")
DOCUMENT = "\n".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
SOURCES = sorted(Path(streamdedup.__file__).parent.rglob("*.py"))
NAME = re.compile(r'"([A-Z][a-z]+[A-Z][A-Za-z0-9]+)"')


def reasons() -> list[str]:
    """Return every quoted CamelCase word of the modules that reject records."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES]
    rejecting = [text for text in texts if "Rejection(" in text or "Refusal(" in text]
    return sorted({name for text in rejecting for name in NAME.findall(text)})


def test_reasons_are_found() -> None:
    """The search finds reasons of every stage, so the next test is not empty."""
    known = {"InvalidUtf8", "IdNotString", "TextTooLarge", "EmptyText", "ProcessDied"}
    assert known | {"RecordTooLarge", "TimestampInFuture", "NamespaceNotString"} <= set(reasons())


@pytest.mark.parametrize("reason", reasons())
def test_reason(reason: str) -> None:
    """Every rejection reason has a row in the table of invalid input."""
    assert re.search(
        rf"^\| .* \| (decode|sketch|produce) \| `{reason}` \|$", DOCUMENT, re.MULTILINE
    )


def test_no_unknown_reason_is_documented() -> None:
    """Every reason in the table exists in the source."""
    rows = re.findall(r"^\| .* \| (?:decode|sketch|produce) \| `(\w+)` \|$", DOCUMENT, re.MULTILINE)
    assert sorted(rows) == reasons()


@pytest.mark.parametrize(
    "field",
    [
        field.encode_name
        for struct in (
            changelog.ChangelogEntry,
            Header,
            Checkpoint,
            SegmentEntry,
            ShardEntry,
            FileEntry,
        )
        for field in msgspec.structs.fields(struct)
    ],
)
def test_field(field: str) -> None:
    """Every field of a changelog entry and of the manifest is described."""
    assert f"`{field}`" in DOCUMENT


POSITION = Position("t", 0, 0)
RECORD = Record(POSITION, b"x")
MATCH = Match("b", POSITION, 0.9, None, 0.8)
DUPLICATE = Verdict(Outcome.DUPLICATE, "a", POSITION, matches=(MATCH,))
RULE = outputs.OutputRule(0.8, "f" * 16, include_value=True)


def test_output_fields() -> None:
    """Every field of a duplicate record and every added header is described."""
    fields = msgspec.json.decode(outputs.duplicate_record(RECORD.value, DUPLICATE, RULE))
    headers = [
        *outputs.clean_headers(DUPLICATE, RULE),
        *outputs.clean_headers(DUPLICATE, replace(RULE, headers="full")),
        *outputs.dead_letter_headers(RECORD, Rejection("decode", "X", "y"), omitted=True),
    ]
    short = {"streamdedup-partition", "streamdedup-offset"}
    for name in fields:
        assert f"`{name}`" in DOCUMENT
    assert "`matches[].jaccard`" in DOCUMENT
    for name, _ in headers:
        if name in short or name.endswith((".partition", ".offset")):
            assert re.search(rf"`[-.]{re.split('[-.]', name)[-1]}`", DOCUMENT)
        else:
            assert f"`{name}`" in DOCUMENT
