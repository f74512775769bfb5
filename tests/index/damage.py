"""A sound index, and ways to damage a copy of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np

from streamdedup.batches import IndexUpdate
from streamdedup.index.directory import checksum
from streamdedup.index.layout import FileEntry, SegmentEntry, sum_of
from streamdedup.index.manifest import Manifest
from tests.support.builders import COLUMNS, columns, open_index, small_settings, update_of

changed = msgspec.structs.replace


def update(first: int, count: int) -> IndexUpdate:
    """Return the update that keeps some documents; two consecutive ones share a bucket."""
    keys = [[(number // 2) << 40] * COLUMNS for number in range(first, first + count)]
    documents = columns(keys, first)
    documents.event_times_ms[:] = range(1_000_000 + first, 1_000_000 + first + count)
    return update_of(documents, first)


def build_sound_index(directory: Path) -> Path:
    """Build an index of a merged segment with filters, several runs, erasures and a tail."""
    settings = small_settings(directory, delta_documents=16, window_documents=200)
    index = open_index(settings)
    for step in range(14):
        index.apply(update(10 * step, 10), step + 1)
        index.settle()
    nothing = replace(update(140, 0), deleted=(5, 120))
    index.apply(nothing, 15)
    index.flush()
    index.settle()
    index.apply(update(140, 3), 16)
    index._release()  # noqa: SLF001 - a crash, so that the tail stays
    return directory


def entries(directory: Path) -> list[SegmentEntry]:
    """Return the segments' records in the manifest."""
    with closing(Manifest(directory, None)) as manifest:
        return manifest.segments()


def announce(directory: Path, entry: SegmentEntry) -> None:
    """Replace a segment's record in the manifest."""
    with closing(Manifest(directory, None)) as manifest:
        manifest.announce(segment=entry)


def flip(path: Path, offset: int) -> None:
    """Flip all bits of a byte."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


def first_shard(entry: SegmentEntry, **changes: Any) -> SegmentEntry:
    """Return the entry with changes to its first shard."""
    return changed(entry, shards=[changed(entry.shards[0], **changes), *entry.shards[1:]])


def first_file(entry: SegmentEntry, **changes: Any) -> SegmentEntry:
    """Return the entry with changes to the file of its first shard."""
    return first_shard(entry, file=changed(entry.shards[0].file, **changes))


def moved(offsets: bytes) -> bytes:
    """Return offsets of which the last one is changed."""
    found = np.frombuffer(offsets, dtype=np.int64).copy()
    found[-1] += 8
    return found.tobytes()


def patch(directory: Path, entry: SegmentEntry, name: str, old: bytes, new: bytes) -> None:
    """Replace bytes of a file, and its checksum in the manifest."""
    path = directory / "segments" / entry.name / name
    content = path.read_bytes()
    assert len(old) == len(new)
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    if name == entry.documents.name:
        announce(directory, changed(entry, documents=summed(path, entry.documents)))
    else:
        announce(directory, first_shard(entry, file=summed(path, entry.shards[0].file)))


def summed(path: Path, file: FileEntry) -> FileEntry:
    """Return a file's record with the checksums of its present content."""
    content = path.read_bytes()
    offsets, sizes = np.frombuffer(file.offsets, np.int64), np.frombuffer(file.sizes, np.uint32)
    values = [content[at : at + size] for at, size in zip(offsets, sizes, strict=True)]
    sums = np.array([sum_of(value) for value in values], dtype=np.uint64).tobytes()
    return changed(file, sum=checksum(path), sums=sums)


def value(directory: Path, entry: SegmentEntry, name: str, key: bytes) -> bytes:
    """Return a value of a file."""
    path = directory / "segments" / entry.name / name
    with (
        closing(lmdb.open(str(path), subdir=False, readonly=True, lock=False)) as environment,
        environment.begin() as txn,
    ):
        found = txn.get(key)
    assert found is not None
    return bytes(found)


def swap(content: bytes, one: int, other: int, size: int) -> bytes:
    """Exchange two parts of some bytes."""
    parts = bytearray(content)
    parts[one : one + size], parts[other : other + size] = (
        parts[other : other + size],
        parts[one : one + size],
    )
    return bytes(parts)
