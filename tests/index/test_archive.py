"""Importing an index: what is in the way. tests/cli/test_index.py exports and imports."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from streamdedup.errors import IndexUnusable
from streamdedup.index.archive import import_index
from tests.index.updates import fill
from tests.support.builders import open_index, small_settings


@pytest.mark.damages_index
@pytest.mark.parametrize(
    "theirs", ["segments/film.mov", "segments/00000000/film.mov", "importing/letter.txt"]
)
def test_an_import_removes_nothing_but_its_own(theirs: str, tmp_path: Path) -> None:
    """Files of the same names are refused and kept; the remains of a killed import are replaced."""
    source, target = tmp_path / "source", tmp_path / "target"
    with open_index(small_settings(source)) as index:
        fill(index, [[1]])
    file = target / theirs
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    with pytest.raises(IndexUnusable, match=f"{theirs.partition('/')[0]} already exists"):
        import_index(source, target)
    assert file.read_text() == "precious"
    shutil.rmtree(target)

    for remains in (target / "importing/manifest", target / "segments/00000000"):
        remains.mkdir(parents=True)
        (remains / "data.mdb").write_text("half")
    assert import_index(source, target) == 1
    assert sorted(path.name for path in target.iterdir()) == ["lock", "manifest", "segments"]
