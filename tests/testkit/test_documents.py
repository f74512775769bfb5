"""The planned documents are the same in every run, and their copies are as planned."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest

from tests.testkit.documents import ARTICLE_BYTES, POST_BYTES, Documents, plan
from tests.testkit.texts import jaccard, shingles

COUNT = 200


def _texts(documents: Documents) -> list[str]:
    return [json.loads(value)["text"] for value in documents.values(plan(COUNT))]


def test_a_stream_is_the_same_in_every_run() -> None:
    """Any part of it can be made alone."""
    planned = plan(COUNT)
    values = list(Documents(POST_BYTES).values(planned))
    assert list(Documents(POST_BYTES).values(plan(COUNT), 100, 120)) == values[100:120]
    assert len({json.loads(value)["id"] for value in values}) == COUNT


def test_the_texts_of_two_streams_are_unrelated() -> None:
    """Streams with different numbers share no text."""
    one, other = (_texts(Documents(POST_BYTES, stream)) for stream in (0, 1))
    assert not set(one) & set(other)


@pytest.mark.parametrize("mean_bytes", [POST_BYTES, ARTICLE_BYTES])
def test_documents_have_their_mean_size(mean_bytes: int) -> None:
    """The mean is right within three percent."""
    sizes = [len(value) for value in Documents(mean_bytes).values(plan(COUNT))]
    assert np.mean(sizes) == pytest.approx(mean_bytes, rel=0.03)


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_copy_repeats_an_earlier_document_of_its_lane(lanes: int) -> None:
    """Its original is not a copy itself, and the shares are as asked for."""
    planned = plan(30_000, exact=0.6, near=0.3, lanes=lanes)
    places = np.arange(30_000)
    copies = planned.copies
    assert (planned.originals[copies] < places[copies]).all()
    assert not copies[planned.originals].any()
    assert ((places - planned.originals) % lanes == 0).all()
    assert copies.mean() == pytest.approx(0.9, abs=0.01)
    assert planned.near.mean() == pytest.approx(0.3, abs=0.01)
    assert not (planned.near & ~copies).any()


@pytest.mark.parametrize("mean_bytes", [POST_BYTES, ARTICLE_BYTES])
def test_near_copies_are_similar_and_others_are_not(mean_bytes: int) -> None:
    """Near copies are above the default threshold of 0.8, unrelated documents far below."""
    texts, planned = _texts(Documents(mean_bytes)), plan(COUNT)
    sets = [shingles(text) for text in texts]
    for copy in np.flatnonzero(planned.copies).tolist():
        similarity = jaccard(sets[copy], sets[planned.originals[copy]])
        # By chance a replaced word stays the same, so that a near copy can be an exact one.
        assert similarity > 0.82 if planned.near[copy] else similarity == 1
    unrelated = [sets[place] for place in np.flatnonzero(~planned.copies)[:20].tolist()]
    assert max(jaccard(one, other) for one, other in combinations(unrelated, 2)) < 0.2
