"""The notebooks of the docs run, and are stored without their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.paths import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Proactor event loop")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell raises; the last one shows that nothing is judged twice."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook: Any = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    assert all(not cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=200, kernel_name="python3").execute(cwd=str(tmp_path))
    outputs = [cell.outputs for cell in notebook.cells if cell.get("outputs")]
    assert outputs[-1][0]["data"]["text/plain"] == "3000"


def test_there_are_notebooks() -> None:
    """An empty folder would pass the test above."""
    assert NOTEBOOKS
