"""*Blocking.* Creates an index that exists as a whole or not at all.

Rule 1: the index exists from the moment that its manifest is moved into place, the last step.
Rule 2: an import removes only what an import has written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
from streamdedup.index.lmdb_errors import translated

_STAGED = {LOCK, MANIFEST, SEGMENTS}
"""What an import leaves in the staging directory if it is killed."""


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Create an index: yield the directory in which the caller leaves its manifest.

    The caller puts the segments into their places in ``directory``, and forces all files to disk.
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
    """Create the staging directory, which marks segments as those of an import.

    Raises:
        IndexUnusable: a file is in the way that no import has written.
    """
    staging, segments = directory / STAGING, directory / SEGMENTS
    foreign = []
    if staging.exists() and not (_has_only(staging, _STAGED) and _has_only_segments(staging)):
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


def _has_only(folder: Path, names: set[str]) -> bool:
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= names


def _has_only_segments(index: Path) -> bool:
    segments = index / SEGMENTS
    if not segments.is_dir():
        return not segments.exists()
    return set(segments.iterdir()) == set(segment_directories(index))
