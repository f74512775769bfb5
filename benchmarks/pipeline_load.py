"""*Async.* A producer paced by the clock, in a process of its own.

The id of each document is the time at which it was due, in nanoseconds since the epoch, and its
number. A producer that is late does not hide its delay: the time is that of the schedule.

    python -m benchmarks.pipeline_load BOOTSTRAP TOPIC --rate 500 --seconds 20 --bytes 300
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from aiokafka import AIOKafkaProducer

from benchmarks.pipeline_topics import PARTITIONS
from tests.testkit.documents import Documents, plan

_TICK_S = 0.002
_CONNECT_NS = 200_000_000
"""From the connection to the first document."""


async def produce(arguments: argparse.Namespace) -> None:
    """Send every document when it is due, together with those due at the same time."""
    count = round(arguments.rate * arguments.seconds)
    documents = Documents(arguments.bytes, arguments.stream)
    # Everything after the id is prepared.
    rests = [value.partition(b",")[2] for value in documents.values(plan(count))]
    producer = AIOKafkaProducer(
        bootstrap_servers=arguments.bootstrap, acks="all", compression_type=arguments.compression
    )
    await producer.start()
    try:
        start_ns = time.time_ns() + _CONNECT_NS
        step_ns = 1e9 / arguments.rate
        sent = 0
        while sent < count:
            now_ns = time.time_ns()
            due = min(count, int((now_ns - start_ns) / step_ns) + 1) if now_ns >= start_ns else 0
            values = [
                b'{"id":"%d-%d",%b' % (start_ns + int(number * step_ns), number, rest)
                for number, rest in enumerate(rests[sent:due], sent)
            ]
            await send(producer, arguments.topic, values, sent)
            sent = max(sent, due)
            next_ns = start_ns + int(sent * step_ns)
            await asyncio.sleep(max(_TICK_S, (next_ns - time.time_ns()) / 1e9))
        await producer.flush()
    finally:
        await producer.stop()


async def send(producer: Any, topic: str, values: list[bytes], first: int) -> None:
    """Send values to the partitions in turn, one batch for each partition."""
    for partition in range(PARTITIONS):
        own = values[(partition - first) % PARTITIONS :: PARTITIONS]
        batch = producer.create_batch()
        for value in own:
            if batch.append(timestamp=None, key=None, value=value) is None:
                await producer.send_batch(batch, topic, partition=partition)
                batch = producer.create_batch()
                batch.append(timestamp=None, key=None, value=value)
        if batch.record_count():
            await producer.send_batch(batch, topic, partition=partition)


def main() -> None:
    """Parse the arguments and produce."""
    parser = argparse.ArgumentParser(description="Sends documents at a fixed rate.")
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--rate", type=float, required=True, help="documents per second")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--bytes", type=int, required=True, help="mean size of a document")
    parser.add_argument("--stream", type=int, required=True, help="number of the stream of texts")
    parser.add_argument("--compression", help="default: none")
    asyncio.run(produce(parser.parse_args()))


if __name__ == "__main__":
    main()
