"""Clusters of accepted pairs, against labels."""

from __future__ import annotations

import pytest

from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.evaluate import evaluate
from streamdedup.model import Document
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from streamdedup.sketch.bands import Banding


@pytest.fixture
def settings() -> Settings:
    """Return settings of short signatures."""
    return load_settings(dedup={"threshold": 0.7, "num_perm": 64, "recall": 0.95})


def test_labels_that_agree(settings: Settings) -> None:
    """Labels that equal the clusters give all pairs and an index of 1."""
    texts = [f"story {name * 5} of its own {name * 7} kind" for name in "abcde"]
    documents = [Document(text) for text in texts * 3] + [Document("")]
    corpus = Corpus(documents, labels=[*("abcde" * 3), "none"])
    clusters = evaluate(corpus, settings, [Banding(16, 4)]).bandings[0].clusters
    assert clusters is not None
    assert (clusters.labelled, clusters.joined, clusters.both) == (15, 15, 15)
    assert clusters.adjusted_rand_index == clusters.f1 == 1


def test_labels_that_differ(settings: Settings) -> None:
    """The index is Hubert and Arabie's: two groups of three, three clusters of two."""
    names = ("one text that is long enough", "second wholly different sentence", "Third! 0123456")
    documents = [Document(names[number]) for number in (0, 0, 1, 1, 2, 2)]
    corpus = Corpus(documents, labels=["a", "a", "a", "b", "b", "b"])
    clusters = evaluate(corpus, settings, [Banding(16, 4)]).bandings[0].clusters
    assert clusters is not None
    assert (clusters.labelled, clusters.joined, clusters.both) == (6, 3, 2)
    assert clusters.adjusted_rand_index == pytest.approx((2 - 1.2) / (4.5 - 1.2))
    assert (clusters.precision, clusters.recall) == pytest.approx((2 / 3, 1 / 3))
    assert clusters.f1 == pytest.approx(4 / 9)
