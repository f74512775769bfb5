"""The commands that install extras, and no package of a stranger."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from typing import NoReturn

import pytest

from streamdedup.extras import install
from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
BARE = re.compile(
    r"streamdedup\[[\w,]+\]"
    r"|\b(?:install|add|download|inject|uvx|pipx run|tool run)(?: +-\S+)* +['\"]?streamdedup"
    r"(?![\w/.-]|\[|['\"]? @ )"
    r"|\bstreamdedup *(?:==|~=|>=|<=) *\d"
)
"""What a package index answers with the package of another project."""
FORBIDDEN = [
    "pip install 'streamdedup[arrow]'",
    "pip install streamdedup",
    "python -m pip install --upgrade streamdedup",
    "uv add streamdedup",
    "uv tool install streamdedup",
    "pipx install 'streamdedup'",
    "uvx streamdedup dedup",
    "Needs `streamdedup[spark]`.",
    "streamdedup==0.1.0",
]
ALLOWED = [
    "pip install .",
    "pip install '.[arrow]'",
    "pip install 'streamdedup-filter[arrow] @ git+https://github.com/streamdedup/streamdedup'",
    "pip install 'streamdedup-filter @ git+https://github.com/streamdedup/streamdedup'",
    "helm install dedup helm/streamdedup",
    "pip install streamdedup_filter-0.1.0-py3-none-any.whl",
]


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"dev"}))
def test_an_extra_is_installed_by_its_packages(extra: str) -> None:
    """The command has the packages and versions that ``pyproject.toml`` names, and not our name."""
    command = install(extra)
    assert command.startswith("pip install ")
    assert "streamdedup" not in command
    names = {re.split(r"[<>=]", each)[0] for each in EXTRAS[extra]}
    assert all(re.search(rf"[ ']{re.escape(name)}[<>=]", command) for name in names)
    assert command.count("<") == sum(each.count("<") for each in EXTRAS[extra])


def test_a_source_tree_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout is there, so that its extras can be installed."""

    def missing(_: str) -> NoReturn:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", missing)
    assert install("arrow") == "pip install '.[arrow]' in the checkout"


@pytest.mark.parametrize("text", FORBIDDEN)
def test_a_bare_name_is_found(text: str) -> None:
    """The pattern knows the common programs."""
    assert BARE.search(text)


@pytest.mark.parametrize("text", ALLOWED)
def test_a_direct_reference_is_allowed(text: str) -> None:
    """A path or an address says whose package it is."""
    assert not BARE.search(text)


def test_no_file_installs_a_stranger() -> None:
    """In the public package index, the name streamdedup belongs to another project."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if name == "tests/test_extras.py" or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{name}: {match[0]}" for match in BARE.finditer(text)]
    assert found == []
