"""Fixtures of the settings' tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the caller's variables from the tests."""
    for name in os.environ:
        if name.upper().startswith("STREAMDEDUP_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of a settings file that a test may write."""
    return tmp_path / "settings.yaml"
