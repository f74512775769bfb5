"""The command line as a whole: what it loads, its version and its help."""

from __future__ import annotations

import subprocess
import sys

from typer.testing import CliRunner

import streamdedup
from streamdedup.cli import main

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
