"""Whole streams of real text, against exact Jaccard similarities."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections import defaultdict
from functools import cache

from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.files.docstrings import docstrings
from streamdedup.model import Document, Verdict
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.normalize import PROFILES
from tests.support.corpora import DATA
from tests.support.paths import ROOT

MOST_DOCSTRINGS = 1500
Pairs = dict[tuple[str, str], float]


def news() -> tuple[list[Document], Pairs]:
    """Return the newswire stories, and all of their pairs with a similarity of 0.5 or more."""
    with gzip.open(DATA / "news_reuters.jsonl.gz", "rt", encoding="utf-8") as lines:
        stories = [json.loads(line) for line in lines]
    with gzip.open(DATA / "news_reuters.pairs.tsv.gz", "rt", encoding="utf-8") as lines:
        rows = csv.DictReader(lines, delimiter="\t")
        pairs = {(row["id_a"], row["id_b"]): float(row["jaccard"]) for row in rows}
    return [Document(story["text"], story["id"]) for story in stories], pairs


def library() -> tuple[list[Document], Pairs]:
    """Return documentation strings, and their pairs from 0.5 up, by brute force."""
    found = [Document(text, name) for name, text in docstrings() if len(text) > 200]
    documents = random.Random(1).sample(found, min(len(found), MOST_DOCSTRINGS))
    normalise = PROFILES["plain"]
    sets = [shingles(normalise(document.text)) for document in documents]
    holders: dict[str, list[int]] = defaultdict(list)
    pairs: Pairs = {}
    for later, mine in enumerate(sets):
        common: dict[int, int] = defaultdict(int)
        for shingle in mine:
            for earlier in holders[shingle]:
                common[earlier] += 1
            holders[shingle].append(later)
        for earlier, both in common.items():
            jaccard = both / (len(mine) + len(sets[earlier]) - both)
            if jaccard >= 0.5:
                pairs[documents[earlier].id, documents[later].id] = jaccard
    return documents, pairs


def shingles(text: str) -> set[str]:
    """Return the set of character 5-grams."""
    return {text[start : start + 5] for start in range(len(text) - 4)} if len(text) >= 5 else {text}


@cache
def corpus() -> tuple[list[Document], Pairs]:
    """Return the news if they are available, else the documentation strings."""
    return news() if DATA.is_dir() else library()


def judge(documents: list[Document], settings: Settings) -> list[Verdict]:
    """Judge a stream in batches."""
    with Deduplicator(settings) as deduplicator:
        return [
            verdict
            for start in range(0, len(documents), 1000)
            for verdict in deduplicator.process(documents[start : start + 1000])
        ]


def test_kept_and_dropped() -> None:
    """At threshold 0.8 no pair of 0.9 is kept, and each dropped document matches at 0.7."""
    documents, pairs = corpus()
    verdicts = judge(documents, load_settings(dedup={"threshold": 0.8}))
    kept = {verdict.id for verdict in verdicts if verdict.kept}
    missed = [pair for pair, jaccard in pairs.items() if jaccard >= 0.9 and kept.issuperset(pair)]
    assert missed == []
    duplicates = [verdict for verdict in verdicts if not verdict.kept]
    assert len(duplicates) > len(documents) / 200
    for verdict in duplicates:
        best = max(pairs.get((match.id, verdict.id), 0.0) for match in verdict.matches)
        assert best >= 0.7, verdict.id


def test_estimates_are_near() -> None:
    """The estimate of a match lies within five standard errors of the exact similarity."""
    documents, pairs = corpus()
    exact_of = {pair: jaccard for pair, jaccard in pairs.items() if jaccard < 1}
    settings = load_settings(dedup={"threshold": 0.8})
    codec = SignatureCodec.of(settings.dedup.sketch_parameters())
    compared = 0
    for verdict in judge(documents[:6000], settings):
        for match in verdict.matches:
            exact = exact_of.get((match.id, verdict.id))
            if exact is not None:
                compared += 1
                error = codec.standard_error(exact)
                assert abs(match.jaccard_estimate - exact) <= 5 * error
    assert compared >= 10


def test_path_of_the_corpora() -> None:
    """The corpora are expected in a folder of the checkout."""
    assert ROOT / "shared" / "data" == DATA
