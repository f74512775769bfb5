"""An index of other parameters, of another changelog or of another format is refused."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from streamdedup.errors import (
    IndexDamaged,
    IndexMismatch,
)
from streamdedup.index.header import FORMAT
from streamdedup.index.manifest import Manifest
from streamdedup.index.store import Index
from tests.support.builders import (
    open_index,
    parameters,
    small_settings,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("profile", "news"),
        ("profile_version", 2),
        ("shingle_unit", "word"),
        ("shingle_size", 4),
        ("shingle_bag", True),
        ("variant", "classic"),
        ("num_perm", 33),
        ("value_bits", 64),
        ("signature_bits", 8),
        ("bands", 7),
        ("rows", 3),
        ("seed", 2),
    ],
    ids=str,
)
def test_other_parameters(name: str, value: int | str, tmp_path: Path) -> None:
    """An index of another parameter is refused, and the error names the parameter."""
    settings = small_settings(tmp_path)
    Index(settings.index, parameters(), "log", texts=False).close()
    with pytest.raises(IndexMismatch, match=f"{name} .*settings say {value}"):
        Index(settings.index, parameters(**{name: value}), "log", texts=False)


def test_other_log(tmp_path: Path) -> None:
    """The index of another changelog is refused, and the error names both."""
    open_index(small_settings(tmp_path)).close()
    with pytest.raises(IndexMismatch, match="belongs to the embedded mode, not to changelog other"):
        open_index(small_settings(tmp_path), "changelog other")


@pytest.mark.damages_index
def test_other_format(tmp_path: Path) -> None:
    """An index of another format is refused, and the error names both formats."""
    settings = small_settings(tmp_path)
    open_index(settings).close()
    rewrite_header(tmp_path, {"format": 99})
    with pytest.raises(IndexMismatch, match=f"index format 99, this release reads {FORMAT}"):
        open_index(settings)


@pytest.mark.damages_index
@pytest.mark.parametrize("raw", ["not JSON", [], {"format": FORMAT}], ids=str)
def test_unreadable_header(raw: object, tmp_path: Path) -> None:
    """A header that is not valid JSON, or lacks a field, is damage."""
    settings = small_settings(tmp_path)
    open_index(settings).close()
    rewrite_header(tmp_path, raw)
    with pytest.raises(IndexDamaged, match="header"):
        open_index(settings)


def rewrite_header(directory: Path, content: object) -> None:
    """Replace the header: by a text as it is, or by an object as JSON."""
    raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    with (
        closing(Manifest(directory, None)) as manifest,
        manifest._write() as records,  # noqa: SLF001
    ):
        records.put("meta", b"header", raw)
