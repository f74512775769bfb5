"""*Blocking.* Real text for tests: the corpora beside the checkout, else the standard library's."""

from __future__ import annotations

import gzip
import json
from functools import cache
from typing import Any

from streamdedup.files.docstrings import docstrings
from tests.support.paths import ROOT

DATA = ROOT / "shared" / "data"


@cache
def _corpus(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def stream_of_documents(count: int) -> list[dict[str, Any]]:
    """Return at least ``count`` real documents with unique ids, in a stream's order.

    Without the corpora the standard library's documentation strings stand in, and where they are
    too few, each again with its last word gone, which makes near-duplicates far apart.
    """
    if DATA.is_dir():
        names = ("news_reuters", "forum_cypherpunks")
        documents = [
            {"id": f"{name}/{each['id']}", "text": each["text"]}
            for name in names
            for each in _corpus(name)
        ]
    else:
        documents = [{"id": name, "text": text} for name, text in docstrings()]
    again = 0
    while len(documents) < count:
        again += 1
        documents += [
            {"id": f"{each['id']}~{again}", "text": each["text"].rpartition(" ")[0] or "empty"}
            for each in documents[: count - len(documents)]
        ]
    return documents
