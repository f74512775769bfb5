"""*Blocking.* ``make demo-kafka``: shows streamdedup with real topics, from start to end.

It starts a broker, creates the topics, and produces the standard library's documentation strings.
It runs ``streamdedup run`` on them, shows the output topics, and removes everything.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from deploy.broker.errors import BrokerError
from deploy.broker.obtain import own_broker
from deploy.processes import Child, ProcessEnded, worker
from streamdedup.files.docstrings import docstrings
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings

PARTITIONS = 3
SHOWN_RECORDS = 3
TIMEOUT_S = 120.0
BROKEN = (b"not JSON at all", b'{"id": "no-text"}', b"\xff\xfe")
"""Invalid records, for the dead-letter topic."""
SHOWN_METRICS = (
    "streamdedup_documents_total",
    "streamdedup_verified_pairs_total",
    "streamdedup_candidates_total",
    "streamdedup_transactions_total",
    "streamdedup_consumer_lag",
    "streamdedup_index_documents",
    "streamdedup_index_bytes",
)

console = Console(highlight=False)


def main() -> int:
    """Run the demo; return the exit code."""
    console.print("[bold]streamdedup through Kafka[/bold]: starting a broker on loopback ...")
    try:
        with own_broker() as broker, tempfile.TemporaryDirectory(prefix="streamdedup-") as folder:
            console.print(f"Kafka answers at {broker.bootstrap} ({broker.origin}).")
            _run_demo(_write_config(Path(folder), broker.bootstrap))
    except (BrokerError, ProcessEnded, OSError) as error:
        console.print(f"demo-kafka: {error}", style="red")
        return 1
    console.print("\nThe broker, its topics and the index were removed. To continue, run")
    console.print("[bold]make broker[/bold] and start from config/streamdedup.yaml.")
    return 0


def _write_config(folder: Path, bootstrap: str) -> Path:
    path = folder / "streamdedup.yaml"
    content = {
        "kafka": {"bootstrap_servers": bootstrap},
        "index": {"directory": str(folder / "index")},
        "status": {"port": 0},
        "log": {"format": "json"},
    }
    path.write_text(yaml.safe_dump(content))
    return path


def _run_demo(config: Path) -> None:
    settings = load_settings(config)
    subprocess.run(
        [sys.executable, "-m", "streamdedup", "topics", "create", "--config", str(config)],
        check=True,
    )
    produced = asyncio.run(_produce(settings))
    console.print(f"Produced {produced} records to [bold]{settings.topics.source}[/bold].")
    with Child(worker(config), config.with_suffix(".log")) as child:
        child.wait_for(lambda: child.address() is not None, TIMEOUT_S, "the start of the worker")
        _watch(child, produced)
        page = child.get("/metrics")[1]
        child.terminate()
        console.print(f"SIGTERM: the worker drained and ended with {child.wait(TIMEOUT_S)}.")
    _show(settings, page)


async def _produce(settings: Settings) -> int:
    producer = AIOKafkaProducer(
        bootstrap_servers=list(settings.kafka.bootstrap_servers), linger_ms=20
    )
    values = [json.dumps({"id": name, "text": text}).encode() for name, text in docstrings()]
    await producer.start()
    try:
        for number, value in enumerate([*values, *BROKEN]):
            await producer.send(settings.topics.source, value, partition=number % PARTITIONS)
    finally:
        await producer.stop()
    return len(values) + len(BROKEN)


def _watch(child: Child, total: int) -> None:
    """Show a progress bar until every record has its verdict."""
    columns = (
        SpinnerColumn(),
        TextColumn("judging"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    started: float | None = None
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("judging", total=total, rate="")

        def done() -> bool:
            nonlocal started
            judged = _judged(child)
            if judged and started is None:
                started = time.monotonic() - 0.1
            rate = f"{judged / (time.monotonic() - started):,.0f} documents/s" if started else ""
            progress.update(task, completed=judged, rate=rate)
            return judged >= total

        child.wait_for(done, TIMEOUT_S, "judging the records")


def _judged(child: Child) -> int:
    page = child.get("/metrics")[1]
    values = re.findall(r"^streamdedup_documents_total\{.*\} (\S+)$", page, re.MULTILINE)
    return int(sum(float(value) for value in values))


def _show(settings: Settings, page: str) -> None:
    topics = settings.topics
    names = (topics.clean, topics.duplicates, topics.dead_letter)
    records = asyncio.run(_read(settings, names))
    table = Table(title="Output topics", title_justify="left")
    table.add_column("topic")
    table.add_column("records", justify="right")
    for name in names:
        table.add_row(name, f"{len(records[name]):,}")
    table.add_row("all", f"{sum(map(len, records.values())):,}", style="bold")
    console.print(table)
    for name in names:
        console.print(f"\n[bold]{name}[/bold], the first {min(SHOWN_RECORDS, len(records[name]))}:")
        for record in records[name][:SHOWN_RECORDS]:
            console.print(f"  {_line(record)}", markup=False, soft_wrap=True)
    console.print("\n[bold]/metrics[/bold] (excerpt):")
    for line in page.splitlines():
        if line.startswith(SHOWN_METRICS):
            console.print(f"  {line}", markup=False)


def _line(record: ConsumerRecord) -> str:
    value = (record.value or b"").decode("utf-8", "backslashreplace")
    headers = {name: (content or b"").decode() for name, content in record.headers}
    short = value if len(value) <= 240 else value[:240] + " ..."
    return f"{short}\n    headers: {headers}" if headers else short


async def _read(settings: Settings, topics: Iterable[str]) -> dict[str, list[Any]]:
    consumer = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=list(settings.kafka.bootstrap_servers),
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    records: dict[str, list[Any]] = {topic: [] for topic in topics}
    try:
        partitions = [
            TopicPartition(topic, number) for topic in records for number in range(PARTITIONS)
        ]
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(part) < ends[part] for part in partitions]):
            for partition, batch in (await consumer.getmany(timeout_ms=100)).items():
                records[partition.topic].extend(batch)
    finally:
        await consumer.stop()
    return records


if __name__ == "__main__":
    sys.exit(main())
