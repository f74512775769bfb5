"""*Blocking.* Creates an index from what exists elsewhere, as a whole or not at all.

Rule 1: the index exists from the moment that its manifest is moved into place, the last step.
Rule 2: an import removes only what an import has written.
Rule 3: documents that were judged elsewhere become an ordinary index in the staging directory. So
its segments are those that it would have had. Nothing is forced to disk before the end: an
interrupted import starts again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec.structs import replace

from streamdedup.batches import IndexUpdate
from streamdedup.errors import IndexUnusable
from streamdedup.index.directory import (
    LOCK,
    MANIFEST,
    SEGMENTS,
    STAGING,
    fsync,
    lock,
    remove_index,
    segment_directories,
)
from streamdedup.index.layout import FORMAT, Header
from streamdedup.index.lmdb_errors import translated
from streamdedup.index.manifest import Manifest
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.settings.sections import IndexSettings
from streamdedup.sketch.parameters import SketchParameters

_STAGED = {LOCK, MANIFEST, SEGMENTS}
"""What an import leaves in the staging directory if it is killed."""
_LOADED = "an import"
"""The log of an index without a tail: what is not in a segment is lost if the import ends."""


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Create an index: yield the directory in which the caller leaves its manifest.

    The caller puts the segments into ``directory``, and forces all files to disk.
    After an error nothing of the index is left.

    Args:
        directory: the new index's directory; must not hold an index.

    Raises:
        IndexUnusable: the directory already holds an index, or files in its place.
        IndexLocked: another process has the index open.
    """
    with translated(directory):
        if (directory / MANIFEST).exists():
            raise IndexUnusable(
                f"{directory} already holds an index; import into another directory"
            )
    descriptor = lock(directory)
    try:
        with translated(directory):
            _claim(directory)
        staging = directory / STAGING
        try:
            yield staging
            with translated(directory):
                (staging / MANIFEST).rename(directory / MANIFEST)
                staging.rmdir()
                fsync(directory)
        except BaseException:
            remove_index(directory)
            raise
    finally:
        os.close(descriptor)


def _claim(directory: Path) -> None:
    """Create the staging directory, which marks segments as those of an import."""
    staging, segments = directory / STAGING, directory / SEGMENTS
    foreign = []
    is_staged = staging.is_dir() and {path.name for path in staging.iterdir()} <= _STAGED
    if staging.exists() and not (is_staged and _has_only_segments(staging)):
        foreign.append(staging)
    if segments.exists() and not (staging.is_dir() and _has_only_segments(directory)):
        foreign.append(segments)
    if foreign:
        raise IndexUnusable(
            f"{foreign[0]} already exists, and an import would have to replace it; import into "
            "another directory"
        )
    remove_index(directory)  # what an interrupted import has left
    staging.mkdir()


def _has_only_segments(index: Path) -> bool:
    segments = index / SEGMENTS
    if not segments.is_dir():
        return not segments.exists()
    return set(segments.iterdir()) == set(segment_directories(index))


def load_index(
    updates: Iterable[IndexUpdate],
    settings: IndexSettings,
    parameters: SketchParameters,
    log: str,
    *,
    texts: bool,
) -> None:
    """Create an index, and perform all merges that are due.

    Args:
        updates: at least one; the first may begin with any number.
        settings: its directory, which must not hold an index, and its limits.
        parameters: everything that the bits of its sketches depend on.
        log: the changelog that continues it, of which no entry is applied yet; or
            :data:`streamdedup.index.store.LOCAL_LOG`.
        texts: whether to store the documents' texts.

    Raises:
        IndexUnusable: the directory already holds an index, or files in its place.
        IndexFull: no room is left on the disk.
    """
    directory = settings.directory
    with staged(directory) as staging:
        chosen = settings.model_copy(update={"directory": staging, "sync": False})
        with Index(chosen, parameters, _LOADED, texts=texts) as index:
            for update in updates:
                index.apply(update, index.applied + 1)
            index.flush()
            index.settle()
        with translated(staging):
            (staging / LOCK).unlink()
            (staging / SEGMENTS).mkdir(exist_ok=True)  # missing without documents
            with closing(Manifest(staging, None)) as manifest:
                checkpoint = manifest.checkpoint()
                if log != LOCAL_LOG:
                    checkpoint = replace(checkpoint, applied=0)
                manifest.rebind(Header(FORMAT, parameters.described(), log), checkpoint)
            if settings.sync:
                for name in (MANIFEST, SEGMENTS):
                    for path in (staging / name, *(staging / name).rglob("*")):
                        fsync(path)
            (staging / SEGMENTS).rename(directory / SEGMENTS)
            fsync(directory)
