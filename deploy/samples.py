"""*Async.* Produces sample documents with planted near-copies until it is stopped.

It is part of ``compose.yaml``, where it runs in the worker's image; ``make demo-spark`` has an
archive of the same documents. The texts combine random sentences of the standard library's
documentation. Some documents repeat an earlier one: exactly, in upper case, with an added line, or
with changed words. Their field ``planted`` names it. A few records are invalid, for the dead-letter
topic.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer

from streamdedup.files.docstrings import docstrings
from streamdedup.settings.load import load_settings

_PLANTED = 0.25
"""Share of the documents that repeat an earlier one."""
_BROKEN = 0.002
_REMEMBERED = 5000
"""Unplanted documents that a copy may repeat: the latest ones."""
_SENTENCES = (4, 12)
_SENTENCE = re.compile(r"[A-Z][^.!?]{40,300}[.!?]")
_FOOTERS = ("Read more on our pages.", "Share this with a friend.", "All rights reserved.")

Change = Callable[[str, random.Random], str]


def _change_words(text: str, chance: random.Random) -> str:
    """Replace a few words, or too many for a duplicate, by other words of the text."""
    words = text.split()
    for index in chance.sample(range(len(words)), chance.randint(1, max(1, len(words) // 12))):
        words[index] = chance.choice(words)
    return " ".join(words)


DUPLICATES: tuple[Change, ...] = (
    lambda text, _: text,
    lambda text, _: text.upper(),
    lambda text, chance: f"{text} {chance.choice(_FOOTERS)}",
)
"""Changes after which a text is a duplicate by the default settings."""


def documents(chance: random.Random, changes: Sequence[Change]) -> Iterator[dict[str, Any]]:
    """Yield documents without end."""
    sentences = sorted({sentence for _, text in docstrings() for sentence in _sentences(text)})
    known: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
    # The start time makes the ids of each run unique.
    started_at = int(time.time())
    for number in itertools.count():
        document: dict[str, Any] = {"id": f"sample-{started_at}-{number}"}
        if known and chance.random() < _PLANTED:
            original = chance.choice(known)
            document["text"] = chance.choice(changes)(original["text"], chance)
            document["planted"] = original["id"]
        else:
            document["text"] = " ".join(chance.sample(sentences, chance.randint(*_SENTENCES)))
            known.append(document)
        yield document


def _values(chance: random.Random) -> Iterator[bytes]:
    """Yield record values without end."""
    for document in documents(chance, (*DUPLICATES, _change_words)):
        if chance.random() < _BROKEN:
            yield b"this is not a document"
        else:
            yield json.dumps(document).encode()


def _sentences(text: str) -> list[str]:
    return _SENTENCE.findall(" ".join(text.split()))


async def _produce(rate: float, count: int | None) -> None:
    settings = load_settings()
    producer = AIOKafkaProducer(
        bootstrap_servers=list(settings.kafka.bootstrap_servers), linger_ms=20
    )
    await producer.start()
    try:
        started_s = time.monotonic()
        endless = _values(random.Random())  # noqa: S311 - samples, not secrets
        for number, value in enumerate(itertools.islice(endless, count)):
            await asyncio.sleep(max(0.0, started_s + number / rate - time.monotonic()))
            await producer.send(settings.topics.source, value)
    finally:
        await producer.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Sends sample documents to the source topic.")
    parser.add_argument("--rate", type=float, default=50.0, help="documents per second")
    parser.add_argument("--count", type=int, help="stop after this number of documents")
    return parser.parse_args()


if __name__ == "__main__":
    options = _arguments()
    try:
        asyncio.run(_produce(options.rate, options.count))
    except KeyboardInterrupt:
        sys.exit(130)
