"""Sessions one after another, and the drain, without a broker."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import structlog

from streamdedup.errors import (
    BrokerRefused,
    BrokerUnavailable,
    Fenced,
    SettingsError,
    StreamdedupError,
    TopicError,
)
from streamdedup.kafka.writer import BuiltTransaction, TransactionalWriter
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.state import WorkerState
from streamdedup.roles.session import (
    Commits,
    Runtime,
    decisive,
    reporting_replay,
    run_and_drain,
    run_sessions,
)
from streamdedup.settings.sections import Settings


def new_runtime() -> Runtime:
    """Return what the parts of a role share, before its start."""
    return Runtime(Settings(), Metrics(), WorkerState(), asyncio.Event())


async def test_an_unavailable_broker_starts_the_next_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The role waits with the reason, and ends as stopped."""
    monkeypatch.setattr("streamdedup.roles.session._PAUSE_S", 0.0)
    runtime = new_runtime()
    state, seen = runtime.state, list[tuple[str, str]]()

    async def session() -> None:
        await asyncio.sleep(0)
        seen.append((state.phase, state.reason))
        if len(seen) == 1:
            raise BrokerUnavailable("no broker answers")
        runtime.stop.set()

    await run_sessions(session, runtime, stands_by=False)
    assert seen == [("starting", ""), ("waiting_for_broker", "no broker answers")]
    assert state.phase == "stopped"
    page = runtime.metrics.render()[0].decode()
    for reason in ("start", "broker"):
        assert f'streamdedup_sessions_total{{reason="{reason}"}} 1.0' in page


async def test_any_other_error_ends_the_role() -> None:
    """Retrying cannot fix it, so no further session starts."""
    runtime = new_runtime()

    async def session() -> None:
        await asyncio.sleep(0)
        raise TopicError("missing topics")

    with pytest.raises(TopicError):
        await run_sessions(session, runtime, stands_by=False)
    assert runtime.state.phase == "starting"


@pytest.mark.parametrize("stands_by", [False, True])
async def test_a_fenced_role_ends_or_stands_by(
    stands_by: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a standby, the next session waits for the election."""
    monkeypatch.setattr("streamdedup.roles.session._PAUSE_S", 0.0)
    runtime = new_runtime()

    async def session() -> None:
        await asyncio.sleep(0)
        if 'reason="fenced"' in runtime.metrics.render()[0].decode():
            runtime.stop.set()
            return
        raise Fenced("taken over")

    running = run_sessions(session, runtime, stands_by=stands_by)
    if not stands_by:
        with pytest.raises(Fenced):
            await running
    else:
        await running
        assert runtime.stop.is_set()


class EndedTransactions(TransactionalWriter):
    """Commits or fails as it is told."""

    def __init__(self, outcomes: list[int | BrokerUnavailable]) -> None:
        self._outcomes = iter(outcomes)

    async def commit(self, _transaction: BuiltTransaction) -> int:
        """End with the next outcome."""
        await asyncio.sleep(0)
        outcome = next(self._outcomes)
        if isinstance(outcome, BrokerUnavailable):
            raise outcome
        return outcome


def failed(cause: Exception) -> BrokerUnavailable:
    """Return the error of a transaction that failed with this cause."""
    error = BrokerUnavailable("the transaction failed")
    error.__cause__ = cause
    return error


async def test_only_timeouts_in_a_row_end_the_role() -> None:
    """A commit, or another error, shows that waiting may help."""
    late, lost = failed(TimeoutError()), failed(ConnectionError())
    outcomes: list[int | BrokerUnavailable] = [late, late, 7, late, late, lost, late, late]
    writer = EndedTransactions([*outcomes, late])
    commits, nothing = Commits(new_runtime()), BuiltTransaction([], [], {}, [])
    for _ in outcomes:
        with contextlib.suppress(BrokerUnavailable):
            await commits.commit(writer, nothing)
    with pytest.raises(SettingsError, match=r"kafka\.transaction_timeout 1m; raise it"):
        await commits.commit(writer, nothing)


@pytest.mark.parametrize(
    "errors",
    [
        [BrokerUnavailable("away"), BrokerRefused("no access")],
        [BrokerRefused("no access"), BrokerUnavailable("away")],
    ],
    ids=["last", "first"],
)
def test_the_error_that_retrying_cannot_fix_decides(errors: list[StreamdedupError]) -> None:
    """The reading and the judging task may fail together, in any order."""
    assert isinstance(decisive(ExceptionGroup("both tasks", errors)), BrokerRefused)


def test_a_defect_decides() -> None:
    """An error of another kind is not hidden by one that retrying may fix."""
    group = ExceptionGroup("both tasks", [BrokerUnavailable("away"), ValueError("a defect")])
    with pytest.raises(ExceptionGroup) as raised:
        decisive(group)
    assert raised.value is group


async def test_a_replay_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """At intervals, also if it stands still, and not after its end."""
    monkeypatch.setattr("streamdedup.roles.session._REPORTS_S", 0.01)
    state = WorkerState("replaying", replay_done=5, replay_total=9)
    with structlog.testing.capture_logs() as events:
        async with reporting_replay(state):
            while len(events) < 2:  # noqa: ASYNC110 - the log sends no event
                await asyncio.sleep(0)
            state.replay_done = 7
            while events[-1]["offset"] < 7:  # noqa: ASYNC110 - the log sends no event
                await asyncio.sleep(0)
        reported = len(events)
        await asyncio.sleep(0.05)
    assert [event["offset"] for event in events[:2]] == [5, 5]
    assert {event["end"] for event in events} == {9}
    assert len(events) == reported


async def test_a_ready_role_finishes_its_work_after_a_stop() -> None:
    """It gets its time budget."""
    state, stop = WorkerState("running"), asyncio.Event()
    finished = False

    async def role() -> None:
        nonlocal finished
        stop.set()
        await asyncio.sleep(0.01)
        finished = True

    await run_and_drain(role(), state, stop, budget_s=60)
    assert finished


@pytest.mark.parametrize(
    ("state", "budget_s"),
    [(WorkerState("running"), 0.01), (WorkerState("replaying"), 60)],
    ids=["budget spent", "not ready"],
)
async def test_a_role_is_cancelled_if_it_cannot_drain(state: WorkerState, budget_s: float) -> None:
    """It exceeds its budget, or has no work to finish."""
    stop = asyncio.Event()

    async def role() -> None:
        stop.set()
        await asyncio.Event().wait()

    await run_and_drain(role(), state, stop, budget_s)


async def test_an_error_of_the_role_passes_through() -> None:
    """Without a stop the role ends by its own error."""

    async def role() -> None:
        await asyncio.sleep(0)
        raise TopicError("missing topics")

    with pytest.raises(TopicError):
        await run_and_drain(role(), WorkerState(), asyncio.Event(), budget_s=1)
