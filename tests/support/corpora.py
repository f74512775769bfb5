"""*Blocking.* Documents for tests: numbered ones, and real text.

Real text is that of the corpora in shared/data, else of the docstrings of Python.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from typing import Any

from streamdedup.files.docstrings import docstrings
from tests.support.paths import ROOT

DATA = ROOT / "shared" / "data"

_RECENT = 300
"""Documents of which copies may follow."""


@cache
def _corpus(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def stream_of_documents(count: int) -> list[dict[str, Any]]:
    """Return at least ``count`` real documents with unique ids, in the order of a stream.

    Without the corpora these are the docstrings of the standard library. If there are too few, they
    are repeated without their last word, which makes near-duplicates that are far apart.
    """
    if DATA.is_dir():
        names = ("news_reuters", "forum_cypherpunks")
        documents = [
            {"id": f"{name}/{document['id']}", "text": document["text"]}
            for name in names
            for document in _corpus(name)
        ]
    else:
        documents = [{"id": name, "text": text} for name, text in docstrings()]
    copy = 0
    while len(documents) < count:
        copy += 1
        documents += [
            {"id": f"{one['id']}~{copy}", "text": one["text"].rpartition(" ")[0] or "empty"}
            for one in documents[: count - len(documents)]
        ]
    return documents


class RealDocuments:
    """Endless real documents, and copies of recent ones.

    Args:
        prefix: of the ids.
    """

    def __init__(self, prefix: str = "document") -> None:
        self._prefix = prefix
        self._texts = [document["text"] for document in stream_of_documents(20_000)]
        self._recent: list[dict[str, Any]] = []
        self._made = 0

    def block(self, size: int, *, copies_only: bool = False) -> list[dict[str, Any]]:
        """Return the next documents; every fifth repeats a text, or all do."""
        block = [self._next(copies_only or self._made % 5 == 4) for _ in range(size)]
        self._recent = [*self._recent, *block][-_RECENT:]
        return block

    def _next(self, repeats: bool) -> dict[str, Any]:
        self._made += 1
        if repeats and self._recent:
            text = self._recent[self._made % len(self._recent)]["text"]
        else:
            # In each round another text follows, so that the documents differ from those before.
            count, first = len(self._texts), self._texts[self._made % len(self._texts)]
            second = self._texts[(self._made + 7 * (self._made // count)) % count]
            text = f"{self._made} {first[:300]} {second[-300:]}"
        return {"id": f"{self._prefix}-{self._made}", "text": text}


def documents(start: int, stop: int) -> list[dict[str, str]]:
    """Return unrelated documents, of which every tenth repeats the one before it.

    Args:
        start: number of the first document.
        stop: number after the last one.
    """
    return [
        {"id": str(number), "text": hashlib.sha256(b"%d" % original).hexdigest()}
        for number in range(start, stop)
        for original in [number - 1 if number % 10 == 9 else number]
    ]
