"""The command line, run in this process as it is typed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from streamdedup.cli import main
from tests.cli.examples import LINES, Command


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the caller's settings from the environment."""
    for name in os.environ:
        if name.upper().startswith("STREAMDEDUP_"):
            monkeypatch.delenv(name)


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Command:
    """Return a function that runs the command line here, and returns its exit code."""
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_bytes(b"".join(LINES))

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["streamdedup", *arguments])
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        code = ended.value.code
        return code if isinstance(code, int) else 0

    return run
