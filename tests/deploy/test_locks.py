"""Lock files are installed as they are.

A lock names all packages. Without ``--no-deps``, pip 23 looks at the newest version of a package
that another one requires with an extra, and refuses it because the lock has an older one. A fresh
installation then fails on the day of that package's next release.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPTS = ["Makefile", "deploy/Dockerfile", ".ci/audit", ".ci/chart", ".ci/package", ".ci/release"]
INSTALL = re.compile(r"\bpip\b.*\binstall\b.*\.lock\b|\bpip_install\b.*\.lock\b")
SHORTHANDS = re.compile(r"^(?:LOCKED :=|pip_install\(\) \{\n).* --no-deps\b", re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS)
def test_dependencies_are_not_resolved_again(script: str) -> None:
    """Each command that installs a lock has the option, or a shorthand that has it."""
    text = (ROOT / script).read_text(encoding="utf-8")
    allowed = ["--no-deps"]
    if SHORTHANDS.search(text):
        allowed += ["$(LOCKED)", "pip_install "]
    commands = [
        command
        for command in re.split(r"\n|&&", text.replace("\\\n", " "))
        if INSTALL.search(command)
    ]
    assert commands
    assert [each for each in commands if not any(word in each for word in allowed)] == []


def test_no_script_is_forgotten() -> None:
    """All files that install a lock are in the list."""
    folders = [ROOT / ".ci", ROOT / "deploy", ROOT / ".github"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    found = [path for path in files if _installs_a_lock(path)]
    assert {str(path.relative_to(ROOT)) for path in found} <= set(SCRIPTS)


def _installs_a_lock(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    except UnicodeDecodeError:
        return False
    return INSTALL.search(text) is not None
