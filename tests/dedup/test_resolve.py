"""Verdicts: against a brute-force model, in any batches, with any number of shards (L1, L3, L4)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.batches import IndexUpdate, Judgement
from streamdedup.dedup import clock as clocks
from streamdedup.dedup.resolve import COMPARED_BYTES, Rule, resolve
from streamdedup.engine.prepare import Preparer
from streamdedup.model import NO_TIMESTAMP, Document, Outcome, Position
from streamdedup.settings.sections import Settings
from streamdedup.sketch.codec import SignatureCodec
from tests.dedup.brute_force import HOUR, MILLISECOND, NOON, cut, judged, model, similar, told
from tests.support.builders import (
    TOPIC,
    examples,
    judgements,
    open_index,
    pass_through,
    sketched,
    small_settings,
)

TIMES = st.one_of(
    st.integers(-3, 3).map(lambda hours: NOON + hours * 3_600_000),
    st.integers(-3, 3).map(lambda hours: NOON + hours * 3_600_000),
    st.sampled_from([NO_TIMESTAMP, 0, 2**62, -(2**62), NOON + 1]),
)
"""Event times around noon, and late, wild and missing ones."""


def streams(texts: Sequence[str]) -> st.SearchStrategy[list[Document]]:
    """Generate streams that repeat a few texts, so that bucket sizes and windows matter."""
    names = st.sampled_from(["", "", "", "other"])
    document = st.builds(
        Document, text=st.sampled_from(texts), namespace=names, event_time_ms=TIMES
    )
    return st.lists(document, max_size=30)


@st.composite
def families(draw: st.DrawFn) -> list[str]:
    """Generate texts of all similarities: each begins with a part of the same text."""
    base = draw(st.text(alphabet="abcd", min_size=14, max_size=14))
    tails = st.text(alphabet="abcd", max_size=6)
    return [
        base[draw(st.integers(0, 6)) : draw(st.integers(7, 14))] + draw(tails) for _ in range(7)
    ] + [""]


DOCUMENTS = families().flatmap(streams)
SHAPES = st.fixed_dictionaries(
    {
        "bands": st.sampled_from([1, 1, 2, 8]),
        "bucket_size": st.sampled_from([1, 2, 2, 3, 64]),
        "window": st.sampled_from([None, MILLISECOND, HOUR, 2 * HOUR, 9 * HOUR]),
        "allowed_lateness": st.sampled_from([None, 0 * HOUR, HOUR, 4 * HOUR]),
        "allowed_ahead": st.sampled_from([None, 0 * HOUR, HOUR]),
        "window_documents": st.sampled_from([1, 3, 10_000, 10_000]),
        "threshold": st.sampled_from([0.4, 0.6, 0.8, 1.0]),
        "shards": st.sampled_from([1, 2, 3, 9]),
        "verify": st.sampled_from(["estimate", "exact"]),
    }
)


@given(
    documents=DOCUMENTS,
    cuts=st.sets(st.integers(1, 29), max_size=6),
    shape=SHAPES,
    every_text=st.booleans(),
    compared_bytes=st.sampled_from([1, 15, 40, COMPARED_BYTES]),
    recent=st.sampled_from([1, 3, 3, 16]),
)
@examples(600)
def test_any_batches_any_shards(
    documents: list[Document],
    cuts: set[int],
    shape: dict[str, Any],
    every_text: bool,
    compared_bytes: int,
    recent: int,
) -> None:
    """The verdicts and the best refuted candidates match the model for any batches (L1, L4).

    With exact verification of everything the model goes by the texts alone, within the budget. The
    clock looks at few times, so that it advances within the stream.
    """
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as changes:
        changes.setattr(clocks, "RECENT", recent)
        changes.setattr(clocks, "RANK", recent // 6)
        settings = small_settings(Path(directory), **shape)
        rule = replace(Rule.from_settings(settings), compared_bytes=compared_bytes)
        if every_text:
            rule = replace(rule, borderline=math.inf)
        with open_index(settings) as index:
            judged_batches = list(judgements(index, cut(documents, cuts, settings), rule))
        verdicts, refuted = model(documents, settings, rule.borderline, compared_bytes)
        found = [judgement.verdicts for judgement in judged_batches]
        assert told(verdict for batch in found for verdict in batch) == verdicts
        assert [
            similar(batch.refuted(row)) for batch in found for row in range(len(batch))
        ] == refuted


@given(
    texts=st.lists(st.text(alphabet="ab", max_size=9), min_size=1, max_size=12),
    steps=st.lists(st.integers(0, 11), max_size=40),
    cuts=st.sets(st.integers(1, 40)),
    verify=st.sampled_from(["estimate", "exact"]),
)
@examples(200)
def test_replays(
    texts: list[str], steps: list[int], cuts: set[int], verify: Literal["estimate", "exact"]
) -> None:
    """A repeated position gets its first verdict, in the same batch or later (L3)."""
    first_pass = list(range(len(texts)))
    offsets = first_pass + [step % len(texts) for step in steps]
    with tempfile.TemporaryDirectory() as directory:
        settings = small_settings(Path(directory), verify=verify)
        preparer = Preparer(settings)
        edges = [0, *sorted(at for at in cuts if at < len(offsets)), len(offsets)]
        batches = [
            preparer.prepare_documents(
                [Document(texts[offset]) for offset in offsets[start:stop]],
                [Position(TOPIC, 0, offset) for offset in offsets[start:stop]],
            )
            for start, stop in pairwise(edges)
        ]
        with open_index(settings) as index:
            verdicts = told(pass_through(index, batches, settings))
            stored = index.stats().documents
    assert verdicts == [verdicts[offset] for offset in offsets]
    blank = sum(not text for text in texts)
    kept = sum(outcome is Outcome.KEPT for outcome, _ in verdicts[: len(texts)])
    assert stored == kept - blank


def test_chain(tmp_path: Path) -> None:
    """Only kept documents match: not all versions of a drifting text are duplicates (L1)."""
    settings = small_settings(tmp_path, threshold=0.7)
    words = [f"word{number:02}" for number in range(40)]
    versions = [" ".join(words[start : start + 20]) for start in range(0, 20, 2)]
    verdicts = judged(versions, settings)
    outcomes = [verdict.outcome for verdict in verdicts]
    assert outcomes[:2] == [Outcome.KEPT, Outcome.DUPLICATE]
    assert outcomes.count(Outcome.KEPT) >= 2
    kept = {verdict.id for verdict in verdicts if verdict.kept}
    assert {match.id for verdict in verdicts for match in verdict.matches} <= kept


def test_original_is_best_then_earliest(tmp_path: Path) -> None:
    """The best match comes first; ties go to the earliest."""
    settings = small_settings(tmp_path, threshold=0.3)
    base = "the quick brown fox jumps over the lazy dog and runs"
    documents = [
        Document("completely different words here", "far"),
        Document(base, "exact"),
        Document(base, "copy"),
    ]
    verdicts = judged(documents, settings)
    assert verdicts[2].original is not None
    assert (verdicts[2].original.id, verdicts[2].original.jaccard_estimate) == ("exact", 1.0)


def test_namespaces_do_not_match(tmp_path: Path) -> None:
    """The same text is kept once in each namespace."""
    names = ["", "a", "b", "a", ""]
    documents = [Document("one and the same text", namespace=name) for name in names]
    outcomes = [verdict.kept for verdict in judged(documents, small_settings(tmp_path))]
    assert outcomes == [True, True, True, False, False]


CUTS = pytest.mark.parametrize("cuts", [set(), {1, 3}], ids=["whole", "cut"])


@CUTS
def test_a_place_of_an_erased_document(cuts: set[int], tmp_path: Path) -> None:
    """In a full bucket an erased document keeps its place, so the bucket has lost the first."""
    settings = small_settings(tmp_path, bands=1, bucket_size=2)
    texts = ["one and the same text", "others", "something else", "one and the same text!"]
    documents = [Document(text) for text in texts]
    first, *rest = cut(documents, (cuts & {3}) | {2}, settings)
    for batch in (first, *rest):
        batch.documents.sketches.band_keys[:, 0] = 1
    with open_index(settings) as index:
        verdicts = pass_through(index, [first], settings)
        index.apply(IndexUpdate.empty(2, (1,)), index.applied + 1)
        verdicts += pass_through(index, rest, settings)
    assert [verdict.kept for verdict in verdicts] == [True] * 4


@CUTS
def test_bits_of_keys_that_count(cuts: set[int], tmp_path: Path) -> None:
    """Documents share a bucket if the upper 40 bits of a key agree, in a batch and beyond it."""
    settings = small_settings(tmp_path)
    batches = cut([Document("one and the same text")] * 2, cuts, settings)
    batches[-1].documents.sketches.band_keys[-1] ^= np.uint64(2**24 - 1)
    with open_index(settings) as index:
        verdicts = pass_through(index, batches, settings)
    assert [verdict.kept for verdict in verdicts] == [True, False]


def test_a_collision_of_keys_is_no_match_between_namespaces(tmp_path: Path) -> None:
    """Documents of two namespaces do not match, even if their band keys are equal."""
    settings = small_settings(tmp_path)
    batch = sketched(["one and the same text"] * 2, settings)
    namespaces = np.array([1, 2], dtype=np.uint64)
    batch = replace(batch, documents=replace(batch.documents, namespaces=namespaces))
    with open_index(settings) as index:
        verdicts = pass_through(index, [batch], settings)
    assert [verdict.kept for verdict in verdicts] == [True, True]


@pytest.mark.parametrize(
    ("times", "age"),
    [((5_000, 7_500), 2.5), ((7_500, 5_000), -2.5), ((-1, 5_000), None), ((5_000, -1), None)],
    ids=["later", "earlier", "original-without-time", "duplicate-without-time"],
)
def test_age(times: tuple[int, int], age: float | None, tmp_path: Path) -> None:
    """A match has the age of the original, if both have an event time."""
    documents = [Document("the very same text", event_time_ms=time) for time in times]
    [match] = judged(documents, small_settings(tmp_path))[1].matches
    assert match.age_s == age


def test_matches_are_limited(tmp_path: Path) -> None:
    """A duplicate lists no more matches than the settings allow, the best ones."""
    settings = small_settings(tmp_path, threshold=1.0)
    settings = settings.model_copy(
        update={"output": settings.output.model_copy(update={"max_matches": 2})}
    )
    near = [f"common beginning of all these texts {end}" for end in ("one", "two", "three", "four")]
    with open_index(settings) as index:
        assert all(
            verdict.kept for verdict in pass_through(index, [sketched(near, settings)], settings)
        )
        loose = Rule(0.3, 64, 100, 2, SignatureCodec.of(settings.dedup.sketch_parameters()))
        batch = sketched([near[3] + "!"], settings, first=4)
        [verdict] = resolve(batch, index.probe(batch.documents), loose, 4, index.clock).verdicts
    estimates = [match.jaccard_estimate for match in verdict.matches]
    assert len(estimates) == 2
    assert estimates == sorted(estimates, reverse=True)
    assert verdict.matches[0].position.offset == 3


class TestReplay:
    """A position judged before (L3)."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        """Settings of one index for the whole story."""
        return small_settings(tmp_path, threshold=0.6)

    def again(self, settings: Settings, texts: list[str], offset: int, text: str) -> Judgement:
        """Judge a stream, then one position again."""
        with open_index(settings) as index:
            pass_through(index, [sketched(texts, settings)], settings)
            batch = sketched([text], settings, first=offset)
            rule = Rule(0.6, 64, 100, 5, SignatureCodec.of(settings.dedup.sketch_parameters()))
            return resolve(
                batch, index.probe(batch.documents), rule, index.next_number, index.clock
            )

    def test_kept(self, settings: Settings) -> None:
        """A replayed kept document is kept again, and not indexed twice."""
        judgement = self.again(settings, ["alpha beta gamma", "other words"], 0, "alpha beta gamma")
        assert [verdict.outcome for verdict in judgement.verdicts] == [Outcome.KEPT]
        assert len(judgement.update.documents) == 0

    def test_duplicate(self, settings: Settings) -> None:
        """A replayed duplicate repeats the same original."""
        texts = ["alpha beta gamma", "alpha beta gamma", "other words"]
        [verdict] = self.again(settings, texts, 1, "alpha beta gamma").verdicts
        assert verdict.original is not None
        assert verdict.original.position.offset == 0

    def test_later_offsets_do_not_count(self, settings: Settings) -> None:
        """A later document of the same partition does not make a replayed one a duplicate."""
        judgement = self.again(settings, ["", "alpha beta gamma"], 0, "alpha beta gamma")
        assert [verdict.outcome for verdict in judgement.verdicts] == [Outcome.KEPT]
        assert len(judgement.update.documents) == 0

    def test_twice_in_one_batch(self, settings: Settings) -> None:
        """A position delivered twice in one batch is not its own duplicate."""
        positions = [Position(TOPIC, 0, offset) for offset in (0, 1, 0)]
        documents = [Document("alpha beta gamma"), Document("others"), Document("alpha beta gamma")]
        batch = Preparer(settings).prepare_documents(documents, positions)
        with open_index(settings) as index:
            verdicts = pass_through(index, [batch], settings)
            assert index.stats().documents == 2
        assert [verdict.outcome for verdict in verdicts] == [Outcome.KEPT] * 3


def test_blank_documents(tmp_path: Path) -> None:
    """Documents without text are all kept, and none is indexed."""
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        verdicts = pass_through(index, [sketched(["", " \u200b", "\n"], settings)], settings)
        assert index.stats().documents == 0
    assert all(verdict.kept for verdict in verdicts)


def test_counts(tmp_path: Path) -> None:
    """Every candidate is counted, verified or refuted, with its estimate."""
    settings = small_settings(tmp_path, threshold=1.0, bucket_size=1)
    texts = ["abcabcabcd", "abcabcabce", "abcabcabcd"]
    with open_index(settings) as index:
        batch = sketched(texts, settings)
        rule = Rule(1.0, 1, 100, 5, SignatureCodec.of(settings.dedup.sketch_parameters()))
        counts = resolve(batch, index.probe(batch.documents), rule, 0, index.clock).counts
    assert counts.candidates == counts.verified + counts.refuted == counts.by_similarity.sum()
    assert counts.verified == 1
    assert counts.refuted >= 1
    assert counts.buckets_truncated >= 1


def test_a_replay_of_a_kept_document_is_not_compared(tmp_path: Path) -> None:
    """The candidates of a position are counted once, also those of the first of a batch."""
    settings = small_settings(tmp_path, threshold=1.0)
    rule, preparer = Rule.from_settings(settings), Preparer(settings)
    texts, offsets = ["abcabcabcd", "abcabcabce", "abcabcabce"], [0, 1, 1]
    first, second = (
        preparer.prepare_documents(
            [Document(texts[row]) for row in rows],
            [Position(TOPIC, 0, offsets[row]) for row in rows],
        )
        for rows in ([0], [1, 2])
    )
    with open_index(settings) as index:
        index.apply(resolve(first, index.probe(first.documents), rule, 0, index.clock).update, 1)
        judgement = resolve(second, index.probe(second.documents), rule, 1, index.clock)
    assert [verdict.outcome for verdict in judgement.verdicts] == [Outcome.KEPT] * 2
    assert judgement.counts.candidates == 1


def test_verdicts_are_in_the_order_of_the_records(tmp_path: Path) -> None:
    """Rejected records have their verdicts at their own places."""
    settings = small_settings(tmp_path)
    rejecting = settings.model_copy(
        update={"dedup": settings.dedup.model_copy(update={"empty_text": "reject"})}
    )
    verdicts = judged(["", "a story", " ", "a story"], rejecting)
    assert [verdict.outcome for verdict in verdicts] == [
        Outcome.REJECTED,
        Outcome.KEPT,
        Outcome.REJECTED,
        Outcome.DUPLICATE,
    ]
    assert [verdict.position.offset for verdict in verdicts] == [0, 1, 2, 3]
