"""*Blocking.* The engine without a transport: prepare, probe, resolve, apply."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.engine.prepare import Preparer
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.model import Document, Judgement, Position, SketchedBatch, Verdict
from streamdedup.settings.sections import Settings

_TOPIC = "python"
"""The topic in the positions of documents from the Python API."""


class Deduplicator:
    """Judges documents in the calling process, against its own index.

    Use it as a context manager, or call :meth:`close`.

    Args:
        settings: all settings; the sections ``dedup``, ``index`` and ``limits`` are used here.
        directory: directory of the index. Without one, the index is temporary, and closing removes
            it.

    Raises:
        StreamdedupError: the index cannot be used; see :class:`streamdedup.index.store.Index`.
    """

    def __init__(
        self, settings: Settings | None = None, directory: Path | str | None = None
    ) -> None:
        self._settings = settings if settings is not None else Settings()
        self._preparer = Preparer(self._settings)
        self._rule = Rule.from_settings(self._settings)
        self._resources = ExitStack()
        if directory is None:
            name = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="streamdedup-"))
            update = {"directory": Path(name), "sync": False}
        else:
            update = {"directory": Path(directory)}
        index_settings = self._settings.index.model_copy(update=update)
        parameters = self._settings.dedup.sketch_parameters()
        try:
            index = Index(
                index_settings, parameters, LOCAL_LOG, texts=self._settings.dedup.keeps_texts
            )
            self.index = self._resources.enter_context(index)
        except BaseException:
            self._resources.close()
            raise

    def process(self, documents: Iterable[Document | str]) -> list[Verdict]:
        """Judge documents, and index the kept ones.

        Args:
            documents: documents, or bare texts, whose position becomes their id.

        Returns:
            One verdict for each document, in order.
        """
        batch = [
            document if isinstance(document, Document) else Document(document)
            for document in documents
        ]
        first = self.index.next_offset(_TOPIC, 0)
        positions = [Position(_TOPIC, 0, first + row) for row in range(len(batch))]
        return self.judge_and_apply(self._preparer.prepare_documents(batch, positions))

    def judge(self, batch: SketchedBatch) -> Judgement:
        """Return the verdicts on a prepared batch; the index is not changed yet."""
        candidates = self.index.probe(batch.documents)
        return resolve(batch, candidates, self._rule, self.index.next_number, self.index.clock)

    def apply(self, judgement: Judgement, notes: Mapping[str, bytes] | None = None) -> None:
        """Index the documents that a judgement keeps, and store notes in the same transaction."""
        self.index.apply(judgement.update, self.index.applied + 1, notes)

    def judge_and_apply(self, batch: SketchedBatch) -> list[Verdict]:
        """Judge a prepared batch, and index the documents that it keeps."""
        judgement = self.judge(batch)
        self.apply(judgement)
        return judgement.verdicts

    def close(self) -> None:
        """Close the index; a temporary one is removed."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
