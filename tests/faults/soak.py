"""*Blocking.* ``make soak``: one stream, all faults for minutes or hours, then the oracle.

    python -m tests.faults.soak --minutes 5 --seed 1
    python -m tests.faults.soak --minutes 5 --seed 1 --mode split

A producer writes documents to nine partitions. A worker judges them, and meets faults one after the
other: SIGKILLs, storms of them, stops, lost and restarted brokers, a network that delays, loses and
resets, a fault at a random fail-point, clock steps, a full disk, a takeover by a second worker. A
``read_committed`` reader counts every position as it appears. In the end all documents are judged
by an undisturbed worker, and :func:`tests.support.oracle.assert_undisturbed` compares everything.

With ``--mode pair`` there are a worker and its standby, with ``--mode split`` three edges, a judge
and its standby; each fault meets one of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deploy.broker.broker import Broker
from deploy.broker.obtain import own_broker
from deploy.broker.process import LONG_LIVED
from tests.support.checker import Checker
from tests.support.faulty import ACTIONS, Fault
from tests.support.feed import Feeder
from tests.support.network import COMMIT_STEPS, Ending, Loss, Network
from tests.support.oracle import assert_undisturbed
from tests.support.patience import wait_until
from tests.support.points import POINTS
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

PARTITIONS = 9
FAULTY = "tests.support.faulty"
EXPECTED_ENDS = frozenset({0, 7, 8, 12, 13, 16, -signal.SIGKILL, -signal.SIGTERM})
"""Also those of injected errors: 12 damage, 13 a full disk, 16 a pool without memory."""
SETTINGS: dict[str, dict[str, Any]] = {
    "batch": {"documents": 300},
    "index": {"delta_documents": 512, "window_documents": 20_000},
    "kafka": {"transaction_timeout": "10s"},
}


@dataclass
class Report:
    """What happened so far."""

    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[int] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)

    def line(self, seconds: float, produced: int, seen: int) -> str:
        """Return one line about the progress."""
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return f"{seconds:6.0f} s  produced {produced:,}  seen {seen:,}  faults: {faults}"


NAMES = {
    "single": ("worker",),
    "pair": ("worker-0", "worker-1"),
    "split": ("judge-0", "judge-1", "edge-0", "edge-1", "edge-2"),
}
"""The processes, by mode."""
POINTS_OF = {
    "worker": sorted(POINTS.keys() - {"append", "lane", "pair", "write"}),
    "judge": sorted(POINTS.keys() - {"append", "lane", "pair", "pool", "write"}),
    "edge": ["append", "begin", "lane", "offsets", "pair", "poll", "pool", "produce", "write"],
}
"""The fail-points that each role reaches."""


class Soak:
    """The faults, in an order that a seed decides."""

    def __init__(
        self,
        stage: Stage,
        names: tuple[str, ...],
        broker: Broker,
        network: Network,
        seed: int,
        report: Report,
    ) -> None:
        self._stage, self._broker, self._network, self.report = stage, broker, network, report
        self._rng = random.Random(seed)
        self._number = 0
        self._workers: dict[str, WorkerProcess] = {}
        self._names = names
        self._has_standby = len(names) > 1
        self._stages = {
            name: stage.variant(name) if self._has_standby else stage for name in self._names
        }
        self._target = self._names[0]
        self.actions: dict[Callable[[], None], int] = {
            self.kill: 4,
            self.storm: 3,
            self.stop: 2,
            self.fail: 6,
            self.step_clock: 1,
            self.fill_disk: 1,
            self.take_over: 1,
            self.drain: 1,
            self.kill_broker: 2,
            self.restart_broker: 1,
            self.suspend_broker: 1,
            self.interrupt: 1,
            self.reset_connections: 1,
            self.desert: 1,
            self.lose_response: 2,
            self.delay: 1,
        }
        if self._has_standby:
            del self.actions[self.take_over]  # the standby does that

    def strike(self) -> None:
        """Let one fault happen."""
        self._target = self._rng.choice(self._names)
        actions, weights = list(self.actions), list(self.actions.values())
        self._rng.choices(actions, weights)[0]()

    def start(self, **environment: str) -> WorkerProcess:
        """Start what does not run, and the target again if it needs an environment; return it."""
        for name, worker in list(self._workers.items()):
            if worker.process.poll() is not None:
                self._note_end(self._workers.pop(name))
        if environment:
            self.end(signal.SIGKILL)
        for name in self._names:
            if name not in self._workers:
                env = environment if name == self._target else {}
                role = self._role(name)
                flags = [] if role == "worker" else ["--role", role]
                worker = self._stages[name].start_worker(*flags, env=env, module=FAULTY)
                self._workers[name] = worker
        return self._workers[self._target]

    @staticmethod
    def _role(name: str) -> str:
        return name.partition("-")[0]

    def end(self, number: signal.Signals) -> None:
        """End the target with a signal, if it runs."""
        worker = self._workers.pop(self._target, None)
        if worker is None:
            return
        if worker.process.poll() is None:
            worker.process.send_signal(number)
            # A standby may reach the fail-point that stops it much later than a fault waits.
            worker.process.send_signal(signal.SIGCONT)
        worker.wait()
        self._note_end(worker)

    def end_all(self) -> None:
        """Kill all."""
        for name in self._names:
            self._target = name
            self.end(signal.SIGKILL)

    def finish(self, total: int) -> None:
        """Run everything undisturbed until all records have an outcome, and drain it."""
        if not self._has_standby:
            self._stage.run_until_judged(total)
            return
        self.start()
        wait_until(self._has_written(total), f"{total} records to be written", 300)
        for name in sorted(self._workers):
            self._workers.pop(name).drain()

    def _has_written(self, total: int) -> Callable[[], bool]:
        return lambda: sum(self._stage.committed().values()) == total

    def _note_end(self, worker: WorkerProcess) -> None:
        code = worker.process.returncode
        self.report.ends[code] += 1
        if code not in EXPECTED_ENDS or worker.has_traceback():
            self.report.unexpected.append(f"exit code {code}:\n{worker.log()[-3000:]}")

    def _work(self, least_s: float, most_s: float) -> None:
        time.sleep(self._rng.uniform(least_s, most_s))

    def kill(self) -> None:
        """SIGKILL after some work."""
        self.start()
        self._work(2, 6)
        self.end(signal.SIGKILL)
        self.report.faults["worker killed"] += 1

    def storm(self) -> None:
        """SIGKILLs a moment after each other, while the worker starts, replays or works."""
        for _ in range(self._rng.randint(3, 8)):
            self.start()
            self._work(0.1, 1) if self._rng.random() < 0.5 else self._work(1, 3)
            self.end(signal.SIGKILL)
            self.report.faults["worker killed"] += 1

    def stop(self) -> None:
        """SIGSTOP, and SIGCONT after seconds."""
        worker = self.start()
        self._work(2, 4)
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGSTOP)
            self._work(0.5, 15)
            worker.process.send_signal(signal.SIGCONT)
            self.report.faults["worker stopped"] += 1

    def fail(self) -> None:
        """A fault at a fail-point."""
        self._number += 1
        fault = Fault(
            point=self._rng.choice(POINTS_OF[self._role(self._target)]),
            turn=self._rng.randint(1, 6),
            action=self._rng.choice(ACTIONS),
            seconds=self._rng.uniform(0, 0.05),
            record=str(self._stage.folder / f"fault-{self._number}"),
        )
        worker = self.start(**fault.environment())
        limit = time.monotonic() + 15
        while not fault.processes() and time.monotonic() < limit and worker.process.poll() is None:
            time.sleep(0.05)
        for process in fault.processes():
            self.report.faults[f"fail-point, {fault.action}"] += 1
            if fault.action == "stop":
                self._work(0.5, 3)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)
        self._work(0, 2)

    def step_clock(self) -> None:
        """The wall clock of the worker jumps by up to half an hour."""
        step = json.dumps([3, self._rng.choice((-1, 1)) * self._rng.uniform(1, 1800)])
        self.start(CLOCK_STEP=step)
        self._work(4, 8)
        self.end(signal.SIGKILL)
        self.report.faults["clock stepped"] += 1

    def fill_disk(self) -> None:
        """The disk is full at the next flush."""
        self._number += 1
        record = self._stage.folder / f"fault-{self._number}"
        fault = Fault("flush-write", self._rng.randint(1, 2), "error", 0, str(record))
        self.start(**fault.environment())
        self._work(4, 8)
        self.report.faults["disk full"] += len(fault.processes())

    def take_over(self) -> None:
        """A second worker with its own index directory takes over from the first one."""
        self.start()
        self._work(1, 3)
        self._number += 1
        other = self._stage.variant(f"takeover-{self._number}")
        with other.start_worker() as second:
            self._work(6, 10)
            second.kill()
            self.report.ends[second.process.returncode] += 1
        self.end(signal.SIGKILL)
        self.report.faults["taken over"] += 1

    def drain(self) -> None:
        """SIGTERM."""
        self.start()
        self._work(1, 4)
        self.end(signal.SIGTERM)
        self.report.faults["worker drained"] += 1

    def kill_broker(self) -> None:
        """SIGKILL of the broker, and a new start."""
        self.start()
        self._work(1, 3)
        self._broker.kill()
        self._work(0.5, 3)
        self._broker.restart()
        self.report.faults["broker killed"] += 1

    def restart_broker(self) -> None:
        """An orderly restart of the broker."""
        self.start()
        self._work(1, 3)
        self._broker.stop()
        self._broker.restart()
        self.report.faults["broker restarted"] += 1

    def suspend_broker(self) -> None:
        """The broker does not answer for seconds."""
        self.start()
        self._work(1, 3)
        self._broker.suspend()
        self._work(1, 12)
        self._broker.resume()
        self.report.faults["broker stopped"] += 1

    def interrupt(self) -> None:
        """The network delivers nothing for seconds."""
        self.start()
        self._work(1, 3)
        with self._network.interrupted():
            self._work(1, 12)
        self.report.faults["network interrupted"] += 1

    def reset_connections(self) -> None:
        """All connections are reset, a few times."""
        self.start()
        for _ in range(self._rng.randint(1, 6)):
            self._work(0.2, 2)
            self._network.reset()
            self.report.faults["connections reset"] += 1

    def desert(self) -> None:
        """The broker's ends of all connections disappear, and the worker gets no sign of it."""
        self.start()
        self._work(1, 3)
        self._network.desert()
        self._work(1, 8)
        self.report.faults["connections half open"] += 1

    def lose_response(self) -> None:
        """The response to one request of a transaction is lost."""
        ending: Ending = "reset" if self._rng.random() < 0.5 else "silence"
        self._network.losses[self._rng.choice(COMMIT_STEPS)] = Loss(self._rng.randint(1, 6), ending)
        self.start()
        self._work(2, 8)
        self.report.faults["response lost"] += not self._network.losses
        self._network.losses.clear()

    def delay(self) -> None:
        """Every frame takes up to .3 s."""
        self.start()
        self._network.latency_s = 0.0, 0.3
        self._work(3, 8)
        self._network.latency_s = 0.0, 0.0
        self.report.faults["network delayed"] += 1


def soak(seconds: float, seed: int, per_second: int, folder: Path, mode: str) -> bool:
    """Run, print the report, and return whether everything is as it must be."""
    report = Report()
    with (
        own_broker(options=LONG_LIVED) as broker,
        Network(broker.bootstrap, random.Random(seed)) as network,
    ):
        names = NAMES[mode]
        stage = Stage(broker.bootstrap, folder, mode="split" if mode == "split" else "single")
        stage.create_topics(PARTITIONS)
        stage.configure(**SETTINGS)
        if len(names) > 1:
            stage.configure(kafka={"session_timeout": "6s"}, standby={"enabled": True})
        stage.configure(kafka={"bootstrap_servers": network.bootstrap})
        checker = Checker(stage)
        checker.start()
        faults = Soak(stage, names, broker, network, seed, report)
        began, reported = time.monotonic(), time.monotonic()
        with Feeder(stage, PARTITIONS, per_second) as feeder:
            while time.monotonic() - began < seconds:
                faults.strike()
                feeder.assert_feeding()
                if time.monotonic() - reported > 30:
                    reported = time.monotonic()
                    line = report.line(reported - began, feeder.sent, len(checker.seen))
                    print(line, flush=True)
            faults.end_all()
            total = feeder.finish()
        print(f"the faults are over; judging the rest of {total:,} records", flush=True)
        faults.finish(total)
        deadline = time.monotonic() + 60
        while len(checker.seen) < total and time.monotonic() < deadline:
            time.sleep(0.2)
        checker.stopping.set()
        checker.join()
        problems = [*checker.twice, *report.unexpected]
        if len(checker.seen) != total:
            problems.append(f"the reader saw {len(checker.seen)} of {total} positions")
        outcomes: Counter[str] = Counter()
        try:
            outcomes = assert_undisturbed(stage)
        except AssertionError as error:
            problems.append(str(error)[:3000])
    latencies = np.quantile(checker.latencies_s or [0.0], (0.5, 0.95, 0.99, 1)).round(2).tolist()
    print(
        json.dumps(
            {
                "mode": mode,
                "seed": seed,
                "minutes": round(seconds / 60, 1),
                "python": platform.python_version(),
                "records": total,
                "partitions": PARTITIONS,
                "outcomes": outcomes,
                "faults": report.faults,
                "exit codes": {str(code): count for code, count in report.ends.items()},
                "latency_s": dict(zip(("p50", "p95", "p99", "max"), latencies, strict=True)),
                "lost": total - len(checker.seen),
                "twice": len(checker.twice),
                "verdict": "as without faults" if not problems else "WRONG",
            },
            indent=2,
        )
    )
    for problem in problems:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    return not problems


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description="Disturb a worker, and check its verdicts.")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=60, help="documents per second")
    parser.add_argument("--mode", choices=sorted(NAMES), default="single")
    arguments = parser.parse_args()
    # The clients of this process complain about each fault.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        passed = soak(
            60 * arguments.minutes, arguments.seed, arguments.rate, Path(folder), arguments.mode
        )
    sys.exit(not passed)


if __name__ == "__main__":
    main()
