"""``streamdedup demo`` on a made-up library."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdedup.files.docstrings import docstrings
from tests.cli.examples import Command

MODULE = '''
"""The first module of a library that is made up, with a text of some length to be read."""


class Reader:
    """Reads records from a file, one after the other, until the file has come to its end."""

    def read(self):
        """Read one record; return nothing when the file has come to its end, or is closed."""

    if True:
        async def skip(self):
            """Skip one record; return nothing when the file has come to its end, or is closed."""


def read():
    """A lone surrogate: \\\\ud800"""


def read():
    """Read one record; return nothing when the file has come to its end, or is closed!"""

    def inner():
        """Inner."""
'''


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a folder of modules; some cannot be read, and some must not be read."""
    root = tmp_path / "library"
    for name, content in {
        "first.py": MODULE.replace("\\\\", "\\").encode(),
        "package/__init__.py": b'"""A package."""',
        "package/module.py": b'try:\n  pass\nexcept E:\n  def f():\n    """In a handler."""',
        "broken.py": b"def",
        "latin.py": b"# coding: latin-1\n'''caf\xe9'''",
        "binary.py": b"\xff\x00",
        "test/test_first.py": b'"""A test."""',
        "site-packages/other.py": b'"""Not the library."""',
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def test_the_corpus_is_every_documentation_string(library: Path) -> None:
    """Names are unique, nested definitions are found, and unreadable files are skipped."""
    found = dict(docstrings(library))
    assert list(found) == [
        "first",
        "first:Reader",
        "first:Reader.read",
        "first:Reader.skip",
        "first:read",
        "first:read.inner",
        "latin",
        "package",
        "package.module:f",
    ]
    assert found["latin"] == "café"


def test_the_demo_shows_pairs_and_leaves_its_files(
    command: Command,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """It runs twice in the same folder, and marks the differences of near-duplicates."""
    monkeypatch.setattr("streamdedup.files.docstrings.sysconfig.get_path", lambda _: str(library))
    for _ in range(2):
        assert command("demo", "--folder", "out") == 0
        output = capfdbinary.readouterr().out.decode()
        assert "9 documentation strings in out/docstrings.jsonl" in output
        assert "similarity 0." in output
        assert "[closed.]" in output
        assert "[closed!]" in output
        assert "streamdedup dedup out/docstrings.jsonl --kept out/kept.jsonl" in output
        assert max(map(len, output.splitlines()[:-10])) <= 80
    kept = len(Path("out/kept.jsonl").read_bytes().splitlines())
    assert kept + len(Path("out/duplicates.jsonl").read_bytes().splitlines()) == 9


def test_the_demo_refuses_a_folder_with_other_files(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A folder with other files is not changed."""
    assert command("demo", "--folder", ".") == 4
    assert b"streamdedup: . contains other files" in capfdbinary.readouterr().err
    assert Path("in.jsonl").exists()


def test_the_demo_refuses_the_outputs_of_a_job(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """They may have the names of the demo's outputs."""
    Path("mine/index").mkdir(parents=True)
    Path("mine/kept.jsonl").write_text("{}\n")
    assert command("demo", "--folder", "mine") == 4
    assert b"streamdedup: mine contains other files" in capfdbinary.readouterr().err
    assert Path("mine/kept.jsonl").read_text() == "{}\n"
    assert Path("mine/index").is_dir()
