"""*Blocking.* Real text for tests: the corpora in shared/data, else the docstrings of Python."""

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
