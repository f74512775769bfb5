"""Code, messages and docs use the engineer's words; CONTRIBUTING.md has the rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

BANNED = re.compile(
    r"\b(?:anew|mend(?:s|ed|ing)?|shall|in vain|of one's own|for ever|goes? on|went on|going on"
    r"|nobody|somebody|deeds?|risen|lets? go of|tried again|thrice|whereof|wherefore|of which many"
    r"|(?<!there )is no (?!longer|more|less|need|other|such)\w+)\b",
    re.IGNORECASE,
)
"""Words that readers from all over the world stumble over, and the negation "X is no Y"."""

_LINE_BREAK = re.compile(r"\s*\n[ \t]*(?:#:? |// |\* |> )?[ \t]*")
_SUFFIXES = {
    *(".py", ".md", ".yaml", ".yml", ".toml", ".tpl", ".gotmpl", ".txt", ".tsv"),
    *(".js", ".css", ".html", ".j2", ""),
}
_TOP = ("Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "pyproject.toml")
_FOLDERS = (
    ".ci",
    ".github",
    "benchmarks",
    "config",
    "deploy",
    "docs",
    "helm",
    "streamdedup",
    "tests",
)


def _texts() -> list[Path]:
    """Return the files of the project that people read, apart from this one."""
    top = [path for path in ROOT.iterdir() if path.is_file() and path.name in _TOP]
    below = [path for folder in _FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [
        path
        for path in (*top, *below)
        if path.suffix in _SUFFIXES and path != Path(__file__) and "__pycache__" not in path.parts
    ]


def banned_words(text: str) -> list[str]:
    """Return the banned words of a text, also those that a line break cuts in two."""
    return BANNED.findall(_LINE_BREAK.sub(" ", text))


def test_no_file_uses_a_banned_word() -> None:
    """Docstrings, comments, messages and docs are free of them."""
    found = {
        str(path.relative_to(ROOT)): words
        for path in _texts()
        if (words := banned_words(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text", ["Start it anew.", "the value is no\n    # size", "to be read for\never", "It goes on."]
)
def test_banned_words_are_found(text: str) -> None:
    """The pattern sees through line breaks and comment signs."""
    assert banned_words(text)


@pytest.mark.parametrize("text", ["there is no file", "it is no longer used", "recommended"])
def test_plain_words_pass(text: str) -> None:
    """Common phrases that look alike are allowed."""
    assert banned_words(text) == []
