"""*Blocking.* Reads the committed outputs of a stage as they appear."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from tests.support.outcomes import POSITION_IN
from tests.support.stage import Stage


class Checker(threading.Thread):
    """Reads the committed outputs as they appear, and counts each position."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(name="checker", daemon=True)
        self._stage = stage
        self.stopping = threading.Event()
        self.seen: dict[tuple[int, int], str] = {}
        self.twice: list[str] = []
        self.latencies_s: list[float] = []

    def run(self) -> None:
        """Read until told to stop."""
        asyncio.run(self._read())

    async def _read(self) -> None:
        names = {self._stage.topics[role]: role for role in POSITION_IN}
        consumer = AIOKafkaConsumer(
            *names,
            bootstrap_servers=self._stage.bootstrap,
            group_id=f"{self._stage.name}-checker",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            while not self.stopping.is_set():
                with suppress(KafkaError):
                    batches = await consumer.getmany(timeout_ms=500)
                    for partition, records in batches.items():
                        for record in records:
                            self._count(names[partition.topic], record)
        finally:
            with suppress(TimeoutError):
                await asyncio.wait_for(consumer.stop(), 10)

    def _count(self, role: str, record: Any) -> None:
        place = POSITION_IN[role](record)
        # The group's offsets are not stored: after a lost session it reads from the beginning.
        output = f"{role} {record.partition}:{record.offset}"
        before = self.seen.get(place)
        if before is None:
            self.seen[place] = output
            if role == "clean":
                self.latencies_s.append(time.time() - record.timestamp / 1000)
        elif before != output:
            self.twice.append(f"{place}: {before} and {output}")
