"""docs/profiles.md describes every step and profile, with real examples."""

from __future__ import annotations

import re

import pytest

from streamdedup.sketch.normalize import PROFILES, STEPS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")


def cells(line: str) -> list[str]:
    """Return the cells of a table's row, with escapes replaced by their characters."""
    row = [cell.strip(" ") for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
    texts = [cell[1:-1] if cell.startswith("`") else cell for cell in row]
    return [
        re.sub(r"\\(u[0-9a-f]{4}|[nt|])", lambda found: ESCAPES.get(found[1]) or chr(
            int(found[1][1:], 16)
        ), text)
        for text in texts
    ]  # fmt: skip


ESCAPES = {"n": "\n", "t": "\t", "|": "|"}


def test_the_page_shows_every_step() -> None:
    """docs/profiles.md lists the steps in order, with correct examples."""
    rows = [cells(line) for line in PAGE.splitlines() if line.count(" | ") == 4]
    shown = {row[0]: row for row in rows if row[0] in STEPS}
    assert list(shown) == list(STEPS)
    for name, version, _, before, after in shown.values():
        assert version == str(STEPS[name].version)
        assert STEPS[name].change(before) == after
        assert before != after


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_page_shows_every_profile(profile: str) -> None:
    """docs/profiles.md has each profile's version and steps, and correct examples."""
    found = PROFILES[profile]
    section = PAGE.split(f"### `{profile}`, version {found.version}\n")[1].split("\n#")[0]
    assert f"Steps: {', '.join(f'`{step.name}`' for step in found.steps)}.\n" in section
    rows = [cells(line) for line in section.splitlines() if line.startswith("| `")]
    assert rows
    for before, after in rows:
        assert found(before) == after
