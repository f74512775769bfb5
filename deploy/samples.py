"""*Async.* Sample documents for a topic, with near-copies planted among them, until it is stopped.

Part of ``compose.yaml``, where it runs in the worker's image. The texts are sentences of the
standard library's documentation, put together anew each time. Some documents repeat an earlier one
(exactly, in other letters, with words changed or a line added), and name it in the field
``planted``; a few records are broken, for the dead-letter topic.
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
from collections.abc import Callable, Iterator
from typing import Any

from aiokafka import AIOKafkaProducer

from streamdedup.files.docstrings import docstrings
from streamdedup.settings.load import load_settings

_PLANTED = 0.25
"""Share of the documents that repeat an earlier one."""
_BROKEN = 0.002
_REMEMBERED = 5000
"""How many documents back a copy reaches."""
_SENTENCES = (4, 12)
_SENTENCE = re.compile(r"[A-Z][^.!?]{40,300}[.!?]")
_FOOTERS = ("Read more on our pages.", "Share this with a friend.", "All rights reserved.")

Change = Callable[[str, random.Random], str]


def _change_words(text: str, chance: random.Random) -> str:
    """Replace words by others of the same text: few, or so many that it is no copy any more."""
    words = text.split()
    for at in chance.sample(range(len(words)), chance.randint(1, max(1, len(words) // 12))):
        words[at] = chance.choice(words)
    return " ".join(words)


_CHANGES: tuple[Change, ...] = (
    lambda text, _: text,
    lambda text, _: text.upper(),
    lambda text, chance: f"{text} {chance.choice(_FOOTERS)}",
    _change_words,
)


def values(chance: random.Random) -> Iterator[bytes]:
    """Yield record values without end."""
    sentences = sorted({found for _, text in docstrings() for found in _sentences(text)})
    known: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
    # The start is part of the id: a second run makes other documents.
    begun = int(time.time())
    for number in itertools.count():
        if chance.random() < _BROKEN:
            yield b"this is no document"
            continue
        document: dict[str, Any] = {"id": f"sample-{begun}-{number}"}
        if known and chance.random() < _PLANTED:
            original = chance.choice(known)
            document["text"] = chance.choice(_CHANGES)(original["text"], chance)
            document["planted"] = original["id"]
        else:
            document["text"] = " ".join(chance.sample(sentences, chance.randint(*_SENTENCES)))
            known.append(document)
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
        begun = time.monotonic()
        # Other documents in each run.
        endless = values(random.Random())  # noqa: S311 - samples, not secrets
        for number, value in enumerate(itertools.islice(endless, count)):
            await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
            await producer.send(settings.topics.source, value)
    finally:
        await producer.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Sends sample documents to the source topic.")
    parser.add_argument("--rate", type=float, default=50.0, help="documents per second")
    parser.add_argument("--count", type=int, help="stop after so many")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    try:
        asyncio.run(_produce(given.rate, given.count))
    except KeyboardInterrupt:
        sys.exit(130)
