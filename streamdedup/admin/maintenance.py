"""*Async.* What is done to an index by hand while no worker has it: rebuild, bind, erase.

Rule 1: the changelog stays the truth. What changes an index that has one is written there first, in
one transaction under the worker's own identity, so that a worker elsewhere is fenced and a rebuild
meets the change in its order.
Rule 2: an index without a changelog is changed by an update of its own, as the embedded mode does.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamdedup.errors import (
    IndexMismatch,
    InputError,
    SettingsError,
    StreamdedupError,
    TopicError,
)
from streamdedup.formats import changelog
from streamdedup.index.archive import import_index
from streamdedup.index.directory import lock, lock_existing, remove_index
from streamdedup.index.entries import Checkpoint
from streamdedup.index.header import FORMAT, Header
from streamdedup.index.manifest import Manifest, compact_manifest
from streamdedup.index.progress import Progress, no_progress
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.index.view import View
from streamdedup.kafka.cluster import inspect
from streamdedup.kafka.connection import check_connection
from streamdedup.kafka.log import ChangelogReader
from streamdedup.kafka.messages import ClusterFacts, Transaction
from streamdedup.kafka.writer import TransactionalWriter
from streamdedup.model import DocumentColumns, IndexUpdate, Sketches
from streamdedup.settings.sections import IndexSettings, Settings

_LARGEST_BUCKET = 4096


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild has done.

    Attributes:
        documents: that the index holds now.
        entries: of the changelog, that were read.
        lost: documents that the changelog no longer has and the window would reach.
        seconds: that it took.
    """

    documents: int
    entries: int
    lost: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure has done.

    Attributes:
        documents: how many were erased.
        waiting: how many of them still have their bytes on the disk, since it had no room.
        log: the changelog that tells of it, or ``the embedded mode``.
    """

    documents: int
    waiting: int
    log: str


async def rebuild(
    settings: Settings, *, partial: bool, progress: Progress = no_progress
) -> Rebuilt:
    """Remove the index, and make it anew from its changelog.

    Args:
        settings: the worker's.
        partial: whether to go on where the changelog has lost what the window would reach.
        progress: told how many offsets of the changelog are read.

    Raises:
        TopicError: the changelog has lost its beginning, and ``partial`` is not given.
        IndexMismatch: the directory holds the index of something else.
        StreamdedupError: a broker or the index cannot be used.
    """
    facts = await _look_at_brokers(settings)
    log = facts.log(settings.topics.changelog)
    fingerprint = settings.dedup.sketch_parameters().fingerprint()
    began = time.monotonic()
    async with _changelog(settings) as reader:
        lost = await _lost(reader, settings, fingerprint)
        if lost and not partial:
            raise TopicError(
                f"the changelog {settings.topics.changelog} does not begin with document 0: {lost} "
                "documents of the window, lost by its retention or imported before it began, would "
                "be missing, and their copies pass as new; --partial goes on without them"
            )
        await asyncio.to_thread(_remove, settings.index.directory, log)
        async with _opened(settings, log) as index:
            entries = await _replay(index, reader, fingerprint, reader.first, progress)
            await asyncio.to_thread(index.flush)
            documents = index.stats().documents
    return Rebuilt(documents, entries, lost, time.monotonic() - began)


async def import_for_changelog(
    source: Path, settings: Settings, progress: Progress = no_progress
) -> tuple[int, str]:
    """Import an index as the beginning of a stream: bound to its changelog, nothing of it applied.

    A worker then starts with the documents of the index, and goes on from there. What the index
    remembers of jobs is dropped; and where it comes from elsewhere its clock, since a stream has
    its own.

    Args:
        source: an export, or the directory of another index.
        settings: the worker's; the index goes to their directory.
        progress: told how many bytes are read.

    Returns:
        How many documents there are, and the name of the changelog.

    Raises:
        IndexMismatch: the settings are not those of the index, or the changelog goes on elsewhere.
        StreamdedupError: see :func:`streamdedup.index.archive.import_index`.
    """
    facts = await _look_at_brokers(settings)
    first_number = await _first_number(settings)
    directory = settings.index.directory
    documents = await asyncio.to_thread(import_index, source, directory, progress)
    try:
        await asyncio.to_thread(_bind, settings, facts, first_number)
    except BaseException:
        await asyncio.to_thread(remove_index, directory)
        raise
    return documents, facts.log(settings.topics.changelog)


async def _first_number(settings: Settings) -> int | None:
    """Return the number of the changelog's first document; None where it is empty."""
    fingerprint = settings.dedup.sketch_parameters().fingerprint()
    async with _changelog(settings) as reader:
        async for _, data in reader.entries(reader.first):
            return changelog.decode(data, fingerprint).first_number
    return None


def _bind(settings: Settings, facts: ClusterFacts, first_number: int | None) -> None:
    directory, log = settings.index.directory, facts.log(settings.topics.changelog)
    with _manifest(directory) as manifest:
        old = manifest.header.log
    if old == log:
        return
    # As the worker will open it. Closing moves what only the tail holds into a segment.
    with _open(settings, old) as index:
        next_number = index.next_number
    if first_number not in (None, next_number):
        raise IndexMismatch(
            f"the changelog {settings.topics.changelog} begins with document {first_number}, the "
            f"index ends with {next_number}: it can only go on behind it, or be empty"
        )
    with _manifest(directory, write=True) as manifest:
        found = manifest.checkpoint()
        same_cluster = old.endswith(f" of cluster {facts.cluster_id}")
        topics = {topic for topic, _, _ in found.sources}
        if settings.topics.source in topics and not same_cluster:
            raise IndexMismatch(
                f"documents of the index come from another topic named {settings.topics.source}: "
                "their positions could not be told from those of this one"
            )
        header = Header(FORMAT, manifest.header.parameters, log)
        checkpoint = Checkpoint(
            next_number=found.next_number,
            clock=found.clock if same_cluster else b"",
            sources=found.sources,
            has_all_texts=found.has_all_texts,
        )
        manifest.rebind(header, checkpoint)


async def erase(settings: Settings, ids: Sequence[str], *, configured: bool) -> Erased:
    """Erase documents: they no longer match, and their bytes are overwritten.

    Args:
        settings: the worker's; or where the index is of the embedded mode, its own or the default.
        ids: of the documents; all documents with these ids are erased.
        configured: whether the settings are those that the index is used with.

    Raises:
        InputError: the index holds no document with one of the ids; nothing was erased.
        SettingsError: the index has a changelog, and ``configured`` is not given.
        Fenced: a worker has started meanwhile; whether anything was erased is not known.
    """
    with View(settings.index.directory) as view:
        log = view.header.log
        local = settings.model_copy(update={"index": _careful(settings.index, view)})
        parameters, texts = view.parameters, view.holds_texts
    if log == LOCAL_LOG:
        chosen = settings if configured else local

        def opened() -> Index:
            return Index(chosen.index, parameters, LOCAL_LOG, texts=texts)

        numbers = await asyncio.to_thread(_erase_local, opened, ids)
    elif not configured:
        raise SettingsError(
            f"the index is a copy of {log}, which must be told too: give --config with the "
            "settings of its worker"
        )
    else:

        def opened() -> Index:
            return _open(settings, log)

        numbers = await _erase_logged(settings, ids)
    waiting = await asyncio.to_thread(_overwrite, opened, numbers)
    return Erased(len(numbers), waiting, log)


def _careful(settings: IndexSettings, view: View) -> IndexSettings:
    """Return settings by which nothing leaves the index, where its own are not known."""
    most = max(settings.window_documents, view.documents_held)
    careful = {"window": None, "window_documents": most, "bucket_size": _LARGEST_BUCKET}
    return settings.model_copy(update=careful)


def _erase_local(opened: Callable[[], Index], ids: Sequence[str]) -> tuple[int, ...]:
    with opened() as index:
        numbers = _numbers(index, ids)
        index.apply(_erasure(index.next_number, numbers), index.applied + 1)
    return numbers


async def _erase_logged(settings: Settings, ids: Sequence[str]) -> tuple[int, ...]:
    facts = await _look_at_brokers(settings)
    fingerprint = settings.dedup.sketch_parameters().fingerprint()
    writer = TransactionalWriter(settings, facts)
    try:
        async with _opened(settings, facts.log(settings.topics.changelog)) as index:
            applied = index.applied
            await writer.start(applied)
            async with _changelog(settings) as reader:
                begin = reader.first if index.is_new else applied
                await _replay(index, reader, fingerprint, begin, no_progress)
            numbers = await asyncio.to_thread(_numbers, index, ids)
            update = _erasure(index.next_number, numbers)
            entries = changelog.encode(update, fingerprint, settings.batch.changelog_entry_bytes)
            applied = await writer.commit(Transaction([], entries, {}))
            await asyncio.to_thread(index.apply, update, applied)
    finally:
        await writer.close()
    return numbers


def _numbers(index: Index, ids: Sequence[str]) -> tuple[int, ...]:
    found = {id_: index.numbers_of(id_) for id_ in ids}
    unknown = [id_ for id_, numbers in found.items() if not numbers]
    if unknown:
        raise InputError(
            f"{index.directory} holds no document with id {', '.join(unknown)}; nothing was erased"
        )
    return tuple(sorted(number for numbers in found.values() for number in numbers))


def _erasure(next_number: int, numbers: tuple[int, ...]) -> IndexUpdate:
    nothing = DocumentColumns(
        ids=[],
        positions=[],
        event_times_ms=np.empty(0, dtype=np.int64),
        namespaces=np.empty(0, dtype=np.uint64),
        sketches=Sketches(np.empty((0, 0), dtype=np.uint8), np.empty((0, 0), dtype=np.uint64)),
    )
    times_ms = np.empty(0, dtype=np.int64)
    return IndexUpdate(next_number, nothing, (), times_ms, deleted=numbers)


def _overwrite(opened: Callable[[], Index], numbers: tuple[int, ...]) -> int:
    """Write the segments with erased documents anew; return how many documents still wait."""
    with opened() as index:  # opening plans what is left to do
        index.settle()
    compact_manifest(index.directory)
    with _manifest(index.directory) as manifest:
        erased = manifest.erased()
    return sum(erased.get(number, False) for number in numbers)


@contextmanager
def _manifest(directory: Path, *, write: bool = False) -> Iterator[Manifest]:
    """Open the manifest of an index that nobody has open."""
    descriptor = lock_existing(directory)
    try:
        with closing(Manifest(directory, None, readonly=not write)) as manifest:
            yield manifest
    finally:
        os.close(descriptor)


async def _look_at_brokers(settings: Settings) -> ClusterFacts:
    await check_connection(settings.kafka)
    return await inspect(settings)


@asynccontextmanager
async def _changelog(settings: Settings) -> AsyncIterator[ChangelogReader]:
    reader = ChangelogReader(settings)
    try:
        await reader.start()
        yield reader
    finally:
        await reader.close()


def _open(settings: Settings, log: str) -> Index:
    parameters, texts = settings.dedup.sketch_parameters(), settings.dedup.keeps_texts
    return Index(settings.index, parameters, log, texts=texts)


@asynccontextmanager
async def _opened(settings: Settings, log: str) -> AsyncIterator[Index]:
    index = await asyncio.to_thread(_open, settings, log)
    try:
        yield index
    finally:
        await asyncio.to_thread(index.close)


async def _replay(
    index: Index, reader: ChangelogReader, fingerprint: str, begin: int, progress: Progress
) -> int:
    """Bring the index from an offset of the changelog to its end; return the entries read."""
    count = 0
    async for offset, data in reader.entries(begin):
        update = changelog.decode(data, fingerprint)
        await asyncio.to_thread(index.apply, update, offset + 1)
        count += 1
        progress(offset + 1 - begin, reader.end - begin)
    return count


async def _lost(reader: ChangelogReader, settings: Settings, fingerprint: str) -> int:
    """Return how many documents of the window the changelog has lost."""
    async for _, data in reader.entries(reader.first):
        first = changelog.decode(data, fingerprint).first_number
        if first == 0:
            return 0
        end = await _end_number(reader, fingerprint)
        return max(0, first - max(0, end - settings.index.window_documents))
    return 0


async def _end_number(reader: ChangelogReader, fingerprint: str) -> int:
    """Return the number after the last document of a changelog with entries."""
    back = 64
    while True:
        # The last offsets may all be marks of transactions; then look further back.
        last = None
        async for _, data in reader.entries(max(reader.first, reader.end - back)):
            last = changelog.decode(data, fingerprint)
        if last is not None:
            return last.first_number + len(last.documents)
        back *= 64


def _remove(directory: Path, log: str) -> None:
    """Remove an index that can be rebuilt."""
    descriptor = lock(directory)
    try:
        found = _log_of(directory)
        if found not in (None, log):
            raise IndexMismatch(f"{directory} holds the index of {found}, not of {log}")
        remove_index(directory)
    finally:
        os.close(descriptor)


def _log_of(directory: Path) -> str | None:
    """Return whose index a locked directory holds; None where it holds none that can be read."""
    try:
        with closing(Manifest(directory, None, readonly=True)) as manifest:
            return manifest.header.log
    except StreamdedupError:
        return None
