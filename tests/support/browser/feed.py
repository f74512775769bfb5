"""*Blocking.* Feeds the page without Kafka: documents are judged by a real index."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Self

from streamdedup.batches import Judgement
from streamdedup.columns import RecordColumns
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.engine.prepare import Preparer
from streamdedup.model import Outcome, Position, Record
from streamdedup.observe.quality import LiveQuality, Shadow
from streamdedup.observe.recent import RecentActivity
from streamdedup.observe.state import WorkerState
from streamdedup.settings.sections import Settings, StatusSettings

TOPIC = "documents"
START_MS = 1_790_000_000_000


def page_settings(**status: Any) -> Settings:
    """Return settings that serve the page on a free port."""
    return Settings(status=StatusSettings(port=0, **status))


class PageFeed:
    """Judges documents as the worker does, and remembers them for the page.

    Attributes:
        recent: the remembered batches.
        state: what the page shows; it contains ``recent``.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.recent = RecentActivity(settings, clock)
        self.quality = LiveQuality(settings, judges=True, shadow=Shadow(settings))
        self.state = WorkerState("running", partitions=1, recent=self.recent, quality=self.quality)
        self._resources = ExitStack()
        self._engine = self._resources.enter_context(Deduplicator(settings))
        self._preparer = Preparer(settings)
        self._next_offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()
        self.quality.close()

    def give(self, documents: Iterable[dict[str, Any] | bytes]) -> Judgement:
        """Judge documents, or bare record values, as one batch."""
        records = [self._record(document) for document in documents]
        judgement = self._engine.judge(self._preparer.prepare_records(records))
        self._engine.apply(judgement)
        self.recent.add(records, judgement.verdicts)
        self.recent.add_comparisons(judgement.counts)
        self.quality.add_comparisons(judgement.counts, len(records))
        self.quality.add_records(RecordColumns.of(records), judgement.verdicts)
        self.state.count(judgement.verdicts)
        self.state.documents = self.state.judged[Outcome.KEPT]
        self.state.positions = {0: self._next_offset}
        self.state.lag = {0: 0}
        return judgement

    def _record(self, document: dict[str, Any] | bytes) -> Record:
        value = document if isinstance(document, bytes) else json.dumps(document).encode()
        position = Position(TOPIC, 0, self._next_offset)
        self._next_offset += 1
        # Records are one second apart.
        return Record(position, value, timestamp_ms=START_MS + 1000 * position.offset)
