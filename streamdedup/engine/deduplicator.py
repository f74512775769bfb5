"""*Blocking.* The engine without a transport: prepare, probe, resolve, apply."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from streamdedup.batches import Judgement, SketchedBatch, Verdicts
from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.engine.documents import TOPIC, Item, to_documents, to_positions
from streamdedup.engine.prepare import Preparer
from streamdedup.errors import IndexUnusable
from streamdedup.formats.records import Decoder, default_id
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.model import NO_TIMESTAMP, Document, Outcome, Position, Verdict
from streamdedup.settings.sections import Settings


class Deduplicator:
    """Judges documents in the calling process, against its own index.

    Use it as a context manager, or call :meth:`close`. Threads may share it; their calls wait for
    each other. A forked process cannot use it. After an interrupt (Ctrl-C) the next call opens the
    index again, with every document whose verdict was ``kept``.

    Args:
        settings: all settings; the sections ``dedup``, ``index``, ``limits`` and ``records`` are
            used here.
        directory: directory of the index. Without one, the index is temporary, and closing removes
            it.

    Raises:
        StreamdedupError: the index cannot be used; see :class:`streamdedup.index.store.Index`.

    Attributes:
        index: the index; an interrupt replaces it.
    """

    def __init__(
        self, settings: Settings | None = None, directory: Path | str | None = None
    ) -> None:
        self._settings = settings if settings is not None else Settings()
        self._preparer = Preparer(self._settings)
        self._decoder = Decoder(self._settings.records, self._settings.limits)
        self._rule = Rule.from_settings(self._settings)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._is_open = True
        temporary = tempfile.mkdtemp(prefix="streamdedup-") if directory is None else None
        self._remove = weakref.finalize(self, _remove, temporary, self._process)
        update: dict[str, object] = {"directory": Path(temporary or directory or "").absolute()}
        if temporary:
            update["sync"] = False
        self._index_settings = self._settings.index.model_copy(update=update)
        try:
            self.index = self._open_index()
        except BaseException:
            self._remove()
            raise

    def _open_index(self) -> Index:
        dedup = self._settings.dedup
        parameters = dedup.sketch_parameters()
        return Index(self._index_settings, parameters, LOCAL_LOG, texts=dedup.keeps_texts)

    def process(
        self, documents: Iterable[Item], positions: Iterable[int | Position] | None = None
    ) -> list[Verdict]:
        """Judge documents, and index the kept ones.

        Args:
            documents: documents, texts, or objects such as ``{"id": "a", "text": "..."}``, whose
                fields the settings of ``records`` name. Also a column of texts or a table of
                pandas, Arrow or Polars. A document without an id gets its position as id.
            positions: one for each document: an ascending offset, or a :class:`Position` for
                documents of several sources. A position that was judged before gets its old
                verdict, so that a caller can repeat a call after a crash. Give positions in every
                call or in none; without them, every document is a new one.

        Returns:
            One verdict for each document, in order.

        Raises:
            TypeError, ValueError: a document or position is invalid; nothing was judged.
            StreamdedupError: the index cannot be used.
        """
        batch = to_documents(documents, self._decoder)
        given = None if positions is None else to_positions(positions, len(batch))
        if self._rule.window_ms is not None and batch and not any(map(_has_time, batch)):
            warnings.warn(
                "index.window has no effect on documents without an event time", stacklevel=2
            )
        with self._locked():
            if given is None:
                first = self._usable().next_offset(TOPIC, 0)
                given = [Position(TOPIC, 0, first + row) for row in range(len(batch))]
            verdicts = self.judge_and_apply(self._preparer.prepare_documents(batch, given))
        return [_named(*pair) for pair in zip(verdicts, batch, strict=True)]

    def judge(self, batch: SketchedBatch) -> Judgement:
        """Return the verdicts on a prepared batch; the index is not changed yet."""
        with self._locked():
            index = self._usable()
            candidates = index.probe(batch.documents)
            return resolve(batch, candidates, self._rule, index.next_number, index.clock)

    def apply(self, judgement: Judgement, notes: Mapping[str, bytes] | None = None) -> None:
        """Index the documents that a judgement keeps, and store notes in the same transaction.

        Raises:
            ValueError: other documents were indexed after the judgement.
        """
        with self._locked():
            index = self._usable()
            if judgement.update.first_number != index.next_number:
                raise ValueError(
                    "other documents were indexed after this judgement; judge the batch again"
                )
            index.apply(judgement.update, index.applied + 1, notes)

    def judge_and_apply(self, batch: SketchedBatch) -> Verdicts:
        """Judge a prepared batch, and index the documents that it keeps."""
        with self._locked():
            judgement = self.judge(batch)
            self.apply(judgement)
        return judgement.verdicts

    def _locked(self) -> threading.RLock:
        """Return the lock that lets one thread at a time use the index."""
        # Checked before the lock, which another thread of the parent may have held at the fork.
        if os.getpid() != self._process:
            raise IndexUnusable(
                f"process {self._process} created this Deduplicator, and process {os.getpid()} is "
                "a fork of it; create a Deduplicator in each process, with its own directory"
            )
        return self._lock

    def _usable(self) -> Index:
        """Return the index, opened again if a call was interrupted; the caller has the lock."""
        if not self._is_open:
            raise RuntimeError("this Deduplicator is closed; create another one")
        if self.index.is_torn:
            self.index.close()
            self.index = self._open_index()
        return self.index

    def close(self) -> None:
        """Close the index; a temporary one is removed. A forked process closes nothing."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._is_open = False
            try:
                self.index.close()
            finally:
                self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove(directory: str | None, process: int) -> None:
    """Remove the directory of a temporary index, in the process that created it."""
    if directory is not None and os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


def _named(verdict: Verdict, document: Document) -> Verdict:
    """Return the verdict with the id that the caller has given to a rejected document."""
    if verdict.outcome is not Outcome.REJECTED:
        return verdict
    return replace(verdict, id=document.id or default_id(verdict.position))


def _has_time(document: Document) -> bool:
    return document.event_time_ms != NO_TIMESTAMP
