"""Verdicts with exact verification."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamdedup.batches import Judgement
from streamdedup.columns import Blobs
from streamdedup.dedup.resolve import BORDERLINE, Rule, resolve
from streamdedup.sketch.texts import NOT_STORED
from tests.dedup.brute_force import true_jaccard
from tests.support.builders import (
    open_index,
    pass_through,
    sketched,
    small_settings,
)

WORDS = tuple(f"word{number}" for number in range(30))
KEPT = tuple(" ".join(WORDS[start:]) for start in range(1, 7))


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
        """A pair at the threshold is a duplicate, one just below is not; both are counted."""
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
        """If no estimate is near the threshold, no text is compared."""
        judgement, _ = self.judged(tmp_path, threshold=0.05, borderline=0.01)
        counts = judgement.counts
        assert counts.candidates >= 1
        assert counts.exact_confirmed == counts.exact_refuted == 0
        assert all(match.jaccard is None for one in judgement.verdicts for match in one.matches)

    def test_the_band_is_two_standard_errors(self, tmp_path: Path) -> None:
        """Texts are compared within two standard errors of the threshold."""
        _, rule = self.judged(tmp_path)
        assert BORDERLINE == 2.0
        assert rule.borderline == 2 * rule.codec.standard_error(0.6)

    def test_a_text_that_is_not_stored(self, tmp_path: Path) -> None:
        """If a text is not stored, the estimate decides, and this is counted."""
        settings = small_settings(tmp_path, threshold=0.6, verify="exact")
        rule = replace(Rule.from_settings(settings), borderline=math.inf)
        batch = sketched([self.TEXTS[0], self.TEXTS[0]], settings)
        documents = replace(batch.documents, texts=Blobs.of([NOT_STORED, batch.documents.texts[1]]))
        with open_index(settings) as index:
            candidates = index.probe(documents)
            judgement = resolve(
                replace(batch, documents=documents), candidates, rule, 0, index.clock
            )
        [match] = judgement.verdicts[1].matches
        assert (match.jaccard_estimate, match.jaccard) == (1.0, None)
        assert judgement.counts.exact_without_text == 1

    def against_kept(self, tmp_path: Path, **changes: Any) -> Judgement:
        """Judge all words against the texts that lack the first ones, comparing every text."""
        settings = small_settings(tmp_path, threshold=0.99, verify="exact")
        rule = replace(Rule.from_settings(settings), threshold=0.3, borderline=math.inf, **changes)
        with open_index(settings) as index:
            pass_through(index, [sketched(KEPT, settings)], settings)
            batch = sketched([" ".join(WORDS)], settings, first=len(KEPT))
            candidates = index.probe(batch.documents)
            return resolve(batch, candidates, rule, index.next_number, index.clock)

    def test_best_known_similarity_comes_first(self, tmp_path: Path) -> None:
        """Matches are ordered by the exact similarity if it is known."""
        matches = self.against_kept(tmp_path).verdicts[0].matches
        assert len(matches) >= 3
        truths = [match.jaccard or 0.0 for match in matches]
        assert truths == sorted(truths, reverse=True)
        for match in matches:
            assert match.jaccard == true_jaccard(" ".join(WORDS), KEPT[match.position.offset])

    @pytest.mark.parametrize("texts", [1, 2])
    def test_texts_beyond_the_budget(self, tmp_path: Path, texts: int) -> None:
        """The best estimates are compared within the budget; the others decide, and are counted."""
        longest = len(KEPT[0])
        judgement = self.against_kept(tmp_path, compared_bytes=(texts - 1) * longest + 1)
        matches, counts = judgement.verdicts[0].matches, judgement.counts
        assert len(matches) >= 3
        by_estimate = sorted(matches, key=lambda match: -match.jaccard_estimate)
        known = [match.jaccard is not None for match in by_estimate]
        assert known == [True] * texts + [False] * (len(matches) - texts)
        assert counts.exact_confirmed + counts.exact_refuted == texts
        assert counts.exact_over_budget == counts.candidates - texts
