"""*Blocking.* Creates an index from documents that were judged elsewhere.

An ordinary index takes the documents in the staging directory, so that its segments are those that
it would have had. Nothing is forced to disk before the end: an interrupted import starts again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from streamdedup.batches import IndexUpdate
from streamdedup.index.directory import LOCK, MANIFEST, SEGMENTS, fsync
from streamdedup.index.layout import FORMAT, Header
from streamdedup.index.lmdb_errors import translated
from streamdedup.index.manifest import Manifest
from streamdedup.index.staging import staged
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.settings.sections import IndexSettings
from streamdedup.sketch.parameters import SketchParameters

_LOADED = "an import"
"""The log of an index without a tail: what is not in a segment is lost if the import ends."""


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
            (staging / SEGMENTS).mkdir(exist_ok=True)  # there is none without documents
            _bind(staging, Header(FORMAT, parameters.described(), log))
            if settings.sync:
                _force(staging)
            (staging / SEGMENTS).rename(directory / SEGMENTS)
            fsync(directory)


def _bind(staging: Path, header: Header) -> None:
    """Give a complete index the header that it will have."""
    with closing(Manifest(staging, None)) as manifest:
        checkpoint = manifest.checkpoint()
        if header.log != LOCAL_LOG:
            checkpoint = replace(checkpoint, applied=0)
        manifest.rebind(header, checkpoint)


def _force(staging: Path) -> None:
    """Force all files and directories to disk."""
    for name in (MANIFEST, SEGMENTS):
        for path in ((staging / name), *(staging / name).rglob("*")):
            fsync(path)
