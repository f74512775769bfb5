"""Stored indexes and changelogs: this release reads its own formats and refuses others (F34).

An example is written once, by :mod:`tests.compatibility.write`, and never changed. Each release
reads or refuses the examples of older ones. What it writes itself equals the example of the same
version, so that older releases can read it after a downgrade.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamdedup.errors import IndexMismatch
from streamdedup.formats import changelog
from streamdedup.formats.arrays import has_version
from streamdedup.index.layout import FORMAT, Checkpoint, Header
from streamdedup.index.manifest import Manifest
from streamdedup.index.store import Index
from tests.compatibility.write import documents, judge, plain, probes, settings_of
from tests.support.builders import open_index
from tests.support.paths import ROOT

FOLDER = Path(__file__).parent
INDEXES = sorted(FOLDER.glob("index-*.tar.xz"))
CHANGELOGS = sorted(FOLDER.glob("changelog-*.json"))

FIELDS = {
    changelog.ChangelogEntry: (
        "version fingerprint first_number ranges ids id_ends topics topic_indices partitions "
        "offsets event_times_ms effective_times_ms namespaces signatures band_keys texts clock "
        "deleted is_ahead"
    ),
    Header: "format parameters log",
    Checkpoint: "applied next_number clock sources written notes has_all_texts",
}
"""The fields of changelog version 4 and index format 4, whose readers refuse any other."""


def version_of(path: Path) -> int:
    """Return the version in the name of an example."""
    return int(path.name.partition(".")[0].rpartition("-")[2])


def example_of(version: int) -> dict[str, Any]:
    """Return the example of a changelog version."""
    example: dict[str, Any] = json.loads((FOLDER / f"changelog-{version}.json").read_text())
    return example


def unpacked(path: Path, directory: Path) -> Path:
    """Unpack the example of an index."""
    with tarfile.open(path) as archive:
        # Before Python 3.11.4 extractall() has no filter.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(directory)  # noqa: S202 - our own file
    return directory


def contents(directory: Path) -> dict[Path, bytes]:
    """Return the files of an index; LMDB's own lock files hold no data."""
    files = [path for path in directory.rglob("*.mdb") if path.name != "lock.mdb"]
    return {path: path.read_bytes() for path in files}


def judged(index: Index, directory: Path) -> list[list[str]]:
    """Return the verdicts on the probes."""
    verdicts, _ = judge(index, probes(), settings_of(directory), len(documents()))
    return plain(verdicts)


def test_every_format_has_an_example() -> None:
    """A new format needs one: ``python -m tests.compatibility.write``; the old ones stay."""
    assert {FORMAT, FORMAT - 1} <= {version_of(path) for path in INDEXES}
    assert {changelog.VERSION, changelog.VERSION - 1} <= {version_of(path) for path in CHANGELOGS}
    specified = ROOT / "docs" / "internals" / "stored-index.md"
    assert f"in [format](format.md) {FORMAT}." in specified.read_text(encoding="utf-8")


@pytest.mark.damages_index
@pytest.mark.parametrize("path", INDEXES, ids=version_of)
def test_an_index_is_read_or_refused(path: Path, tmp_path: Path) -> None:
    """An index of this format gives the stored verdicts; another is refused with the remedy."""
    directory = unpacked(path, tmp_path)
    if version_of(path) == FORMAT:
        with open_index(settings_of(directory)) as index:
            assert judged(index, directory) == example_of(changelog.VERSION)["verdicts"]
        return
    before = contents(directory)
    with pytest.raises(IndexMismatch) as refused:
        open_index(settings_of(directory))
    message = str(refused.value)
    assert f"has index format {version_of(path)}, this release reads {FORMAT}" in message
    assert "use the release that wrote it, or remove the index directory" in message
    assert contents(directory) == before


@pytest.mark.parametrize("path", CHANGELOGS, ids=version_of)
def test_a_changelog_is_read_or_refused(path: Path, tmp_path: Path) -> None:
    """A changelog of this version rebuilds the index; another is refused with the remedy."""
    example, version = example_of(version_of(path)), version_of(path)
    data = [bytes.fromhex(entry) for entry in example["entries"]]
    assert all(has_version(entry) for entry in data)
    if version != changelog.VERSION:
        with pytest.raises(
            IndexMismatch,
            match=f"entries of version {version}, this release reads {changelog.VERSION}; "
            "use the release that wrote it, or choose a new changelog topic and index",
        ):
            changelog.decode(data[0], example["fingerprint"])
        return
    with open_index(settings_of(tmp_path)) as index:
        for entry in data:
            index.apply(changelog.decode(entry, example["fingerprint"]), index.applied + 1)
        assert judged(index, tmp_path) == example["verdicts"]


def test_older_releases_read_what_this_one_writes(tmp_path: Path) -> None:
    """For the same documents this release writes the entries that an older one has written."""
    example, every = example_of(changelog.VERSION), documents()
    settings = settings_of(tmp_path)
    assert settings.fingerprint == example["fingerprint"]
    with open_index(settings) as index:
        for number, stored in enumerate(example["entries"]):
            batch = every[12 * number : 12 * (number + 1)]
            _, entry = judge(index, batch, settings, 12 * number)
            assert _without_texts(entry) == _without_texts(bytes.fromhex(stored))


def _without_texts(entry: bytes) -> dict[str, Any]:
    """Return the fields of an entry; the compressed texts depend on the release of Zstandard."""
    fields: dict[str, Any] = msgspec.msgpack.decode(entry)
    assert len(fields.pop("texts")) == len(fields["id_ends"]) // 4
    return fields


def test_a_new_field_needs_a_new_version() -> None:
    """Older releases take an unknown field of an entry, a header or a checkpoint for damage."""
    assert (changelog.VERSION, FORMAT) == (4, 4), "update FIELDS for the new version"
    for struct, fields in FIELDS.items():
        assert " ".join(struct.__struct_fields__) == fields


@pytest.mark.damages_index
def test_the_example_has_every_kind_of_record(tmp_path: Path) -> None:
    """The stored index has segments with shards, and texts for exact comparison."""
    directory = unpacked(FOLDER / f"index-{FORMAT}.tar.xz", tmp_path)
    manifest = Manifest(directory, None, readonly=True)
    try:
        assert manifest.checkpoint().has_all_texts
        segments = manifest.segments()
        assert len(segments) > 1
        assert all(segment.shards and segment.count for segment in segments)
    finally:
        manifest.close()
