"""*Async.* The index of a role: its own thread, and what the status pages show of it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import structlog

from streamdedup.batches import Judgement, SketchedBatch
from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.index.store import Index
from streamdedup.model import IndexStats
from streamdedup.roles.session import Runtime

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class IndexThread:
    """Runs blocking work on an index, one call at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self._settings = runtime.settings
        self._metrics, self._state = runtime.metrics, runtime.state
        self._rule = Rule.from_settings(runtime.settings)
        self._index: Index | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="index")

    @property
    def is_open(self) -> bool:
        """Whether the index is open."""
        return self._index is not None

    @property
    def opened(self) -> Index:
        """The open index."""
        if self._index is None:
            raise RuntimeError("the index is not open")
        return self._index

    async def open(self, log_identity: str) -> None:
        """Open the index, which belongs to this changelog."""
        dedup = self._settings.dedup
        self._index = await self.call(
            Index,
            self._settings.index,
            dedup.sketch_parameters(),
            log_identity,
            texts=dedup.keeps_texts,
        )
        self._metrics.begin_index()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in the thread."""
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def judgement(self, batch: SketchedBatch, now_ms: int) -> Judgement:
        """Judge a batch at a time since the epoch; the index's thread calls this."""
        index = self.opened
        with self._metrics.stage("probe"):
            candidates = index.probe(batch.documents)
        with self._metrics.stage("resolve"):
            latest_ms = now_ms if self._settings.index.clock == "record" else None
            return resolve(batch, candidates, self._rule, index.next_number, index.clock, latest_ms)

    async def show(self) -> IndexStats:
        """Show the state of the index in the metrics and on the status pages."""
        stats, room = await self.call(lambda: (self.opened.stats(), self.opened.room()))
        self._metrics.observe_index(stats, room)
        self._state.applied_offset, self._state.documents = stats.applied, stats.documents
        nearly_full = room.bytes_left < stats.reserve_bytes
        if nearly_full and not self._state.shortage:
            log.warning(
                "the disk is nearly full",
                bytes_left=room.bytes_left,
                reserve_bytes=stats.reserve_bytes,
            )
        self._state.shortage = (
            f"the index has {room.bytes_left} bytes left and may need {stats.reserve_bytes}: free "
            "disk space, raise index.disk_budget, or lower index.window_documents"
            if nearly_full
            else ""
        )
        self._metrics.set_gauge("ready", self._state.ready)
        return stats

    async def discard_staged(self) -> None:
        """Close an index that is ahead of the changelog; the next session opens and replays it."""

        def discard() -> None:
            if self._index is not None and self._index.is_staged:
                self._index.close()
                self._index = None

        await self.call(discard)

    async def close(self) -> None:
        """Close the index, after the thread has finished its work."""
        if self._index is not None:
            await self.call(self._index.close)
        self._thread.shutdown(wait=True)
