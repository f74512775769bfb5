"""The command line as a whole: what it loads, its version and its help."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import streamdedup
from streamdedup.cli import main
from streamdedup.errors import SettingsError

SLOW = ("aiokafka", "lmdb", "numba", "numpy", "pydantic")
"""Libraries that ``--help`` must not wait for."""


def test_help_loads_no_slow_library() -> None:
    """Importing the command line imports none of the libraries that commands load late."""
    code = "import sys, streamdedup.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "streamdedup" in loaded
    assert loaded.isdisjoint(SLOW)


def test_version() -> None:
    """The version is that of the installed package."""
    result = CliRunner().invoke(main.app, ["--version"])
    assert result.stdout == f"streamdedup {streamdedup.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["dedup", "x.jsonl", "--index", ""],
        ["dedup", "x.jsonl", "--config="],
        ["run", "--index", ""],
        ["demo", "--folder", ""],
        ["tune", "--plot", ""],
        ["evaluate", "x.jsonl", "--html", ""],
        ["backfill", "x.jsonl", "--out", ""],
        ["backfill", "x.jsonl", "--out", "y", "--work", ""],
        ["dedup", "x", ""],
        ["dedup", "x", "--kept", ""],
        ["evaluate", ""],
        ["index", "stats", ""],
        ["index", "delete", "--id", "a", ""],
        ["index", "export", "", "x.tar"],
        ["index", "export", "x", ""],
        ["index", "import", "", "x"],
        ["index", "import", "x", ""],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused(arguments: list[str]) -> None:
    """It would be the working directory, which a command with an unset variable would use."""
    error = CliRunner().invoke(main.app, arguments).exception
    assert isinstance(error, SettingsError)
    assert "is empty; give a path, or . for the working directory" in str(error)
