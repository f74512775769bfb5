"""Exact verification on whole corpora, against exact similarities."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Mapping

import pytest

from streamdedup.model import Document
from streamdedup.settings.load import load_settings
from tests.accuracy.test_news import Pairs, judge, library
from tests.support.corpora import DATA

CORPORA = ("news_reuters", "forum_cypherpunks", "tweets_ira")
THRESHOLD = 0.8
LIBRARY = "the standard library"


def corpus(name: str) -> tuple[list[Document], Pairs]:
    """Return documents, and all of their pairs with a similarity of 0.5 or more."""
    if name == LIBRARY:
        return library()
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        documents = [json.loads(line) for line in lines]
    with gzip.open(DATA / f"{name}.pairs.tsv.gz", "rt", encoding="utf-8") as lines:
        rows = csv.DictReader(lines, delimiter="\t")
        pairs = {(row["id_a"], row["id_b"]): float(row["jaccard"]) for row in rows}
    return [Document(each["text"], each["id"]) for each in documents], pairs


def earlier_near(pairs: Pairs) -> Mapping[str, list[str]]:
    """Return for each document the earlier documents at or above the threshold."""
    near: dict[str, list[str]] = defaultdict(list)
    for (earlier, later), jaccard in pairs.items():
        if jaccard >= THRESHOLD:
            near[later].append(earlier)
    return near


@pytest.mark.parametrize("name", CORPORA if DATA.is_dir() else [LIBRARY])
def test_recall_and_precision(name: str) -> None:
    """Recall is at least 99 %, precision at least 99.9 %."""
    documents, pairs = corpus(name)
    near = earlier_near(pairs)
    settings = load_settings(dedup={"threshold": THRESHOLD, "verify": "exact"})
    verdicts = judge(documents, settings)
    kept = {verdict.id for verdict in verdicts if verdict.kept}
    dropped = {verdict.id for verdict in verdicts if not verdict.kept}
    repeats = {each.id for each in documents if not kept.isdisjoint(near[each.id])}
    right = len(repeats & dropped)
    assert right >= 0.99 * len(repeats)
    assert right >= 0.999 * len(dropped)
    assert len(dropped) > len(documents) / 200
    compared = 0
    for verdict in verdicts:
        for match in verdict.matches:
            if match.jaccard is not None:
                compared += 1
                assert match.jaccard == pytest.approx(pairs[match.id, verdict.id], abs=1e-6)
    assert compared > 0
