"""What judgements tell of the candidates of each document, for the live quality."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
import pytest

from streamdedup.batches import DocumentColumns, Met, SketchedBatch
from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.engine.prepare import Preparer
from streamdedup.model import Document, Position
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.texts import TextSimilarity
from tests.support.browser.samples import article, edited
from tests.support.builders import open_index

TOPIC = "documents"
NONE = 257


def texts(count: int) -> list[str]:
    """Return articles, most of which are edited or exact copies of one of the first five."""
    random = Random(4)
    originals = [article(random) for _ in range(5)]
    made = list(originals)
    while len(made) < count:
        original = random.choice(originals)
        made.append(edited(original, random, random.choice([0, 1, 3, 6])))
    return made


def prepared(settings: Settings, made: list[str], sizes: list[int]) -> list[SketchedBatch]:
    """Return the texts as batches of the given sizes."""
    preparer, batches, first = Preparer(settings), list[SketchedBatch](), 0
    for size in sizes:
        rows = range(first, first + size)
        positions = [Position(TOPIC, 0, row) for row in rows]
        batches.append(
            preparer.prepare_documents([Document(made[row], str(row)) for row in rows], positions)
        )
        first += size
    return batches


@pytest.mark.parametrize("verify", ["estimate", "exact"])
def test_nearest_candidates_and_shared_bands(
    tmp_path: Path, verify: Literal["estimate", "exact"]
) -> None:
    """Both are what a comparison of all signatures and all keys gives."""
    settings = load_settings(
        index={"directory": tmp_path / "index"},
        dedup={"bands": 6, "rows": 6, "verify": verify},
    )
    codec = SignatureCodec.of(settings.dedup.sketch_parameters())
    rule, kept = Rule.from_settings(settings), DocumentColumns.empty()
    matches = 0
    with open_index(settings) as index:
        for batch in prepared(settings, texts(60), [10, 1, 29, 20]):
            judgement = resolve(
                batch, index.probe(batch.documents), rule, index.next_number, index.clock
            )
            expected = expectation(batch, kept, judgement.update.documents, codec, rule)
            met = judgement.counts.met
            assert met.nearest.tolist() == [nearest for nearest, _, _ in expected.values()]
            assert met.texts.tolist() == [
                int(batch.documents.sketches.band_keys[row, -1]) for row in expected
            ]
            for found, (_, is_duplicate, shared) in zip(
                zip(met.is_duplicate, met.shared, strict=True), expected.values(), strict=True
            ):
                assert found[0] == is_duplicate
                if is_duplicate:
                    matches += 1
                    assert found[1].tolist() in shared
                else:
                    assert not found[1].any()
            assert judgement.counts.accepted.sum() == judgement.counts.verified
            index.apply(judgement.update, index.applied + 1)
            kept = DocumentColumns.concatenate([kept, judgement.update.documents])
    assert matches > 30


def expectation(
    batch: SketchedBatch,
    kept: DocumentColumns,
    fresh: DocumentColumns,
    codec: SignatureCodec,
    rule: Rule,
) -> dict[int, tuple[list[int], bool, list[list[bool]]]]:
    """Compare each document of a batch with all that were kept before it.

    Returns:
        By row, for documents with a candidate that counts: the two smallest numbers of unequal
        values, whether there is a match, and the bands that may be shared with the best one.
    """
    documents, found = batch.documents, {}
    values = codec.unpack(documents.sketches.signatures)
    texts = None if rule.shingling is None else TextSimilarity(rule.shingling)
    for row in range(len(documents)):
        earlier = [each for each in (kept, fresh) if len(each)]
        near: list[tuple[int, float, list[bool]]] = []
        for others in earlier:
            theirs = codec.unpack(others.sketches.signatures)
            for other in range(len(others)):
                if others.positions[other].offset >= documents.positions[row].offset:
                    continue
                shared = (
                    documents.sketches.band_keys[row] == others.sketches.band_keys[other]
                ).tolist()
                if any(shared):
                    unequal = int(np.count_nonzero(values[row] != theirs[other]))
                    similarity = float(codec.estimates()[unequal])
                    if texts and abs(similarity - rule.threshold) <= rule.borderline:
                        similarity = texts.jaccard(documents.texts[row], others.texts[other])
                    near.append((unequal, similarity, shared[:-1]))
        if texts is not None:
            near = [each for each in near if each[1] >= rule.threshold]
        if near:
            smallest = sorted(unequal for unequal, _, _ in near)
            most = max(similarity for _, similarity, _ in near)
            best = [shared for _, similarity, shared in near if similarity == most]
            found[row] = ([*smallest, NONE][:2], most >= rule.threshold, best)
    return found


def test_a_replay_is_not_counted_again(tmp_path: Path) -> None:
    """Documents that were judged before are not met a second time."""
    settings = load_settings(index={"directory": tmp_path / "index"})
    rule = Rule.from_settings(settings)
    [batch] = prepared(settings, texts(20), [20])
    with open_index(settings) as index:
        first = resolve(batch, index.probe(batch.documents), rule, 0, index.clock)
        index.apply(first.update, 1)
        again = resolve(batch, index.probe(batch.documents), rule, index.next_number, index.clock)
    assert len(first.counts.met.nearest) >= 10
    assert len(again.counts.met.nearest) == 0


def test_nothing_met() -> None:
    """Its arrays are empty."""
    nothing = Met.nothing()
    assert len(nothing.nearest) == len(nothing.shared) == len(nothing.texts) == 0
