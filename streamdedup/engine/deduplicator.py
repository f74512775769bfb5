"""*Blocking.* The engine without a transport: prepare, probe, resolve, apply."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from streamdedup.batches import JudgedVerdicts, Judgement, SketchedBatch
from streamdedup.columns import Positions, Strings
from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.engine.arrow import repeatable, to_fields
from streamdedup.engine.documents import TOPIC, Item, VerdictArrays, to_documents, to_positions
from streamdedup.engine.prepare import Preparer
from streamdedup.errors import IndexUnusable
from streamdedup.formats.records import Decoder
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.model import NO_TIMESTAMP, Outcome, Position, Verdict, format_position
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
        ValueError: the directory is empty.
        StreamdedupError: the index cannot be used; see :class:`streamdedup.index.store.Index`.

    Attributes:
        index: the index; an interrupt replaces it.
    """

    def __init__(
        self, settings: Settings | None = None, directory: Path | str | None = None
    ) -> None:
        if directory == "":
            raise ValueError(
                "directory is empty; give a path, or leave it out for a temporary index"
            )
        self._settings = settings if settings is not None else Settings()
        self._preparer = Preparer(self._settings)
        self._decoder = Decoder(self._settings.records, self._settings.limits)
        self._rule = Rule.from_settings(self._settings)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._is_open = True
        temporary = tempfile.mkdtemp(prefix="streamdedup-") if directory is None else None
        self._remove = weakref.finalize(self, _remove, temporary, self._process)
        update: dict[str, object] = {"directory": Path(directory or temporary or ".").absolute()}
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
                pandas, Arrow or Polars, or a stream of Arrow, which is read whole. A document
                without an id gets its position as id.
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
        verdicts, ids = self._judged(documents, positions)
        # A rejected document has the id that the caller has given.
        return [
            verdict
            if verdict.outcome is not Outcome.REJECTED
            else replace(verdict, id=id_ or format_position(verdict.position))
            for verdict, id_ in zip(verdicts, ids, strict=True)
        ]

    def process_arrays(
        self, documents: Iterable[Item], positions: Iterable[int | Position] | None = None
    ) -> VerdictArrays:
        """Judge documents like :meth:`process`, and return the verdicts as arrays.

        With pyarrow installed, a table or column of Arrow, pandas or Polars is read without an
        object for each value.
        """
        return VerdictArrays.of(self._judged(documents, positions)[0])

    def _judged(
        self, documents: Iterable[Item], positions: Iterable[int | Position] | None
    ) -> tuple[JudgedVerdicts, Sequence[str]]:
        """Judge documents; return the verdicts, and the ids that the caller has given."""
        documents = repeatable(documents)
        fields = to_fields(documents, self._settings.records)
        batch = [] if fields is not None else to_documents(documents, self._decoder)
        times_ms = (
            np.array([document.event_time_ms for document in batch], dtype=np.int64)
            if fields is None
            else fields.event_times_ms
        )
        count = len(times_ms)
        given = None if positions is None else Positions.of(to_positions(positions, count))
        if self._rule.window_ms >= 0 and count and (times_ms == NO_TIMESTAMP).all():
            warnings.warn(
                "index.window has no effect on documents without an event time", stacklevel=3
            )
        with self._locked():
            if given is None:
                first = self._usable().sources.next_offset(TOPIC, 0)
                zeros = np.zeros(count, dtype=np.int64)
                given = Positions((TOPIC,), zeros, zeros, np.arange(first, first + count))
            if fields is None:
                sketched = self._preparer.prepare_documents(batch, given)
                ids: Sequence[str] = [document.id for document in batch]
            else:
                sketched = self._preparer.prepare_fields(fields, given)
                ids = Strings(fields.ids.data, fields.ids.ends)
            judgement = self.judge(sketched)
            self.apply(judgement)
            return judgement.verdicts, ids

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
