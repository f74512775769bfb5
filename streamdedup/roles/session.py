"""*Async.* What every role shares: sessions one after another, waiting for brokers, the drain.

A role is the job of a process: that of a worker, a judge or an edge. A session lasts from the first
look at the brokers to the first error. If no broker answers, the next session follows; any other
error ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import stamina
import structlog

from streamdedup.admin.clients import look_at_brokers
from streamdedup.batches import Verdicts
from streamdedup.columns import RecordColumns
from streamdedup.errors import (
    BrokerUnavailable,
    Fenced,
    ProducerForgotten,
    RegistryUnavailable,
    SettingsError,
    StreamdedupError,
)
from streamdedup.kafka.brokers import release_warning
from streamdedup.kafka.messages import ClusterFacts
from streamdedup.kafka.writer import BuiltTransaction, TransactionalWriter
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.state import Phase, WorkerState
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import format_duration

log = structlog.get_logger(__name__)

QUIET_S = 1.0
"""Silence of a source after which offsets without a visible record are committed, too. Transaction
markers and aborted records have such offsets."""
_PAUSE_S = 1.0
"""Pause after a failed session, so that a lasting failure does not cause a storm of sessions."""
_LONGEST_WAIT_S = 5.0
"""Longest pause between two attempts to reach the brokers."""
_MOST_TIMEOUTS = 3
"""Transactions in a row that may reach their timeout. The brokers may be slow for a while."""
_REPORTS_S = 10.0
"""Interval between two lines of the log about a replay."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What all parts of a role share; ``stop`` is set to drain and end it."""

    settings: Settings
    metrics: Metrics
    state: WorkerState
    stop: asyncio.Event

    def enter(self, phase: Phase, reason: str = "") -> None:
        """Show a phase, with a reason for people if the role is not running."""
        self.state.enter(phase, reason)
        self.metrics.set_gauge("ready", self.state.ready)

    def wait(self, error: BrokerUnavailable) -> None:
        """Enter the phase in which the role waits for a broker or the registry; log the reason."""
        if isinstance(error, RegistryUnavailable):
            self.enter("waiting_for_registry", str(error))
            log.warning("waiting for the schema registry", reason=str(error))
        else:
            self.enter("waiting_for_broker", str(error))
            log.warning("waiting for the broker", reason=str(error))

    def count_verdicts(self, records: RecordColumns, verdicts: Verdicts) -> None:
        """Count the verdicts on records, which are committed, and show them on the page."""
        self.metrics.count_verdicts(verdicts, records, now_ms())
        self.state.count(verdicts)
        if self.state.quality is not None:
            self.state.quality.add_records(records, verdicts)
        if self.state.recent is not None:
            self.state.recent.add(records, verdicts)


async def run_sessions(
    session: Callable[[], Awaitable[None]], runtime: Runtime, *, stands_by: bool
) -> None:
    """Run one session after another until the role is stopped.

    A role that ``stands_by`` begins another session when another process has taken over.

    Raises:
        StreamdedupError: an error that retrying cannot fix.
    """
    reason, stop = "start", runtime.stop
    while not stop.is_set():
        runtime.metrics.count("sessions_total", label=reason)
        try:
            await session()
        except BrokerUnavailable as error:
            runtime.wait(error)
            reason = "broker"
        except Fenced as error:
            if not stands_by:
                raise
            runtime.enter("starting", str(error))
            log.warning("fenced", reason=str(error))
            reason = "fenced"
        else:
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_S):
                await stop.wait()
    runtime.enter("stopped")


async def reach_brokers(
    runtime: Runtime, reach_registry: Callable[[ClusterFacts], Awaitable[ClusterFacts]] | None
) -> ClusterFacts:
    """Retry until a broker answers, and the schema registry; return the facts about the topics.

    A role that needs no schemas has no ``reach_registry``.

    Raises:
        TopicError: a topic is missing or misconfigured.
        BrokerRefused: the broker or the registry refuses this client.
        SettingsError: the registry is none, or has no schema of duplicate records.
    """
    stamina.instrumentation.set_on_retry_hooks(())  # Runtime.wait logs each failure
    attempts = stamina.retry_context(
        on=BrokerUnavailable, attempts=None, timeout=None, wait_max=_LONGEST_WAIT_S
    )
    async for attempt in attempts:
        with attempt:
            try:
                facts = await look_at_brokers(runtime.settings)
                if reach_registry is not None:
                    facts = await reach_registry(facts)
            except BrokerUnavailable as error:
                runtime.wait(error)
                raise
            if warning := release_warning(facts.release_level):
                log.warning("this release of Kafka is not tested", reason=warning)
            return facts
    raise AssertionError("unreachable: the attempts have no end")


@contextlib.asynccontextmanager
async def reporting_replay(state: WorkerState) -> AsyncIterator[None]:
    """Log how far a replay is, at intervals; a replay that stands still shows the same offset."""

    async def report() -> None:
        while True:
            await asyncio.sleep(_REPORTS_S)
            log.info("still replaying", offset=state.replay_done, end=state.replay_total)

    reports = asyncio.create_task(report())
    try:
        yield
    finally:
        reports.cancel()


class Commits:
    """Commits transactions, and counts how they end.

    It outlives the sessions: a transaction that does not fit ``kafka.transaction_timeout`` ends
    its session, and the next one begins with the same records.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._metrics = runtime.metrics
        self._timeout = runtime.settings.kafka.transaction_timeout
        self._timeouts = 0

    async def commit(self, writer: TransactionalWriter, transaction: BuiltTransaction) -> int:
        """Do what :meth:`TransactionalWriter.commit` does.

        Raises:
            SettingsError: too many transactions in a row have not fitted their timeout.
        """
        try:
            applied = await writer.commit(transaction)
        except ProducerForgotten:
            raise  # no transaction was begun
        except (Fenced, BrokerUnavailable) as error:
            self._metrics.count_transaction("fenced" if isinstance(error, Fenced) else "unknown")
            timed_out = isinstance(error.__cause__, TimeoutError)
            self._timeouts = self._timeouts + 1 if timed_out else 0
            if self._timeouts < _MOST_TIMEOUTS:
                raise
            raise SettingsError(
                f"{self._timeouts} transactions in a row did not fit kafka.transaction_timeout "
                f"{format_duration(self._timeout)}; raise it, lower batch.documents or "
                "batch.bytes, or find out why the brokers are slow"
            ) from error
        self._timeouts = 0
        self._metrics.count_transaction("committed")
        return applied


def now_ms() -> int:
    """Return the wall clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def decisive(group: BaseExceptionGroup[BaseException]) -> StreamdedupError:
    """Return the error of a task group that decides: first one that retrying cannot fix, if any.

    Raises the group, if any of its errors is a defect. A plain ``except`` catches it: before Python
    3.11.4 an error that is raised inside of ``except*`` becomes a group itself.
    """
    errors = [error for error in group.exceptions if isinstance(error, StreamdedupError)]
    if len(errors) < len(group.exceptions):
        raise group
    return min(errors, key=lambda error: isinstance(error, BrokerUnavailable))


async def run_and_drain(
    role: Coroutine[Any, Any, None], state: WorkerState, stop: asyncio.Event, budget_s: float
) -> None:
    """Run a role until it ends; after ``stop`` it has ``budget_s`` seconds to finish its work."""
    running = asyncio.create_task(role)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not running.done() and state.ready:
        log.info("draining", budget_s=budget_s)
        await asyncio.wait({running}, timeout=budget_s)
    if not running.done():
        # Nothing is lost: the next start reads again what was not committed.
        log.warning("stopping without a drain", phase=state.phase)
        running.cancel()
    try:
        await running
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    log.info("stopped")
