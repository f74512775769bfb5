"""*Blocking.* Checks an index: every invariant, from its own files alone.

Rule 1: damage is listed, never raised. Nothing is trusted before it is checked: files are walked
page by page and summed first, values are read with their lengths, and no kernel reads by address.
Rule 2: what a crash may leave is not damage. It is listed separately.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from streamdedup.dedup.clock import Clock
from streamdedup.errors import IndexUnusable
from streamdedup.formats import changelog
from streamdedup.index.check_report import Broken, Report
from streamdedup.index.check_segments import Expected, SegmentChecker, walk_file
from streamdedup.index.directory import (
    DATA_FILE,
    LMDB_FILES,
    LOCK,
    MANIFEST,
    SEGMENTS,
    lock,
    segment_directory,
)
from streamdedup.index.entries import Checkpoint, SegmentEntry
from streamdedup.index.header import parameters_of
from streamdedup.index.lmdb_errors import translated
from streamdedup.index.manifest import Manifest
from streamdedup.index.progress import Progress, no_progress
from streamdedup.index.sources import FREE
from streamdedup.index.store import LOCAL_LOG


def check(
    directory: Path, *, bucket_size: int | None = None, progress: Progress = no_progress
) -> Report:
    """Check an index that no process has open.

    Args:
        directory: directory of the index.
        bucket_size: the largest one that the index was ever opened with; None if it is not known.
        progress: called with the number of bytes checked so far, and of all bytes.

    Raises:
        IndexUnusable: the directory holds no index, or cannot be written.
        IndexLocked: another process has the index open.
    """
    with translated(directory):
        if not any((directory / name).exists() for name in (MANIFEST, SEGMENTS)):
            raise IndexUnusable(f"{directory} holds no index")
    report = Report()
    with ExitStack() as resources:
        resources.callback(os.close, lock(directory))
        with report.noting("manifest"):
            path = directory / MANIFEST / DATA_FILE
            if not path.exists():
                raise Broken(f"{DATA_FILE} is missing")
            walk_file(path)
            with closing(Manifest(directory, None, readonly=True)) as manifest:
                _check_manifest(directory, manifest, bucket_size, report, progress)
    return report


def _check_manifest(
    directory: Path,
    manifest: Manifest,
    bucket_size: int | None,
    report: Report,
    progress: Progress,
) -> None:
    """Check everything that a readable manifest names."""
    parameters = parameters_of(manifest.header)
    checkpoint, entries, erased = manifest.checkpoint(), manifest.segments(), manifest.erased()
    expected = Expected(
        columns=parameters.bands + 1,
        width=parameters.signature_bytes,
        checkpoint=checkpoint,
        overwritten=np.array([number for number, waits in erased.items() if not waits], np.int64),
        bucket_size=bucket_size,
        total_bytes=sum(entry.size for entry in entries),
    )
    report.segments = len(entries)
    report.documents = sum(entry.count for entry in entries)
    with report.noting("checkpoint"):
        _check_checkpoint(checkpoint, erased)
    report.left_over += _left_over(directory, entries)
    _check_order(entries, checkpoint, report)
    segments = SegmentChecker(directory, expected, report, progress)
    for entry in entries:
        segments.check(entry)
    with report.noting("tail"):
        _check_tail(manifest, checkpoint, expected.last_offsets, report)


def _check_checkpoint(checkpoint: Checkpoint, erased: Mapping[int, bool]) -> None:
    if min(checkpoint.applied, checkpoint.next_number) < 0:
        raise Broken("it counts below zero")
    names = ((topic, partition) for topic, partition, _ in checkpoint.sources)
    sources = [name for name in names if name != FREE]
    if len(set(sources)) < len(sources):
        raise Broken("it names a source twice")
    if min([0, *checkpoint.written, *(offset for _, _, offset in checkpoint.sources)]) < 0:
        raise Broken("a source has an offset below zero")
    if len(checkpoint.written) not in (0, len(checkpoint.sources)):
        raise Broken("sources have no written offset")
    Clock.from_state(checkpoint.clock)
    unknown = [number for number in erased if number >= checkpoint.next_number]
    if unknown:
        raise Broken(f"documents that never existed are erased, the first is {min(unknown)}")


def _left_over(directory: Path, entries: list[SegmentEntry]) -> list[str]:
    """Return a line for each file or directory that the manifest does not name."""
    known = {
        directory: {LOCK, MANIFEST, SEGMENTS},
        directory / MANIFEST: set(LMDB_FILES),
        directory / SEGMENTS: {entry.name for entry in entries},
    }
    for entry in entries:
        names = {file.name for file in entry.files}
        known[segment_directory(directory, entry.name)] = names
    return [
        f"{path.relative_to(directory)} is left over"
        for folder, names in known.items()
        for path in (sorted(folder.iterdir()) if folder.is_dir() else ())
        if path.name not in names
    ]


def _check_order(entries: list[SegmentEntry], checkpoint: Checkpoint, report: Report) -> None:
    """Check that the segments follow on each other up to the checkpoint."""
    end = entries[0].first if entries else checkpoint.next_number
    for entry in entries:
        if entry.first != end:
            report.add(f"segment {entry.name}", f"begins with {entry.first} instead of {end}")
        end = entry.end
    if end != checkpoint.next_number:
        report.add(
            "manifest",
            f"the segments end with {end}, the checkpoint says {checkpoint.next_number}",
        )


def _check_tail(
    manifest: Manifest, checkpoint: Checkpoint, last_offsets: Mapping[int, int], report: Report
) -> None:
    """Check that the tail continues where the segments end."""
    fingerprint = parameters_of(manifest.header).fingerprint()
    applied, number = checkpoint.applied, checkpoint.next_number
    last = {
        (topic, partition): last_offsets.get(source, -1)
        for source, (topic, partition, _) in enumerate(checkpoint.sources)
    }
    for offset, tail in manifest.tail():
        if manifest.header.log != LOCAL_LOG:
            raise Broken(f"an index with a changelog ({manifest.header.log}) must not have a tail")
        if offset <= applied:
            raise Broken(f"update {offset} follows {applied}")
        update = changelog.decode(tail.update, fingerprint)
        if number not in (0, update.first_number):
            raise Broken(f"update {offset} begins with {update.first_number} instead of {number}")
        for position in update.documents.positions:
            topic, partition, _ = position
            if position.offset <= last.get((topic, partition), -1):
                raise Broken(f"update {offset}: the offsets of {topic} {partition} do not ascend")
            last[topic, partition] = position.offset
        for source in tail.forgotten:
            last.pop(source, None)
        applied, number = offset, update.first_number + len(update.documents)
        report.documents += len(update.documents)
