"""*Async.* A transactional copy of a topic with aiokafka, as a careful user writes it.

Each transaction appends records to the output, unchanged, and commits the offsets that were read.
With two transactional ids, one writes while the coordinator ends the transaction of the other, and
offsets are sent after the records.

    python -m benchmarks.pipeline_copy BOOTSTRAP SOURCE OUTPUT GROUP --records 1000 --ids 1
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

_LINGER_MS = 200
"""How long a poll waits for the first record."""
_FILL_MS = 20
"""How long it waits for more."""
_BATCH_BYTES = 512 * 1024

Polled = dict[TopicPartition, list[ConsumerRecord]]


async def copy(arguments: argparse.Namespace) -> None:
    """Copy without end."""
    consumer = AIOKafkaConsumer(
        arguments.source,
        bootstrap_servers=arguments.bootstrap,
        group_id=arguments.group,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producers = [
        AIOKafkaProducer(
            bootstrap_servers=arguments.bootstrap,
            transactional_id=f"{arguments.group}-{number}",
            acks="all",
            compression_type="zstd",
            max_batch_size=_BATCH_BYTES,
        )
        for number in range(arguments.ids)
    ]
    await asyncio.gather(*(client.start() for client in (*producers, consumer)))
    try:
        for producer in itertools.cycle(producers):
            polled = await poll(consumer, arguments.records)
            async with producer.transaction():
                written = await write(producer, polled, arguments.output)
                offsets = {part: records[-1].offset + 1 for part, records in polled.items()}
                if len(producers) > 1:
                    # A broker that is sent both at once may refuse one, for a retry.
                    await asyncio.gather(*written)
                await producer.send_offsets_to_transaction(offsets, arguments.group)
                await asyncio.gather(*written)
    finally:
        await asyncio.gather(*(client.stop() for client in (*producers, consumer)))


async def poll(consumer: AIOKafkaConsumer, count: int) -> Polled:
    """Wait for records; return ``count`` of them, or fewer after a pause of the source."""
    polled: Polled = {}
    left = count
    while left:
        more = await consumer.getmany(
            timeout_ms=_FILL_MS if polled else _LINGER_MS, max_records=left
        )
        if not more and polled:
            break
        for partition, records in more.items():
            polled.setdefault(partition, []).extend(records)
            left -= len(records)
    return polled


async def write(
    producer: AIOKafkaProducer, polled: Polled, output: str
) -> list[asyncio.Future[Any]]:
    """Append the records to the same partitions of the output; return what to wait for."""
    return [
        await producer.send_batch(batch, output, partition=partition.partition)
        for partition, records in polled.items()
        for batch in batches(producer, records)
    ]


def batches(producer: AIOKafkaProducer, records: Sequence[ConsumerRecord]) -> Iterator[Any]:
    """Yield the records in as few batches as possible."""
    batch = producer.create_batch()
    for record in records:
        copied = {
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": list(record.headers),
        }
        if batch.append(**copied) is None:
            yield batch
            batch = producer.create_batch()
            batch.append(**copied)
    yield batch


def main() -> None:
    """Parse the arguments and copy until a signal ends the process."""
    parser = argparse.ArgumentParser(description="Copies a topic in transactions.")
    for name in ("bootstrap", "source", "output", "group"):
        parser.add_argument(name)
    parser.add_argument("--records", type=int, required=True, help="records per transaction")
    parser.add_argument("--ids", type=int, required=True, help="transactional ids, in turn")
    asyncio.run(copy(parser.parse_args()))


if __name__ == "__main__":
    main()
