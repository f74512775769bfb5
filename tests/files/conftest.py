"""Fixtures of the embedded mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdedup.files.run import InProcess
from tests.files.workspace import Workspace, documents


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketch in this process; the tests with real processes start the command."""
    monkeypatch.setattr("streamdedup.files.run.SketchPool", InProcess)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Return a workspace with thirty documents as input, ten of them duplicates."""
    made = Workspace(tmp_path)
    made.input.write_bytes(documents(0, 30))
    return made
