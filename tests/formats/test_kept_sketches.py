"""The columns of kept sketches, which docs/internals/format.md describes."""

from __future__ import annotations

import re

from streamdedup.formats.sketches import ARCHIVE_TOPIC, KEPT_FORMAT, KEPT_TYPES
from tests.support.paths import ROOT
from tests.testkit.kept_sketches import SCHEMA


def section() -> str:
    """Return the section of docs/internals/format.md."""
    text = (ROOT / "docs" / "internals" / "format.md").read_text(encoding="utf-8")
    return text.split("\n## Kept sketches\n")[1].split("\n## ")[0]


def test_the_page_lists_the_columns() -> None:
    """Names, order and types of the page are those of the code, and of Arrow."""
    listed: dict[str, str] = {}
    for names, kind in re.findall(r"^\| (`.*?`) \| (\w+) \|", section(), re.MULTILINE):
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), kind)
    assert list(listed.items()) == list(KEPT_TYPES.items())
    assert {field.name: str(field.type) for field in SCHEMA} == KEPT_TYPES


def test_the_page_names_the_constants() -> None:
    """The version of the format, and the position of an archive's documents."""
    assert f"| `format` | int32 | {KEPT_FORMAT} in all rows |" in section()
    assert f"position `{ARCHIVE_TOPIC}`, partition 0, offset `place`" in section()
