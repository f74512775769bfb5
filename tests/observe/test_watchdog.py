"""The watchdog: what counts as standing still, what it reports, and what it forgives."""

from __future__ import annotations

import pytest

from streamdedup.observe.state import Phase, WorkerState
from streamdedup.observe.watchdog import Watchdog

STACKS = "most recent call first"


class Machine:
    """A state, its watchdog, and a clock that the test sets."""

    def __init__(self, phase: Phase = "running", *, busy: bool = False) -> None:
        self.now = 100.0
        self.state = WorkerState(phase, busy=busy)
        self.watchdog = Watchdog(self.state, loop_s=10, work_s=60, clock=lambda: self.now)

    def run(self, seconds: int, *, beats: bool = True, works: bool = False) -> None:
        """Let time pass, with a look each second."""
        for _ in range(seconds):
            self.now += 1
            if beats:
                self.watchdog.beat()
            self.state.steps += works
            self.watchdog.look()


def test_a_blocked_event_loop_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    """The stacks are in the log once for each time; the process is not called stuck."""
    machine = Machine()
    for blocked in range(1, 3):
        machine.run(30, beats=False)
        machine.run(5)
        printed = capfd.readouterr()
        assert printed.out.count("the event loop is blocked") == 1, blocked
        assert STACKS in printed.err
    assert machine.state.stuck == ""


@pytest.mark.parametrize(
    ("phase", "busy", "works", "stuck"),
    [
        ("running", True, False, True),
        ("running", True, True, False),
        ("running", False, False, False),
        ("replaying", False, False, True),
        ("replaying", False, True, False),
        ("waiting_for_broker", False, False, False),
    ],
)
def test_work_must_advance(
    phase: Phase, busy: bool, works: bool, stuck: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """A batch or a replay without a step is stuck; no records and no brokers are not."""
    machine = Machine(phase, busy=busy)
    machine.run(61, works=works)
    assert bool(machine.state.stuck) == stuck
    assert machine.state.degradations()["stuck"] == stuck
    assert (STACKS in capfd.readouterr().err) == stuck
    machine.run(1, works=True)
    assert machine.state.stuck == ""


def test_a_process_that_was_stopped_is_not_stuck(capfd: pytest.CaptureFixture[str]) -> None:
    """After SIGCONT, or a pause of the machine, the limits begin again."""
    machine = Machine(busy=True)
    machine.now += 10_000
    machine.watchdog.look()
    machine.run(5, beats=False)
    assert machine.state.stuck == ""
    assert STACKS not in capfd.readouterr().err
