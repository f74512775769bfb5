"""*Blocking.* Why a verdict is what it is: a text, or a document of an index, judged in the open.

Rule 1: the verdict comes from :func:`streamdedup.dedup.resolve.resolve`, as every other. What
stands beside each candidate is worked out again, and only tells.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from streamdedup.dedup.resolve import BORDERLINE, Rule, resolve
from streamdedup.dedup.similarity import TextSimilarity
from streamdedup.errors import IndexMismatch, InputError
from streamdedup.index.rows import Bools
from streamdedup.index.view import View
from streamdedup.model import (
    NO_TIMESTAMP,
    Candidates,
    DocumentColumns,
    Match,
    Outcome,
    Position,
    SketchedBatch,
    Sketches,
)
from streamdedup.settings.sections import Settings
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.sets import shingle_sets
from streamdedup.sketch.sketcher import Sketcher, namespace_hash
from streamdedup.sketch.texts import NOT_STORED, TextPacker

_NOWHERE = Position("", 0, 0)
"""Of a text that is only asked about."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kept document that shares a bucket with the one in question.

    Attributes:
        number: the index's.
        bands: the bands that both share, from 0.
        same_text: whether the whole normalised texts are the same.
        similarity: the estimate by the signatures.
        exact: similarity of the texts, where the index holds them.
        in_window: whether it can make others duplicates now.
        same_namespace: whether the two can match at all.
        matches: whether it makes the document a duplicate.
    """

    number: int
    id: str
    position: Position
    event_time_ms: int | None
    effective_time_ms: int | None
    bands: list[int]
    same_text: bool
    similarity: float
    exact: float | None
    in_window: bool
    same_namespace: bool
    matches: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a document would be judged if it came now.

    Attributes:
        normalised_characters: of the text; None for a document of the index without its text.
        shingles: distinct ones of the text; the same.
        number: of a document of the index; None for a text.
        position: the same.
        event_time_ms: the same.
        effective_time_ms: by which the window by time would go; None where the clock says nothing.
        bands: how many there are.
        bands_known: in how many of them the document can still be found by its keys.
        bands_hit: in how many of them there are candidates.
        threshold: of the settings.
        window_documents: of the settings.
        oldest_in_window: number of the oldest document that can match.
        candidates: the likeliest first.
        outcome: ``kept`` or ``duplicate``.
        original: id of the document that it would repeat.
        why: the outcome in a sentence.
    """

    normalised_characters: int | None
    shingles: int | None
    number: int | None
    id: str
    position: Position | None
    event_time_ms: int | None
    effective_time_ms: int | None
    bands: int
    bands_known: int
    bands_hit: int
    threshold: float
    window_documents: int
    oldest_in_window: int
    candidates: list[Candidate]
    outcome: Outcome
    original: str | None
    why: str


@dataclass(frozen=True, slots=True)
class _Query:
    """One document in question."""

    documents: DocumentColumns
    known: Bools
    normalised: str | None
    number: int | None = None
    position: Position | None = None


def explain_text(
    view: View, text: str, settings: Settings, *, namespace: str = "", configured: bool
) -> Explanation:
    """Say how a text would be judged if it came now, without an event time.

    Args:
        view: the index.
        text: as a document would hold it.
        settings: what the index does not say: threshold, bucket size and window.
        namespace: of the document.
        configured: whether the settings are the index's own; else the sketches are as it says.

    Raises:
        IndexMismatch: the settings are not those of the index.
    """
    rule = _rule(view, settings, configured=configured)
    sketcher = Sketcher(view.parameters)
    normalised = sketcher.normalise([text])
    namespaces = np.array([namespace_hash(namespace)], dtype=np.uint64)
    texts = [TextPacker(settings.text_room()).pack(normalised[0])] if rule.shingling else ()
    documents = DocumentColumns(
        ids=["the text"],
        positions=[_NOWHERE],
        event_times_ms=np.array([NO_TIMESTAMP], dtype=np.int64),
        namespaces=namespaces,
        sketches=sketcher.sketch(normalised, namespaces),
        texts=texts,
    )
    known = np.ones(documents.sketches.band_keys.shape[1], dtype=np.bool_)
    return _explain(view, _Query(documents, known, normalised[0]), settings, rule)


def explain_id(view: View, id_: str, settings: Settings, *, configured: bool) -> list[Explanation]:
    """Say how a copy of each document with an id would be judged if it came now.

    Its keys are read back from the postings, 40 bits of each: what look-ups compare. So no text is
    needed; but a bucket that was full has forgotten its oldest documents, and that band is unknown.

    Args:
        view: the index.
        id_: of the documents.
        settings: what the index does not say: threshold, bucket size and window.
        configured: whether the settings are the index's own.

    Raises:
        InputError: the index holds no such document.
        IndexMismatch: the settings are not those of the index.
    """
    rule = _rule(view, settings, configured=configured)
    numbers = view.numbers_of(id_)
    if not numbers:
        raise InputError(f"{view.directory} holds no document with id {id_}")
    return [_explain(view, _stored(view, number), settings, rule) for number in numbers]


def _rule(view: View, settings: Settings, *, configured: bool) -> Rule:
    """Return what makes a duplicate: the settings', with the index's own sketches."""
    rule = Rule.from_settings(settings)
    if configured:
        if settings.dedup.sketch_parameters() != view.parameters:
            raise IndexMismatch(
                f"{view.directory}: the settings make other sketches than the index holds; give "
                "the configuration that it was built with, or none"
            )
        return rule
    parameters = view.parameters
    codec = SignatureCodec.of(parameters)
    return replace(
        rule,
        codec=codec,
        shingling=parameters.shingling() if view.holds_texts else None,
        borderline=BORDERLINE * codec.standard_error(rule.threshold),
    )


def _stored(view: View, number: int) -> _Query:
    keys, known = view.keys_of(number)
    _, documents = view.documents(np.array([number], dtype=np.int64))
    sketches = Sketches(documents.sketches.signatures, keys[None, :])
    copy = replace(documents, sketches=sketches, positions=[_NOWHERE])
    return _Query(copy, known, None, number, documents.positions[0])


def _explain(view: View, query: _Query, settings: Settings, rule: Rule) -> Explanation:
    documents = query.documents
    found = view.probe(documents, rule.bucket_size, query.known)
    clock = view.clock(settings.index)
    blank = frozenset({0} if query.normalised == "" else ())
    batch = SketchedBatch([_NOWHERE], documents, [0], blank, {}, ())
    everything = replace(rule, max_matches=max(1, len(found.numbers)))
    judgement = resolve(batch, found, everything, view.next_number, clock)
    [verdict] = judgement.verdicts
    event_time_ms = int(documents.event_times_ms[0])
    effective_ms = clock.effective_ms(event_time_ms)
    oldest = max(0, view.next_number - rule.window_documents)
    matching = {match.position for match in verdict.matches}
    candidates = [
        replace(each, matches=each.position in matching)
        for each in _candidates(found, documents, rule, oldest, effective_ms)
    ]
    columns = set(found.hit_columns.tolist())
    shingling = view.parameters.shingling()
    text = query.normalised
    return Explanation(
        normalised_characters=None if text is None else len(text),
        shingles=None if text is None else len(next(shingle_sets([text], shingling))),
        number=query.number,
        id=documents.ids[0],
        position=query.position,
        event_time_ms=_known(event_time_ms),
        effective_time_ms=_known(effective_ms),
        bands=view.parameters.bands,
        bands_known=int(query.known[:-1].sum()),
        bands_hit=len(columns - {view.parameters.bands}),
        threshold=rule.threshold,
        window_documents=rule.window_documents,
        oldest_in_window=oldest,
        candidates=candidates,
        outcome=verdict.outcome,
        original=verdict.original.id if verdict.original else None,
        why=_why(verdict.original, candidates, rule, blank=bool(blank)),
    )


def _candidates(
    found: Candidates,
    documents: DocumentColumns,
    rule: Rule,
    oldest: int,
    effective_ms: int,
) -> list[Candidate]:
    signature = documents.sketches.signatures[0]
    others = found.documents
    estimates = rule.codec.estimate_jaccard(signature, others.sketches.signatures).tolist()
    columns: dict[int, list[int]] = {}
    for column, number in zip(found.hit_columns.tolist(), found.hit_numbers.tolist(), strict=True):
        columns.setdefault(number, []).append(column)
    whole = documents.sketches.band_keys.shape[1] - 1
    times_ms = found.effective_times_ms.tolist()
    candidates = [
        Candidate(
            number=number,
            id=others.ids[at],
            position=others.positions[at],
            event_time_ms=_known(int(others.event_times_ms[at])),
            effective_time_ms=_known(times_ms[at]),
            bands=[column for column in columns[number] if column != whole],
            same_text=whole in columns[number],
            similarity=estimates[at],
            exact=_exact(documents, others, at, rule),
            in_window=number >= oldest
            and (rule.window_ms is None or abs(effective_ms - times_ms[at]) < rule.window_ms),
            same_namespace=bool(others.namespaces[at] == documents.namespaces[0]),
            matches=False,
        )
        for at, number in enumerate(found.numbers.tolist())
    ]
    return sorted(candidates, key=lambda each: (-each.similarity, each.number))


def _exact(
    documents: DocumentColumns, others: DocumentColumns, at: int, rule: Rule
) -> float | None:
    if rule.shingling is None or not documents.texts or not others.texts:
        return None
    mine, theirs = documents.texts[0], others.texts[at]
    if NOT_STORED in (mine, theirs):
        return None
    return TextSimilarity(rule.shingling).jaccard(mine, theirs)


def _why(original: Match | None, candidates: list[Candidate], rule: Rule, *, blank: bool) -> str:
    if blank:
        return "kept: nothing is left of the text after normalisation, and such is not compared"
    if original is not None:
        exact = original.jaccard
        shown = f"about {original.jaccard_estimate:.3f}" if exact is None else f"{exact:.3f}"
        return (
            f"duplicate of {original.id}: their similarity is {shown}, the threshold is "
            f"{rule.threshold:g}"
        )
    if not candidates:
        return "kept: no document shares a band with it"
    causes = Counter(_cause(each, rule) for each in candidates)
    told = ", ".join(f"{count} {cause}" for cause, count in causes.items())
    return f"kept: of {len(candidates)} candidates, {told}"


def _cause(candidate: Candidate, rule: Rule) -> str:
    if not candidate.same_namespace:
        return "of another namespace"
    if not candidate.in_window:
        return "outside of the window"
    return f"below the threshold of {rule.threshold:g}"


def _known(time_ms: int) -> int | None:
    return None if time_ms == NO_TIMESTAMP else time_ms
