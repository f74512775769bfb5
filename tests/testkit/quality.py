"""Streams with known pairs, judged with the live figures beside the exact truth."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamdedup.batches import DUPLICATE, KEPT
from streamdedup.columns import RecordColumns
from streamdedup.dedup.quality import Figures, Quality
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.engine.prepare import Preparer
from streamdedup.model import Position, Record
from streamdedup.observe.audit import DOCUMENTS, VALUES_BYTES, is_sampled
from streamdedup.observe.quality import Shadow
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from streamdedup.sketch.normalize import PROFILES
from tests.testkit.texts import Writer, shingles

CORPORA = ("news_reuters", "forum_cypherpunks", "tweets_ira")
GENERATED = "generated"
TOPIC = "documents"
FLOOR = 0.5
BATCH = 1000
_GENERATED = 2000
"""Documents of the generated corpus."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents in order, and the pairs with a similarity of ``FLOOR`` or more.

    Attributes:
        texts: the texts; a document's number is its place.
        earlier: for each document the similarity of the earlier ones, by number.
    """

    texts: list[str]
    earlier: Mapping[int, Mapping[int, float]]


@dataclass(slots=True)
class Truth:
    """What is true of the verdicts on a corpus.

    Attributes:
        repeats: documents with an earlier kept one at or above the threshold.
        right: those of them that are duplicates.
        dropped: duplicates.
        pairs: pairs of a document and an earlier kept one at or above the threshold.
        missed: sampled documents that repeat one of the recent kept ones, and are kept.
        found: sampled documents that repeat one of the recent kept ones, and are duplicates.
    """

    repeats: int = 0
    right: int = 0
    dropped: int = 0
    pairs: int = 0
    missed: int = 0
    found: int = 0

    @property
    def recall(self) -> float:
        """The share of the repeats that is found."""
        return self.right / self.repeats

    @property
    def precision(self) -> float:
        """The share of the duplicates that is right."""
        return self.right / self.dropped


@dataclass(frozen=True, slots=True)
class Run:
    """One corpus with one seed: the truth, the estimates, and the results of the shadow sample."""

    truth: Truth
    figures: Figures
    shadow: Mapping[str, int] = field(default_factory=dict)


def load(name: str, folder: Path) -> Corpus:
    """Return a corpus of a folder, or the generated one."""
    if name == GENERATED:
        return generate()
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        documents = [json.loads(line) for line in lines]
    number_of = {document["id"]: number for number, document in enumerate(documents)}
    earlier: dict[int, dict[int, float]] = defaultdict(dict)
    with gzip.open(folder / f"{name}.pairs.tsv.gz", "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            earlier[number_of[row["id_b"]]][number_of[row["id_a"]]] = float(row["jaccard"])
    return Corpus([document["text"] for document in documents], earlier)


def generate(seed: int = 1) -> Corpus:
    """Return random texts, half of which repeat one of the last 500 with up to 9 words replaced."""
    texts = Writer(seed).stream(_GENERATED, (60, 60), 0.5, range(10), recent=500)
    return Corpus(texts, pairs_of(texts))


def pairs_of(texts: Sequence[str]) -> Mapping[int, Mapping[int, float]]:
    """Return the similarities of all pairs from ``FLOOR`` up, by counting common 5-grams."""
    normalise = PROFILES["plain"]
    sets = [shingles(text) for text in map(normalise, texts)]
    holders: dict[str, list[int]] = defaultdict(list)
    earlier: dict[int, dict[int, float]] = defaultdict(dict)
    for later, mine in enumerate(sets):
        common: dict[int, int] = defaultdict(int)
        for shingle in mine:
            for one in holders[shingle]:
                common[one] += 1
            holders[shingle].append(later)
        for one, both in common.items():
            jaccard = both / (len(mine) + len(sets[one]) - both)
            if jaccard >= FLOOR:
                earlier[later][one] = jaccard
    return earlier


def run(corpus: Corpus, settings: Settings) -> Run:
    """Judge a corpus, and compare the live figures with the truth."""
    quality, records = Quality(settings.dedup), _records(corpus)
    # Without a cost, no sample is skipped.
    shadow = Shadow(settings, processor_clock=lambda: 0.0)
    outcomes = list[int]()
    preparer = Preparer(settings)
    with Deduplicator(settings) as deduplicator:
        for start in range(0, len(records), BATCH):
            batch = RecordColumns.of(records[start : start + BATCH])
            judgement = deduplicator.judge(preparer.prepare_records(batch))
            deduplicator.apply(judgement)
            quality.add(judgement.counts, len(batch))
            shadow.add(batch, judgement.verdicts)
            finish(shadow)
            outcomes += judgement.verdicts.outcomes.tolist()
    shadow.close()
    return Run(_truth(corpus, outcomes, settings), quality.figures(), dict(shadow.results))


def finish(shadow: Shadow) -> None:
    """Wait for the audit that runs, if there is one; its error is raised."""
    if shadow.running is not None:
        shadow.running.result()


def settings_of(threshold: float, seed: int, one_in: int = 8, **dedup: Any) -> Settings:
    """Return settings that sample one document in so many."""
    return load_settings(
        dedup={"threshold": threshold, "seed": seed, **dedup}, quality={"shadow_sample": one_in}
    )


def _records(corpus: Corpus) -> list[Record]:
    return [
        Record(Position(TOPIC, 0, number), json.dumps({"text": text}).encode())
        for number, text in enumerate(corpus.texts)
    ]


def _truth(corpus: Corpus, outcomes: Sequence[int], settings: Settings) -> Truth:
    threshold, truth = settings.dedup.threshold, Truth()
    positions = RecordColumns.of(_records(corpus)).positions
    sampled = is_sampled(positions, settings.quality.shadow_sample)
    recent = _recent(corpus, outcomes)
    for number, outcome in enumerate(outcomes):
        similar = [
            other
            for other, jaccard in corpus.earlier.get(number, {}).items()
            if jaccard >= threshold and outcomes[other] == KEPT
        ]
        truth.pairs += len(similar)
        truth.repeats += bool(similar)
        truth.dropped += outcome == DUPLICATE
        truth.right += bool(similar) and outcome == DUPLICATE
        if sampled[number] and any(other >= recent[number] for other in similar):
            truth.missed += outcome == KEPT
            truth.found += outcome == DUPLICATE
    return truth


def _recent(corpus: Corpus, outcomes: Sequence[int]) -> list[int]:
    """Return for each document the first one that the shadow sample compares it with."""
    sizes = [len(json.dumps({"text": text}).encode()) for text in corpus.texts]
    first, batches = list[int](), deque[tuple[int, int, int]]()
    for start in range(0, len(outcomes), BATCH):
        stop = min(start + BATCH, len(outcomes))
        kept = np.array([n for n in range(start, stop) if outcomes[n] == KEPT])[-DOCUMENTS:]
        behind = np.cumsum([sizes[n] for n in kept[::-1].tolist()])[::-1]
        kept = kept[behind <= VALUES_BYTES]
        if len(kept):
            batches.append((int(kept[0]), len(kept), sum(sizes[n] for n in kept.tolist())))
        first += [batches[0][0] if batches else start] * (stop - start)
        while batches and (
            sum(size for _, _, size in batches) > VALUES_BYTES
            or sum(count for _, count, _ in batches) - batches[0][1] >= DOCUMENTS
        ):
            batches.popleft()
    return first
