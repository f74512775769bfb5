"""Verdicts: against a brute-force model, in any batches, over any number of shards (L1, L3, L4)."""

from __future__ import annotations

import datetime as dt
import math
import random
import string
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.dedup import clock as clocks
from streamdedup.dedup.resolve import BORDERLINE, Rule, resolve
from streamdedup.engine.prepare import Preparer
from streamdedup.model import (
    NO_TIMESTAMP,
    Document,
    Judgement,
    Outcome,
    Position,
    SketchedBatch,
    Verdict,
)
from streamdedup.settings.sections import Settings
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.texts import NOT_STORED
from tests.dedup.test_clock import as_seen, clock_after, effective
from tests.support.builders import (
    TOPIC,
    examples,
    open_index,
    pass_through,
    sketched,
    small_settings,
)

MILLISECOND = dt.timedelta(milliseconds=1)
HOUR = dt.timedelta(hours=1)
NOON = 1_700_000_000_000
TIMES = st.one_of(
    st.integers(-3, 3).map(lambda hours: NOON + hours * 3_600_000),
    st.integers(-3, 3).map(lambda hours: NOON + hours * 3_600_000),
    st.sampled_from([NO_TIMESTAMP, 0, 2**62, -(2**62), NOON + 1]),
)
"""Event times around noon, and late, wild and missing ones."""
Told = tuple[Outcome, tuple[tuple[Position, float, float | None], ...]]


def streams(texts: Sequence[str]) -> st.SearchStrategy[list[Document]]:
    """Make streams that come back to a few texts, so that caps and windows bite."""
    names = st.sampled_from(["", "", "", "other"])
    document = st.builds(
        Document, text=st.sampled_from(texts), namespace=names, event_time_ms=TIMES
    )
    return st.lists(document, max_size=30)


@st.composite
def families(draw: st.DrawFn) -> list[str]:
    """Make texts of every degree of similarity: each repeats a part of one text, and goes on."""
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
        "allowed_lateness": st.sampled_from([0 * HOUR, HOUR, 4 * HOUR]),
        "allowed_ahead": st.sampled_from([0 * HOUR, HOUR]),
        "window_documents": st.sampled_from([1, 3, 10_000, 10_000]),
        "threshold": st.sampled_from([0.4, 0.6, 0.8, 1.0]),
        "shards": st.sampled_from([1, 2, 3, 9]),
        "verify": st.sampled_from(["estimate", "exact"]),
    }
)


def told(verdicts: Sequence[Verdict]) -> list[Told]:
    """Return what verdicts say: the outcome, and each match with its similarity."""
    return [
        (
            each.outcome,
            tuple(
                (match.position, match.jaccard_estimate, match.jaccard) for match in each.matches
            ),
        )
        for each in verdicts
    ]


def true_jaccard(first: str, second: str) -> float:
    """Compare the sets of runs of three characters, by their definition."""
    one, two = (
        {text[at : at + 3] for at in range(len(text) - 2)} or {text} for text in (first, second)
    )
    return len(one & two) / len(one | two)


def model(documents: Sequence[Document], settings: Settings, borderline: float) -> list[Told]:
    """Judge documents one by one with nothing but lists: the laws, written down once more."""
    threshold = settings.dedup.threshold
    batch = sketched(documents, settings)
    sketches = batch.documents.sketches
    codec = SignatureCodec.of(settings.dedup.sketch_parameters())
    kept: list[int] = []
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    effective_times: list[int] = []
    window = settings.index.window
    verdicts: list[Told] = []
    for row in range(len(documents)):
        now = clock_after([documents[other].event_time_ms for other in kept])
        time = effective(documents[row].event_time_ms, now, settings.index)
        keys = list(enumerate(sketches.band_keys[row].tolist()))
        newest = {n for key in keys for n in buckets[key][-settings.index.bucket_size :]}
        in_window = {
            n
            for n in newest
            if n >= len(kept) - settings.index.window_documents
            and (
                window is None
                or abs(time - as_seen(n, effective_times[n], now, settings.index))
                < window / MILLISECOND
            )
        }
        similar = []
        for number in sorted(in_window):
            other = kept[number]
            assert documents[other].namespace == documents[row].namespace
            [estimate] = codec.estimate_jaccard(
                sketches.signatures[row], sketches.signatures[other : other + 1]
            ).tolist()
            jaccard = None
            if settings.dedup.verify == "exact" and abs(estimate - threshold) <= borderline:
                jaccard = true_jaccard(documents[row].text, documents[other].text)
            best_known = estimate if jaccard is None else jaccard
            if best_known >= threshold:
                similar.append((-best_known, number, (batch.positions[other], estimate, jaccard)))
        similar.sort(key=lambda match: match[:2])
        blank = row in batch.blank
        if similar and not blank:
            best = similar[: settings.output.max_matches]
            verdicts.append((Outcome.DUPLICATE, tuple(match for *_, match in best)))
            continue
        verdicts.append((Outcome.KEPT, ()))
        if not blank:
            for key in keys:
                buckets[key].append(len(kept))
            kept.append(row)
            effective_times.append(time)
    return verdicts


def cut(documents: Sequence[Document], cuts: set[int], settings: Settings) -> list[SketchedBatch]:
    """Cut a stream into batches at the given places."""
    edges = [0, *sorted(at for at in cuts if at < len(documents)), len(documents)]
    return [
        sketched(documents[start:stop], settings, first=start) for start, stop in pairwise(edges)
    ]


@given(
    documents=DOCUMENTS,
    cuts=st.sets(st.integers(1, 29), max_size=6),
    shape=SHAPES,
    every_text=st.booleans(),
    ring=st.sampled_from([1, 3, 3, 1001]),
)
@examples(600)
def test_any_batches_any_shards(
    documents: list[Document],
    cuts: set[int],
    shape: dict[str, Any],
    every_text: bool,
    ring: int,
) -> None:
    """However a stream is cut into batches, the verdicts are those of the model (L1, L4).

    With exact verification of everything the model goes by the texts alone. The ring of the clock
    is made small, to be full within the stream.
    """
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as changes:
        changes.setattr(clocks, "RING", ring)
        changes.setattr(clocks, "EVERY", 2)
        settings = small_settings(Path(directory), **shape)
        rule = Rule.from_settings(settings)
        if every_text:
            rule = replace(rule, borderline=math.inf)
        with open_index(settings) as index:
            verdicts = pass_through(index, cut(documents, cuts, settings), settings, rule)
        assert told(verdicts) == model(documents, settings, rule.borderline)


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
    """A position that comes again gets the verdict it had, in the same batch or later (L3)."""
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


def judged(texts: Sequence[str | Document], settings: Settings) -> list[Verdict]:
    """Judge a stream in one batch, with a new index."""
    with open_index(settings) as index:
        return pass_through(index, [sketched(texts, settings)], settings)


def test_chain(tmp_path: Path) -> None:
    """Only kept documents match: a drifting chain does not swallow its far end (L1)."""
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
    """The best match comes first; of equally good ones the earliest."""
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


@pytest.mark.parametrize(
    ("times", "age"),
    [((5_000, 7_500), 2.5), ((7_500, 5_000), -2.5), ((-1, 5_000), None), ((5_000, -1), None)],
    ids=["later", "earlier", "original-without-time", "duplicate-without-time"],
)
def test_age(times: tuple[int, int], age: float | None, tmp_path: Path) -> None:
    """A match says how much older the original is, where both have an event time."""
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
        """A replayed kept document is kept again, and not filed a second time."""
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
        """A document that came later in the same partition makes no replayed one a duplicate."""
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
    """Documents without text are kept, every one, and none is filed."""
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
    assert counts.candidates == counts.verified + counts.refuted == len(counts.similarities)
    assert counts.verified == 1
    assert counts.refuted >= 1
    assert counts.buckets_truncated >= 1


class TestWindow:
    """The window by time: effective times that lie apart."""

    TEXT = "the very same text"

    def outcomes(self, tmp_path: Path, times: Sequence[int], window: dt.timedelta) -> list[bool]:
        """Tell which documents of one text are kept, by their event times."""
        settings = small_settings(tmp_path, window=window)
        documents = [Document(self.TEXT, event_time_ms=time) for time in times]
        return [verdict.kept for verdict in judged(documents, settings)]

    @pytest.mark.parametrize("sign", [1, -1], ids=["later", "earlier"])
    def test_it_ends_exactly(self, sign: int, tmp_path: Path) -> None:
        """One millisecond less than the window makes a duplicate, the window itself does not."""
        hour = 3_600_000
        times = [NOON, NOON + sign * (hour - 1), NOON + sign * hour]
        assert self.outcomes(tmp_path, times, HOUR) == [True, False, True]

    def test_the_newest_kept_one_counts(self, tmp_path: Path) -> None:
        """A text that comes for ever is kept once in each window, not once and for all."""
        times = [NOON + minute * 60_000 for minute in range(0, 300, 20)]
        kept = self.outcomes(tmp_path, times, HOUR)
        assert kept == [minute % 60 == 0 for minute in range(0, 300, 20)]

    def test_stored_and_fresh_alike(self, tmp_path: Path) -> None:
        """It makes no difference whether the original came in this batch or is in the index."""
        settings = small_settings(tmp_path, window=HOUR)
        times = [NOON, NOON + 3_600_000, NOON + 3_600_001]
        documents = [Document(self.TEXT, event_time_ms=time) for time in times]
        with open_index(settings) as index:
            verdicts = pass_through(index, cut(documents, {1, 2}, settings), settings)
        assert [verdict.kept for verdict in verdicts] == [True, True, False]
        [match] = verdicts[2].matches
        assert match.position.offset == 1

    def test_without_times_only_numbers_count(self, tmp_path: Path) -> None:
        """Where no document has an event time, none is outside of the window by time."""
        kept = self.outcomes(tmp_path, [NO_TIMESTAMP] * 3, MILLISECOND)
        assert kept == [True, False, False]

    def test_wild_times_are_believed_so_far(self, tmp_path: Path) -> None:
        """With a settled clock a wild event time counts as the most that is allowed."""
        settings = small_settings(tmp_path, window=HOUR, allowed_ahead=HOUR / 2)
        draw = random.Random(5)
        fillers = [
            Document("".join(draw.choices(string.ascii_letters, k=30)), event_time_ms=NOON)
            for _ in range(1001)
        ]
        times = [2**62, NOON, NOON - 1, NO_TIMESTAMP, NOON - 2_000_000]
        copies = [Document(self.TEXT, event_time_ms=time) for time in times]
        with open_index(settings) as index:
            rule = replace(Rule.from_settings(settings), threshold=1.0)
            batch = sketched([*fillers, *copies], settings)
            candidates = index.probe(batch.documents)
            judgement = resolve(batch, candidates, rule, 0, index.clock)
        kept = [verdict.kept for verdict in judgement.verdicts]
        assert kept == [True] * 1002 + [False, False, False, True]
        assert judgement.update.effective_times_ms.tolist() == [NOON] * 1001 + [
            NOON + 1_800_000,
            NOON - 2_000_000,
        ]

    @pytest.mark.parametrize("cuts", [set(), {1}, {1, 3}], ids=str)
    def test_time_is_told_before_a_document_counts(
        self, cuts: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A document does not move the clock that it is judged by, and its number counts."""
        monkeypatch.setattr(clocks, "RING", 1)
        monkeypatch.setattr(clocks, "EVERY", 2)
        settings = small_settings(tmp_path, allowed_ahead=0 * HOUR)
        documents = [
            Document(text * 5, event_time_ms=NOON + hours * 3_600_000)
            for hours, text in enumerate(["alpha", "bravo", "ketch", "jumpy"])
        ]
        told_ms: list[int] = []
        rule = Rule.from_settings(settings)
        with open_index(settings) as index:
            for batch in cut(documents, cuts, settings):
                candidates = index.probe(batch.documents)
                judgement = resolve(batch, candidates, rule, index.next_number, index.clock)
                index.apply(judgement.update, index.applied + 1)
                told_ms += judgement.update.effective_times_ms.tolist()
        assert told_ms == [NOON, NOON, NOON, NOON + 2 * 3_600_000]

    def test_the_callers_clock_stays(self, tmp_path: Path) -> None:
        """A judgement moves no clock; taking its update in does, to what the documents said."""
        settings = small_settings(tmp_path)
        with open_index(settings) as index:
            batch = sketched([Document(self.TEXT, event_time_ms=NOON)], settings)
            candidates = index.probe(batch.documents)
            before = index.clock.state()
            rule = Rule.from_settings(settings)
            judgement = resolve(batch, candidates, rule, 0, index.clock)
            assert index.clock.state() == before
            index.apply(judgement.update, 1)
            assert (judgement.update.clock_ms, index.clock.now_ms) == (NO_TIMESTAMP, NOON)
        with open_index(settings) as index:
            assert index.clock.now_ms == NOON


class TestExact:
    """Exact verification: the texts decide near the threshold."""

    # Of the 3-grams of the first text, the second has 12 of 21 in common, the third 12 of 22.
    TEXTS = ("the quick brown fox", "the quick brown cat", "the quick brown bird")

    def judged(self, tmp_path: Path, **changes: Any) -> tuple[Judgement, Rule]:
        """Judge the texts at a threshold between the two similarities."""
        settings = small_settings(tmp_path, threshold=0.6, verify="exact")
        rule = replace(Rule.from_settings(settings), **changes)
        batch = sketched(self.TEXTS, settings)
        with open_index(settings) as index:
            return resolve(batch, index.probe(batch.documents), rule, 0, index.clock), rule

    def test_the_truth_decides(self, tmp_path: Path) -> None:
        """What is at the threshold is in, what is just below it is out, and both are counted."""
        truths = [true_jaccard(self.TEXTS[0], other) for other in self.TEXTS[1:]]
        assert truths[0] > truths[1]
        judgement, _ = self.judged(tmp_path, threshold=truths[0], borderline=math.inf)
        assert [verdict.kept for verdict in judgement.verdicts] == [True, False, True]
        [match] = judgement.verdicts[1].matches
        assert match.jaccard == truths[0]
        assert match.jaccard != match.jaccard_estimate
        counts = judgement.counts
        assert (counts.exact_confirmed, counts.exact_refuted) == (1, 1)
        assert (counts.verified, counts.refuted, counts.exact_without_text) == (1, 1, 0)

    def test_estimates_decide_far_from_the_threshold(self, tmp_path: Path) -> None:
        """Where no estimate is near, no text is looked at."""
        judgement, _ = self.judged(tmp_path, threshold=0.05, borderline=0.01)
        counts = judgement.counts
        assert counts.candidates >= 1
        assert counts.exact_confirmed == counts.exact_refuted == 0
        assert all(match.jaccard is None for one in judgement.verdicts for match in one.matches)

    def test_the_band_is_two_standard_errors(self, tmp_path: Path) -> None:
        """At the threshold, on both sides of it."""
        _, rule = self.judged(tmp_path)
        assert BORDERLINE == 2.0
        assert rule.borderline == 2 * rule.codec.standard_error(0.6)

    def test_a_text_that_is_not_stored(self, tmp_path: Path) -> None:
        """Where a text was too long to be stored the estimate decides, and this is counted."""
        settings = small_settings(tmp_path, threshold=0.6, verify="exact")
        rule = replace(Rule.from_settings(settings), borderline=math.inf)
        batch = sketched([self.TEXTS[0], self.TEXTS[0]], settings)
        documents = replace(batch.documents, texts=[NOT_STORED, batch.documents.texts[1]])
        with open_index(settings) as index:
            candidates = index.probe(documents)
            judgement = resolve(
                replace(batch, documents=documents), candidates, rule, 0, index.clock
            )
        [match] = judgement.verdicts[1].matches
        assert (match.jaccard_estimate, match.jaccard) == (1.0, None)
        assert judgement.counts.exact_without_text == 1

    def test_best_known_similarity_comes_first(self, tmp_path: Path) -> None:
        """Matches are in the order of the true similarity where it is known."""
        settings = small_settings(tmp_path, threshold=0.99, verify="exact")
        words = [f"word{number}" for number in range(30)]
        kept = [" ".join(words[start:]) for start in range(1, 7)]
        with open_index(settings) as index:
            pass_through(index, [sketched(kept, settings)], settings)
            batch = sketched([" ".join(words)], settings, first=len(kept))
            rule = replace(Rule.from_settings(settings), threshold=0.3, borderline=math.inf)
            found = resolve(
                batch, index.probe(batch.documents), rule, index.next_number, index.clock
            )
        matches = found.verdicts[0].matches
        assert len(matches) >= 3
        truths = [match.jaccard or 0.0 for match in matches]
        assert truths == sorted(truths, reverse=True)
        for match in matches:
            assert match.jaccard == true_jaccard(" ".join(words), kept[match.position.offset])
