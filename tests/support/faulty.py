"""*Blocking.* ``streamdedup`` with a fault at one of its fail-points, for the fault tests.

    FAULT='{"point": "commit", "turn": 3, "action": "kill"}' python -m tests.support.faulty run ...

The processes of the pool import this module again, so they have the fault, too. CLOCK_STEP gives
the clock of a process a difference, in seconds, from a moment after its start on:

    CLOCK_STEP='[5, -1800]' python -m tests.support.faulty run ...
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from streamdedup import failpoints
from streamdedup.errors import BrokerUnavailable, IndexDamaged

Action = Literal["kill", "kill later", "stop", "delay", "error"]
ACTIONS: tuple[Action, ...] = get_args(Action)
_VARIABLE = "FAULT"
_CLOCK = "CLOCK_STEP"
_OF_BROKERS = frozenset(
    {
        *("append", "begin", "claim", "commit", "confirm", "lane", "offsets", "pair", "poll"),
        *("produce", "replay", "stage", "start", "write"),
    }
)
"""Points in the code that talks to brokers; an error there is one of a broker."""


@dataclass(frozen=True)
class Fault:
    """What happens once in a process.

    Attributes:
        point: one of :data:`tests.support.points.POINTS`.
        turn: at which call of the point, counted from 1.
        action: ``kill`` and ``stop`` send a signal to the process, ``kill later`` after some
            seconds; ``delay`` blocks the thread for some seconds; ``error`` raises.
        seconds: of ``kill later`` and ``delay``.
        record: a file that gets the number of the process before the action.
    """

    point: str
    turn: int
    action: Action
    seconds: float
    record: str

    def environment(self) -> Mapping[str, str]:
        """Return the environment variable that gives a process this fault."""
        return {_VARIABLE: json.dumps(asdict(self))}

    def processes(self) -> list[int]:
        """Return the numbers of the processes in which it has happened."""
        path = Path(self.record)
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def install() -> None:
    """Set the handler of this process, if the environment has a fault."""
    if _VARIABLE not in os.environ:
        return
    fault = Fault(**json.loads(os.environ[_VARIABLE]))
    turns = itertools.count(1)  # next() of it is one step, whichever threads call it
    failpoints.handle(lambda point: _reach(fault, turns) if point == fault.point else None)


def step_clock() -> None:
    """Let the wall clock of this process jump, if the environment says so."""
    if _CLOCK not in os.environ:
        return
    after_s, step_s = json.loads(os.environ[_CLOCK])
    right_ns, begin = time.time_ns, time.monotonic()

    def wrong_ns() -> int:
        jumped = time.monotonic() - begin > after_s
        return right_ns() + (int(step_s * 1e9) if jumped else 0)

    time.time_ns = wrong_ns
    time.time = lambda: wrong_ns() / 1e9


def _reach(fault: Fault, turns: itertools.count[int]) -> None:
    if next(turns) != fault.turn:
        return
    with Path(fault.record).open("a") as record:
        record.write(f"{os.getpid()}\n")
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill later":
            timer = threading.Timer(fault.seconds, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "delay":
            time.sleep(fault.seconds)
        case "error":
            raise _error(fault.point)


def _error(point: str) -> Exception:
    if point in _OF_BROKERS:
        return BrokerUnavailable("an injected error")
    if point == "pool":
        return MemoryError("an injected error")
    if point in {"judge", "checkpoint"}:
        return IndexDamaged("an injected error")
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


install()
step_clock()

if __name__ == "__main__":
    from streamdedup.__main__ import main

    main()
