"""Mode split against the single worker, and the judge alone, through a real broker.

Part 1: both drain the same prefilled topic in turn. The cost is the processor time of all their
processes per document, from the first to the last committed output; 10 % of the documents are exact
copies and 5 % near copies, and each source record must be in exactly one output topic, once.

Part 2: the judge alone reads prepared sketches, of which 10 % repeat an earlier one.

Part 3: how long records wait when a standby takes over, and when edges come and go.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient

from benchmarks import pipeline_tables as tables
from benchmarks.measured import java_below, terminable
from benchmarks.pipeline_drain import Drain, drain
from benchmarks.pipeline_parties import SPLIT, WORKER, Party, Place
from benchmarks.pipeline_topics import PARTITIONS, administration, delete, fill
from benchmarks.progress import Steps
from benchmarks.scale_judge import judge_alone
from benchmarks.scale_moves import edges_come_and_go, takeovers
from deploy.broker.broker import Broker
from deploy.broker.errors import BrokerError
from deploy.broker.obtain import own_broker
from deploy.broker.process import LONG_LIVED
from deploy.processes import Child, ProcessEnded
from tests.testkit.documents import ARTICLE_BYTES, POST_BYTES, Documents, plan

_BYTES = {"posts": POST_BYTES, "articles": ARTICLE_BYTES}
_DOCUMENTS = {"posts": 300_000, "articles": 90_000}
_QUICK_DOCUMENTS = {"posts": 60_000, "articles": 30_000}
_ROUNDS = 3
_PARTS = ["judge", "moves"]
_INDEXED, _QUICK_INDEXED = 300_000, 20_000
_RATE = 400
_SKETCHES, _QUICK_SKETCHES = 2_000_000, 200_000


class Bench:
    """Runs the parts on one broker.

    Args:
        broker: a broker that runs.
        admin: a client that is connected to it.
        folder: folder for configurations, logs and indexes.
        steps: shows the progress.
    """

    def __init__(
        self, broker: Broker, admin: AIOKafkaAdminClient, folder: Path, steps: Steps
    ) -> None:
        self._bootstrap = broker.bootstrap
        self._broker_pid = java_below(os.getpid())
        self._admin = admin
        self._folder = folder
        self._steps = steps
        self._places = 0

    def place(self, source: str, mode: str, settings: dict[str, Any] | None = None) -> Place:
        """Return a place for one run."""
        self._places += 1
        name = f"run-{self._places}"
        content = {"mode": mode} | (settings or {})
        return Place(self._bootstrap, source, name, self._folder, content)

    async def compare(self, kind: str, documents: int, rounds: int) -> None:
        """Let both modes drain a topic in turn; print what each costs, and the ratio."""
        say = self._steps.say
        source = await self._filled(kind, documents)
        say(f"\n{documents:,} {kind} of {_BYTES[kind]:,} bytes, {rounds} rounds")
        say(tables.DRAIN_HEADER)
        await self._drain(kind, documents, source, WORKER)
        drains: dict[str, list[Drain]] = {WORKER.name: [], SPLIT.name: []}
        for number in range(rounds):
            for party in (WORKER, SPLIT) if number % 2 else (SPLIT, WORKER):
                done = await self._drain(kind, documents, source, party)
                drains[party.name].append(done)
                say(tables.drain_line(done))
        await delete(self._admin, [source])
        costs = {name: median(one.all_us for one in some) for name, some in drains.items()}
        for name, cost in costs.items():
            speed = median(one.documents_per_s for one in drains[name])
            say(f"{name}: {cost:.1f} us of processor time a document, {speed:,.0f} documents/s")
        say(f"cost of {SPLIT.name} / {WORKER.name}: {costs[SPLIT.name] / costs[WORKER.name]:.2f}")
        say(str(drains[SPLIT.name][-1].check))

    async def _filled(self, kind: str, documents: int) -> str:
        self._places += 1
        source = f"source-{self._places}"
        place = self.place(source, "single")
        await asyncio.to_thread(place.create_topics)
        self._steps.begin(f"writing {kind}", documents)
        values = Documents(_BYTES[kind]).values(plan(documents, lanes=PARTITIONS))
        await fill(self._bootstrap, source, values, "none", self._steps.reach)
        await delete(self._admin, list(place.topics.values()))
        return source

    async def _drain(self, kind: str, documents: int, source: str, party: Party) -> Drain:
        self._steps.begin(f"{kind}: {party.name}", documents)

        def on_committed(committed: int, _: Child) -> None:
            self._steps.reach(committed)

        planned = plan(documents, lanes=PARTITIONS)
        place = self.place(source, party.mode)
        return await drain(self._admin, place, party, planned, self._broker_pid, on_committed)


async def run(broker: Broker, arguments: argparse.Namespace, folder: Path) -> None:
    """Run the parts that the arguments name."""
    documents = _QUICK_DOCUMENTS if arguments.quick else _DOCUMENTS
    rounds = arguments.rounds or (1 if arguments.quick else _ROUNDS)
    sketches = arguments.sketches or (_QUICK_SKETCHES if arguments.quick else _SKETCHES)
    async with administration(broker.bootstrap) as admin:
        with Steps() as steps:
            bench = Bench(broker, admin, folder, steps)
            for kind in arguments.kinds:
                await bench.compare(kind, documents[kind], rounds)
            if "judge" in arguments.parts:
                await judge_alone(admin, bench.place("documents", "split"), sketches, steps)
            if "moves" in arguments.parts:
                await edges_come_and_go(admin, bench.place("moves", "split"), _RATE, steps)
                indexed = _QUICK_INDEXED if arguments.quick else _INDEXED
                standby = bench.place("takeovers", "single", {"standby": {"enabled": True}})
                await takeovers(admin, standby, indexed, rounds, steps)


def parse() -> argparse.Namespace:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small part, once")
    parser.add_argument("--rounds", type=int, help=f"turns of each mode (default: {_ROUNDS})")
    parser.add_argument("--kinds", nargs="*", default=list(_BYTES), choices=list(_BYTES))
    parser.add_argument("--parts", nargs="*", default=_PARTS, choices=_PARTS)
    parser.add_argument("--sketches", type=int, help=f"of part 2 (default: {_SKETCHES:,})")
    return parser.parse_args()


def main() -> None:
    """Start a broker, run the benchmark, and stop everything."""
    arguments = parse()
    try:
        with (
            terminable(),
            own_broker(options=LONG_LIVED) as broker,
            tempfile.TemporaryDirectory(prefix="bench-") as folder,
        ):
            asyncio.run(run(broker, arguments, Path(folder)))
    except (BrokerError, ProcessEnded) as error:
        raise SystemExit(f"bench-scale: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("bench-scale: interrupted") from None


if __name__ == "__main__":
    main()
