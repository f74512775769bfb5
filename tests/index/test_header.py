"""An index of other parameters, of another changelog or of another format is refused."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streamdedup.errors import (
    IndexDamaged,
    IndexMismatch,
)
from streamdedup.index.layout import FORMAT
from streamdedup.index.manifest import Manifest
from streamdedup.index.store import Index
from streamdedup.index.view import View
from streamdedup.sketch.parameters import UNKNOWN_SEED
from streamdedup.sketch.sketcher import Sketcher
from tests.support.builders import (
    open_index,
    parameters,
    small_settings,
)

SECRET_SEED = {"seed": 8_123_456_789_012_345_678, "seed_hash": "a"}
DATA = "manifest/data.mdb"


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


@pytest.mark.parametrize(
    ("stored", "expected", "message"),
    [
        ({"seed": 7}, SECRET_SEED, r"with seed 7 \(the settings have a dedup\.seed_file\)"),
        (SECRET_SEED, {"seed": 7}, "with a secret seed .the settings have no dedup.seed_file"),
        (SECRET_SEED, {"seed": 8, "seed_hash": "b"}, "another secret seed than that in dedup"),
    ],
    ids=["no secret", "a secret", "another secret"],
)
def test_other_secret_seed(
    stored: dict[str, Any], expected: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """An index of another secret is refused; the error shows neither secret nor seed."""
    settings = small_settings(tmp_path)
    Index(settings.index, parameters(**stored), "log", texts=False).close()
    with pytest.raises(IndexMismatch, match=message) as caught:
        Index(settings.index, parameters(**expected), "log", texts=False)
    assert str(SECRET_SEED["seed"]) not in str(caught.value)


def test_a_secret_seed_is_not_stored(tmp_path: Path) -> None:
    """The header has the hash of a secret; its sketch parameters are known but for the seed."""
    settings, secret = small_settings(tmp_path), parameters(**SECRET_SEED)
    Index(settings.index, secret, "log", texts=False).close()
    with View(tmp_path) as view:
        assert view.parameters.described() == secret.described()
        assert view.parameters.fingerprint() == secret.fingerprint()
        assert view.parameters.seed == UNKNOWN_SEED
        assert str(SECRET_SEED["seed"]).encode() not in (tmp_path / DATA).read_bytes()
        with pytest.raises(IndexMismatch, match=r"secret seed.*dedup\.seed_file"):
            Sketcher(view.parameters)


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
@pytest.mark.parametrize(
    "raw",
    ["not JSON", [], {"format": FORMAT}, "[" * 100_000],
    ids=["not JSON", "a list", "fields missing", "nested too deeply"],
)
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
