"""*Async.* What an operator does to an index that no worker has open: rebuild, bind, erase.

Rule 1: the changelog stays the truth. A change to an index that has a changelog is written there
first, in one transaction under the worker's own identity. So a worker elsewhere is fenced, and a
rebuild replays the change in its order.
Rule 2: an index without a changelog is changed by an update of its own, as in the embedded mode.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from streamdedup.admin.clients import look_at_brokers, started
from streamdedup.batches import IndexUpdate
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
from streamdedup.index.layout import FORMAT, Header
from streamdedup.index.manifest import Manifest, compact_manifest
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.index.view import View
from streamdedup.kafka.messages import Transaction
from streamdedup.kafka.readers import ChangelogReader
from streamdedup.kafka.writer import ChangelogWriter
from streamdedup.model import Progress, no_progress
from streamdedup.settings.sections import Settings

_LARGEST_BUCKET = 4096
"""The upper bound of ``index.bucket_size``: buckets of this size drop no document."""
_FEWEST_OFFSETS_BACK = 64
"""Offsets read from the end of the changelog at first, to find its last entry."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Documents in the index, entries read, and documents that the changelog lost."""

    documents: int
    entries: int
    lost: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Erased:
    """Erased documents, and those of them whose bytes the disk had no room to overwrite.

    The log is the changelog that records the erasure, or ``the embedded mode``.
    """

    documents: int
    waiting: int
    log: str


@dataclass(frozen=True, slots=True)
class Changelog:
    """The changelog of a worker: its name, as in the header of an index, and its Kafka cluster.

    The first number is that of the first document in it; None if it is empty.
    """

    log: str
    cluster_id: str
    first_number: int | None


async def rebuild(
    settings: Settings, *, partial: bool, progress: Progress = no_progress
) -> Rebuilt:
    """Remove the index of a worker, and recreate it from its changelog.

    With ``partial``, documents of the window that the changelog has lost are left out. The progress
    is in changelog offsets.

    Raises:
        TopicError: the changelog has lost its beginning, and ``partial`` is not set.
        IndexMismatch: the directory holds the index of another changelog.
        StreamdedupError: a broker or the index cannot be used.
    """
    log = (await look_at_brokers(settings)).log(settings.topics.changelog)
    began = time.monotonic()
    async with started(ChangelogReader(settings)) as reader:
        lost = await _lost(reader, settings)
        if lost and not partial:
            raise TopicError(
                f"the changelog {settings.topics.changelog} does not begin with document 0: {lost} "
                "documents of the window, deleted by its retention or imported before it began, "
                "would be missing, and their copies would pass as new; pass --partial to rebuild "
                "without them"
            )
        await asyncio.to_thread(_remove, settings.index.directory, log)
        async with _opened(settings, log) as index:
            entries = await _replay(index, reader, settings.fingerprint, reader.first, progress)
            await asyncio.to_thread(index.flush)
            documents = index.stats().documents
    return Rebuilt(documents, entries, lost, time.monotonic() - began)


def import_for_changelog(
    source: Path, settings: Settings, owner: Changelog, progress: Progress = no_progress
) -> int:
    """Import an index, bind it to the changelog of a worker, and return its documents.

    A worker then starts with the documents of the index, and replays the changelog from its
    beginning. Notes on jobs are dropped. The clock is dropped too if the index comes from another
    cluster, since each stream has its own clock.

    The source is an export, or the directory of another index; the new one is at
    ``index.directory``. The progress is in bytes read.

    Raises:
        IndexMismatch: the settings are not those of the index, or the changelog does not continue
            the index.
        StreamdedupError: see :func:`streamdedup.index.archive.import_index`.
    """
    directory = settings.index.directory
    documents = import_index(source, directory, progress)
    try:
        _bind(settings, owner)
    except BaseException:
        remove_index(directory)
        raise
    return documents


async def find_changelog(settings: Settings) -> Changelog:
    """Return the changelog of a worker, read from its brokers."""
    facts, first_number = await look_at_brokers(settings), None
    async with started(ChangelogReader(settings)) as reader:
        async for _, data in reader.entries(reader.first):
            first_number = changelog.decode(data, settings.fingerprint).first_number
            break
    return Changelog(facts.log(settings.topics.changelog), facts.cluster_id, first_number)


def check_continues(settings: Settings, first_number: int | None, next_number: int) -> None:
    """Raise an IndexMismatch unless a changelog is empty, or begins where an index ends."""
    if first_number not in (None, next_number):
        raise IndexMismatch(
            f"the changelog {settings.topics.changelog} begins with document {first_number}, the "
            f"index ends with {next_number}; use a changelog that is empty or continues the index "
            "(topics.changelog)"
        )


def check_source(settings: Settings, topics: Collection[str]) -> None:
    """Raise an IndexMismatch if documents of an index come from a topic named like the source."""
    if settings.topics.source in topics:
        raise IndexMismatch(
            f"documents of the index come from another topic named {settings.topics.source}: "
            "their positions are indistinguishable from positions in this one; use a source "
            "topic with another name (topics.source)"
        )


def _bind(settings: Settings, owner: Changelog) -> None:
    directory = settings.index.directory
    with _manifest(directory) as manifest:
        old_log = manifest.header.log
    if old_log == owner.log:
        return
    # Opened with the worker's parameters. Closing moves documents from the tail to a segment.
    with _open(settings, old_log) as index:
        next_number = index.next_number
    check_continues(settings, owner.first_number, next_number)
    with _manifest(directory, write=True) as manifest:
        checkpoint = manifest.checkpoint()
        same_cluster = old_log.endswith(f" of cluster {owner.cluster_id}")
        if not same_cluster:
            check_source(settings, {topic for topic, _, _ in checkpoint.sources})
        clock = checkpoint.clock if same_cluster else b""
        unbound = replace(checkpoint, applied=0, clock=clock, notes={})
        manifest.rebind(Header(FORMAT, manifest.header.parameters, owner.log), unbound)


async def erase(settings: Settings, ids: Sequence[str], *, configured: bool) -> Erased:
    """Erase all documents with these ids: they no longer match, and their bytes are overwritten.

    ``configured`` says whether the index is used with these settings; else they are the defaults.

    Raises:
        InputError: the index holds no document with one of the ids; nothing was erased.
        SettingsError: the index has a changelog, and ``configured`` is not set.
        Fenced: a worker has started meanwhile; whether the documents were erased is unknown.
    """
    with View(settings.index.directory) as view:
        log, chosen = view.header.log, settings.index
        if not configured:
            # No document must leave an index whose own settings are unknown.
            most = max(chosen.window_documents, view.documents_held)
            widest = {"window": None, "window_documents": most, "bucket_size": _LARGEST_BUCKET}
            chosen = chosen.model_copy(update=widest)
        parameters, texts = view.parameters, view.holds_texts
    if log == LOCAL_LOG:
        open_index = functools.partial(Index, chosen, parameters, LOCAL_LOG, texts=texts)
        numbers = await asyncio.to_thread(_erase_local, open_index, ids)
    elif configured:
        open_index = functools.partial(_open, settings, log)
        numbers = await _erase_logged(settings, ids)
    else:
        raise SettingsError(
            f"the index is a copy of {log}, which must record the erasure: give --config with the "
            "settings of its worker"
        )
    waiting = await asyncio.to_thread(_overwrite, open_index, numbers)
    return Erased(len(numbers), waiting, log)


def _erase_local(open_index: Callable[[], Index], ids: Sequence[str]) -> tuple[int, ...]:
    with open_index() as index:
        numbers = _numbers(index, ids)
        index.apply(IndexUpdate.empty(index.next_number, numbers), index.applied + 1)
    return numbers


async def _erase_logged(settings: Settings, ids: Sequence[str]) -> tuple[int, ...]:
    """Erase documents of an index with a changelog, as its worker."""
    facts = await look_at_brokers(settings)
    fingerprint = settings.fingerprint
    async with (
        _opened(settings, facts.log(settings.topics.changelog)) as index,
        started(ChangelogWriter(settings, facts, index.applied)) as writer,
    ):
        async with started(ChangelogReader(settings)) as reader:
            begin = reader.first if index.is_new else index.applied
            await _replay(index, reader, fingerprint, begin, no_progress)
        numbers = await asyncio.to_thread(_numbers, index, ids)
        update = IndexUpdate.empty(index.next_number, numbers)
        entries = changelog.encode(update, fingerprint, settings.batch.changelog_entry_bytes)
        applied = await writer.commit(writer.build(Transaction([], entries, {})))
        await asyncio.to_thread(index.apply, update, applied)
    return numbers


def _numbers(index: Index, ids: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of all documents with these ids, ascending."""
    numbers_by_id = {id_: index.numbers_of(id_) for id_ in ids}
    unknown = [id_ for id_, numbers in numbers_by_id.items() if not numbers]
    if unknown:
        raise InputError(
            f"{index.directory} holds no document with id {', '.join(unknown)}; nothing was erased"
        )
    return tuple(sorted(number for numbers in numbers_by_id.values() for number in numbers))


def _overwrite(open_index: Callable[[], Index], numbers: tuple[int, ...]) -> int:
    """Rewrite the segments that hold erased documents; return how many documents still wait."""
    with open_index() as index:  # opening plans the work that is left
        index.settle()
    compact_manifest(index.directory)
    with _manifest(index.directory) as manifest:
        erased = manifest.erased()
    return sum(erased.get(number, False) for number in numbers)


@contextmanager
def _manifest(directory: Path, *, write: bool = False) -> Iterator[Manifest]:
    """Open the manifest of an index that no process has open."""
    descriptor = lock_existing(directory)
    try:
        with closing(Manifest(directory, None, readonly=not write)) as manifest:
            yield manifest
    finally:
        os.close(descriptor)


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
    """Apply the changelog to the index, from an offset to its end; return the entries read."""
    count = 0
    async for offset, data in reader.entries(begin):
        update = changelog.decode(data, fingerprint)
        await asyncio.to_thread(index.apply, update, offset + 1)
        count += 1
        progress(offset + 1 - begin, reader.end - begin)
    if count:
        # Retention may delete the last markers too; the topic then begins behind them.
        end = IndexUpdate.empty(index.next_number)
        await asyncio.to_thread(index.apply, end, reader.end)
    return count


async def _lost(reader: ChangelogReader, settings: Settings) -> int:
    """Return the number of documents of the window that the changelog no longer holds."""
    async for _, data in reader.entries(reader.first):
        first_number = changelog.decode(data, settings.fingerprint).first_number
        if first_number == 0:
            return 0
        end_number = await _end_number(reader, settings.fingerprint)
        return max(0, first_number - max(0, end_number - settings.index.window_documents))
    return 0


async def _end_number(reader: ChangelogReader, fingerprint: str) -> int:
    """Return the number after the last document of a changelog that has entries."""
    back = _FEWEST_OFFSETS_BACK
    while True:
        last = None
        async for _, data in reader.entries(max(reader.first, reader.end - back)):
            last = changelog.decode(data, fingerprint)
        if last is not None:
            return last.first_number + len(last.documents)
        back *= _FEWEST_OFFSETS_BACK  # these offsets hold only transaction markers


def _remove(directory: Path, log: str) -> None:
    """Remove an index, unless it belongs to another changelog."""
    descriptor = lock(directory)
    try:
        found_log = log  # unless an index can be read
        with suppress(StreamdedupError), closing(Manifest(directory, None, readonly=True)) as found:
            found_log = found.header.log
        if found_log != log:
            raise IndexMismatch(
                f"{directory} holds the index of {found_log}, not of {log}; give another "
                "index.directory"
            )
        remove_index(directory)
    finally:
        os.close(descriptor)
