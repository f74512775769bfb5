"""Stored texts, for exact verification."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from streamdedup.errors import (
    IndexMismatch,
)
from streamdedup.formats import changelog
from streamdedup.index.manifest import Manifest
from streamdedup.index.store import Index
from streamdedup.settings.sections import Settings
from streamdedup.sketch.texts import unpack_text
from tests.support.builders import (
    columns,
    open_index,
    pass_through,
    sketched,
    small_settings,
    update_of,
)


class TestTexts:
    """Stored texts, for exact verification."""

    def fill(self, path: Path, *, verify: Literal["estimate", "exact"]) -> None:
        """Index two documents; their texts are stored if the verification is exact."""
        settings = small_settings(path, verify=verify)
        with open_index(settings) as index:
            first = index.next_number
            batch = sketched([f"{first} the first text", f"{first} one"], settings, first=first)
            index.apply(update_of(batch.documents, first), index.applied + 1)

    def found(self, index: Index, settings: Settings) -> list[bytes]:
        """Return the stored form of the first text."""
        batch = sketched(["0 The FIRST text"], settings, first=99)
        return list(index.probe(batch.documents).documents.texts)

    def test_they_come_back(self, tmp_path: Path) -> None:
        """Texts come back as they were normalised."""
        self.fill(tmp_path, verify="exact")
        settings = small_settings(tmp_path, verify="exact")
        with open_index(settings) as index:
            assert "0 the first text" in map(unpack_text, self.found(index, settings))

    def test_without_exact_there_are_none(self, tmp_path: Path) -> None:
        """Without exact verification no text is stored or returned, even if an update has texts."""
        self.fill(tmp_path / "plain", verify="estimate")
        exact = small_settings(tmp_path, verify="exact")
        settings = small_settings(tmp_path / "mixed")
        with open_index(settings) as index:
            batch = sketched(["0 the first text"], exact)
            index.apply(update_of(batch.documents, 0), 1)
            assert self.found(index, settings) == []
        with closing(Manifest(tmp_path / "mixed", None, readonly=True)) as manifest:
            assert not manifest.checkpoint().has_all_texts

    def test_an_index_without_texts_is_refused(self, tmp_path: Path) -> None:
        """One line says what is missing and what to do; without exact, the index remains usable."""
        self.fill(tmp_path, verify="estimate")
        with pytest.raises(
            IndexMismatch, match=r"without the texts.*set dedup\.verify to estimate"
        ):
            open_index(small_settings(tmp_path, verify="exact"))
        self.fill(tmp_path, verify="estimate")

    def test_an_index_with_texts_can_go_on_without(self, tmp_path: Path) -> None:
        """Opening without texts does no harm; a document without a text cannot be undone."""
        self.fill(tmp_path, verify="exact")
        with open_index(small_settings(tmp_path)) as index:
            index.apply(update_of(columns([]), 2), 2)
        self.fill(tmp_path, verify="exact")
        self.fill(tmp_path, verify="estimate")
        with pytest.raises(IndexMismatch, match="without the texts"):
            open_index(small_settings(tmp_path, verify="exact"))

    def test_they_are_lost_by_a_crash_as_well(self, tmp_path: Path) -> None:
        """A document without a text counts even if only the tail holds it."""
        self.fill(tmp_path, verify="exact")
        settings = small_settings(tmp_path)
        index = open_index(settings)
        batch = sketched(["2 a third text"], settings, first=2)
        index.apply(update_of(batch.documents, 2), 2)
        index._release()  # noqa: SLF001 - a crash: nothing more is written
        with pytest.raises(IndexMismatch, match="without the texts"):
            open_index(small_settings(tmp_path, verify="exact"))

    def test_a_rebuilt_index_compares_texts(self, tmp_path: Path) -> None:
        """A replay of the changelog's bytes gives the same verdicts from the same texts."""
        words = [f"word{number}" for number in range(20)]
        kept = [" ".join(words[start:]) for start in (0, 6)]
        late = " ".join(words[2:])
        verdicts = []
        for name, through in (("first", False), ("rebuilt", True)):
            settings = small_settings(tmp_path / name, threshold=0.85, verify="exact")
            fingerprint = settings.fingerprint
            with open_index(settings) as index:
                update = update_of(sketched(kept, settings).documents, 0)
                [entry] = changelog.encode(update, fingerprint, 2**40)
                index.apply(changelog.decode(entry, fingerprint) if through else update, 1)
                verdicts += pass_through(index, [sketched([late], settings, first=9)], settings)
        assert verdicts[0] == verdicts[1]
        [match] = verdicts[0].matches
        assert match.jaccard is not None

    def test_an_update_without_texts_is_refused(self, tmp_path: Path) -> None:
        """An index with texts refuses updates of a changelog without texts."""
        batch = sketched(["a text"], small_settings(tmp_path))
        with open_index(small_settings(tmp_path, verify="exact")) as index:
            with pytest.raises(IndexMismatch, match="changelog was written without the texts"):
                index.apply(update_of(batch.documents, 0), 1)
            index.apply(update_of(batch.documents.take([]), 0), 1)
            assert index.next_number == 0
