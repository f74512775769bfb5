"""The worker against plain copies of a topic, through a real broker on this machine.

Each party drains a prefilled topic of JSON documents; the parties take turns:

- copy: a transactional copy with aiokafka, as a careful user writes it: 1,000 records per
  transaction, one transactional id;
- best copy: the fastest copy of this kind: 5,000 records per transaction, two transactional ids in
  turn;
- streamdedup: ``streamdedup run`` with default settings, in its own process.

All write zstd. The time is from the first to the last committed output. 10 % of the documents are
exact copies and 5 % near copies; each source record must be in exactly one output topic, once.
Processor times are those of the timed interval: of the program, of its child processes, and of the
broker. "other load" is the number of processors that were busy with anything else.

The worker also drains the same posts in JSON and in Avro, with a schema in a registry.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient

from benchmarks import pipeline_tables as tables
from benchmarks.measured import java_below, resident_of, terminable
from benchmarks.pipeline_avro import AVRO, JSON, AvroEncoder
from benchmarks.pipeline_drain import Drain, drain
from benchmarks.pipeline_latency import latencies
from benchmarks.pipeline_parties import BEST_COPY, COPY, PARTIES, WORKER, Party, Place
from benchmarks.pipeline_profile import Profile
from benchmarks.pipeline_topics import PARTITIONS, administration, delete, fill
from benchmarks.progress import Steps
from deploy.broker.broker import Broker
from deploy.broker.errors import BrokerError
from deploy.broker.obtain import own_broker
from deploy.broker.process import LONG_LIVED
from deploy.processes import Child, ProcessEnded
from deploy.registry import running_registry
from tests.testkit.documents import ARTICLE_BYTES, EXACT, NEAR, POST_BYTES, Documents, Plan, plan

_DOCUMENTS = {"posts": 200_000, "articles": 60_000}
_QUICK_DOCUMENTS = {"posts": 40_000, "articles": 30_000}
_BYTES = {"posts": POST_BYTES, "articles": ARTICLE_BYTES}
_KINDS = [*_BYTES, "avro"]
_ROUNDS = 3
_WARM_UP = (COPY, BEST_COPY, COPY, COPY)
"""Drains that do not count. The broker is a Java program, whose speed doubles while it works."""
_LATENCY_S, _QUICK_LATENCY_S = 25.0, 10.0
_RATES = (10.0, 500.0)
_MEMORY_DOCUMENTS = 1_000_000
_MEMORY_LINES = 10


class Case(NamedTuple):
    """A source topic: its documents and their compression."""

    kind: str
    mean_bytes: int
    documents: int
    compression: str

    def __str__(self) -> str:
        return f"{self.kind} {self.compression}"

    def plan(self) -> Plan:
        """Return the plan of the source."""
        return plan(self.documents, lanes=PARTITIONS)


class Bench:
    """Runs the parts of the benchmark on one broker.

    Args:
        broker: a broker that runs.
        admin: a client that is connected to it.
        folder: folder for configurations, logs and indexes.
        steps: shows the progress.
        profile: records pictures of the worker, if wanted.
    """

    def __init__(
        self,
        broker: Broker,
        admin: AIOKafkaAdminClient,
        folder: Path,
        steps: Steps,
        profile: Profile | None,
    ) -> None:
        self._bootstrap = broker.bootstrap
        self._broker_pid = java_below(os.getpid())
        self._admin = admin
        self._folder = folder
        self._steps = steps
        self._profile = profile
        self._is_warm = False
        self._places = 0

    def _place(self, source: str, settings: dict[str, Any] | None = None) -> Place:
        self._places += 1
        return Place(self._bootstrap, source, f"run-{self._places}", self._folder, settings)

    async def case(self, case: Case, rounds: int) -> list[Drain]:
        """Let all parties drain a topic, several times in turn."""
        say = self._steps.say
        say(f"\n{case.kind} of {case.mean_bytes:,} bytes, compression {case.compression}")
        source = await self._filled(case)
        say(f"{case.documents:,} documents, {rounds} rounds; load {os.getloadavg()[0]:.1f}")
        say(tables.DRAIN_HEADER)
        for party in () if self._is_warm else _WARM_UP:
            await self._drain(case, source, party, "warm-up")
        self._is_warm = True
        drains = []
        for number in range(rounds):
            for turn in range(len(PARTIES)):
                party = PARTIES[(turn + number) % len(PARTIES)]
                drains.append(await self._drain(case, source, party, f"round {number + 1}"))
                say(tables.drain_line(drains[-1]))
        if self._profile is not None:
            await self._drain(case, source, WORKER, "profile", self._profile)
        await delete(self._admin, [source])
        drains.sort(key=lambda one: [party.name for party in PARTIES].index(one.party))
        for line in tables.summary_lines(drains):
            say(line)
        return drains

    async def avro(self, case: Case, rounds: int) -> list[Drain]:
        """Let the worker drain the same documents in JSON and in Avro, several times in turn."""
        say = self._steps.say
        say(f"\n{case.kind} of {case.mean_bytes:,} bytes, in JSON and in Avro")
        drains = []
        with running_registry() as registry:
            encoder = AvroEncoder(registry)
            forms: dict[Party, tuple[str, dict[str, Any]]] = {
                JSON: (await self._filled(case), {}),
                AVRO: (await self._filled(case, encoder.encode), encoder.settings),
            }
            say(tables.DRAIN_HEADER)
            for number in range(rounds + 1):
                for party, (source, settings) in forms.items():
                    what = f"round {number}" if number else "warm-up"
                    done = await self._drain(case, source, party, what, settings=settings)
                    if number:
                        drains.append(done)
                        say(tables.drain_line(done))
            await delete(self._admin, [source for source, _ in forms.values()])
        for line in tables.avro_lines(drains):
            say(line)
        return drains

    async def memory(self, documents: int) -> dict[str, Any]:
        """Drain many posts with the worker; print its memory at intervals."""
        case = Case("posts", POST_BYTES, documents, "none")
        self._steps.say(f"\nresident memory of the worker while it drains {documents:,} posts")
        source = await self._filled(case)
        self._steps.say(tables.MEMORY_HEADER)
        rows: dict[int, Any] = {}
        span = documents // _MEMORY_LINES

        def note(committed: int, worker: Child) -> None:
            self._steps.reach(committed)
            if committed >= span * (len(rows) + 1):
                resident = resident_of(worker.pid)
                rows[committed] = resident._asdict()
                self._steps.say(tables.memory_line(committed, resident))

        self._steps.begin("memory", documents)
        planned = case.plan()
        done = await drain(
            self._admin, self._place(source), WORKER, planned, self._broker_pid, note
        )
        await delete(self._admin, [source])
        self._steps.say(f"{done.documents_per_s:,.0f} documents/s, {done.check}")
        return {"resident_bytes": rows, "drain": dataclasses.asdict(done)}

    async def latency(self, rates: list[float], seconds: float) -> list[dict[str, Any]]:
        """Measure the latency of the worker with posts at several rates."""
        place = self._place("latency")

        def on_rate(rate: float) -> None:
            self._steps.begin(f"latency at {rate:,.0f} posts/s")

        found = await latencies(place, rates, seconds, POST_BYTES, on_rate)
        self._steps.say()
        for line in tables.latency_lines(found):
            self._steps.say(line)
        await delete(self._admin, [place.source, *place.topics.values()])
        return [one._asdict() for one in found]

    async def _filled(self, case: Case, encode: Callable[[bytes], bytes] = bytes) -> str:
        """Create and fill the source topic of a case; return its name."""
        self._places += 1
        source = f"source-{self._places}"
        place = self._place(source)
        await asyncio.to_thread(place.create_topics)
        self._steps.begin(f"{case}: writing", case.documents)
        values = map(encode, Documents(case.mean_bytes).values(case.plan()))
        await fill(self._bootstrap, source, values, case.compression, self._steps.reach)
        await delete(self._admin, list(place.topics.values()))
        return source

    async def _drain(
        self,
        case: Case,
        source: str,
        party: Party,
        what: str,
        profile: Profile | None = None,
        settings: dict[str, Any] | None = None,
    ) -> Drain:
        place = self._place(source, settings)
        self._steps.begin(f"{case}: {party.name}, {what}", case.documents)

        def on_committed(committed: int, child: Child) -> None:
            self._steps.reach(committed)
            if profile is not None:
                profile.record(str(case), child.pid)

        planned = case.plan()
        done = await drain(self._admin, place, party, planned, self._broker_pid, on_committed)
        if profile is not None:
            profile.finish()
        return done


async def run(broker: Broker, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the parts that the arguments name; return all figures."""
    figures: dict[str, Any] = {"machine": machine()}
    profile = Profile(arguments.profile) if arguments.profile else None
    async with administration(broker.bootstrap) as admin:
        with Steps() as steps:
            bench = Bench(broker, admin, folder, steps, profile)
            if arguments.memory:
                figures["memory"] = await bench.memory(arguments.documents or _MEMORY_DOCUMENTS)
                return figures
            drains: dict[str, list[Drain]] = {}
            for case in cases(arguments):
                drains[str(case)] = await bench.case(case, arguments.rounds)
            if drains:
                steps.say()
                for line in tables.stage_lines(drains):
                    steps.say(line)
            if "avro" in arguments.kinds:
                posts = Case("posts", POST_BYTES, documents_of(arguments)["posts"], "none")
                avro = await bench.avro(posts, arguments.rounds)
                figures["avro"] = [dataclasses.asdict(one) for one in avro]
            figures["drains"] = {
                name: [dataclasses.asdict(one) for one in some] for name, some in drains.items()
            }
            figures["medians"] = {name: tables.summary(some) for name, some in drains.items()}
            if drains and arguments.latency_seconds:
                largest = tables.speeds(next(iter(drains.values())))[WORKER.name]
                rates = [*_RATES, float(round(largest / 2))]
                figures["latency"] = await bench.latency(rates, arguments.latency_seconds)
    return figures


def cases(arguments: argparse.Namespace) -> list[Case]:
    """Return the cases that the arguments name."""
    documents = documents_of(arguments)
    return [
        Case(kind, _BYTES[kind], documents[kind], compression)
        for kind in arguments.kinds
        if kind in _BYTES
        for compression in arguments.compressions
    ]


def documents_of(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the number of documents of each kind."""
    documents = dict(_QUICK_DOCUMENTS if arguments.quick else _DOCUMENTS)
    return dict.fromkeys(documents, arguments.documents) if arguments.documents else documents


def machine() -> dict[str, Any]:
    """Describe the machine."""
    return {
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def parse() -> argparse.Namespace:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--documents",
        type=int,
        help=f"documents in each source (default: {_DOCUMENTS})",
    )
    size.add_argument("--quick", action="store_true", help="a small part, once")
    parser.add_argument("--rounds", type=int, help=f"turns of each party (default: {_ROUNDS})")
    parser.add_argument("--kinds", nargs="+", default=_KINDS, choices=_KINDS)
    parser.add_argument(
        "--compressions", nargs="+", default=["none", "zstd"], choices=["none", "zstd"]
    )
    parser.add_argument(
        "--latency-seconds", type=float, help="seconds at each rate; 0: no latencies"
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help=f"only drain {_MEMORY_DOCUMENTS:,} posts with the worker, and print its memory",
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FOLDER", help="write flame graphs of the worker (py-spy)"
    )
    parser.add_argument("--directory", type=Path, help="folder for indexes; default: temporary")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    arguments = parser.parse_args()
    if arguments.rounds is None:
        arguments.rounds = 1 if arguments.quick else _ROUNDS
    if arguments.latency_seconds is None:
        arguments.latency_seconds = _QUICK_LATENCY_S if arguments.quick else _LATENCY_S
    return arguments


def main() -> None:
    """Start a broker, run the benchmark, and stop everything."""
    arguments = parse()
    print(f"{EXACT:.0%} planted exact copies, {NEAR:.0%} planted near copies", flush=True)
    try:
        with (
            terminable(),
            own_broker(options=LONG_LIVED) as broker,
            tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as folder,
        ):
            figures = asyncio.run(run(broker, arguments, Path(folder)))
    except (BrokerError, ProcessEnded) as error:
        raise SystemExit(f"bench-pipeline: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("bench-pipeline: interrupted") from None
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
