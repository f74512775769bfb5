"""*Blocking.* Explains a verdict: judges a text, or a document of an index, and shows the reasons.

Rule 1: the verdict comes from :func:`streamdedup.dedup.resolve.resolve`, like every other verdict.
The facts about each candidate are computed again for display, and decide nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from streamdedup.batches import Candidates, DocumentColumns, SketchedBatch, Sketches
from streamdedup.columns import NO_BLOBS, Blobs, Positions, Strings
from streamdedup.dedup.clock import compared_ms, effective_ms
from streamdedup.dedup.resolve import BORDERLINE, Rule, resolve
from streamdedup.dedup.rule import oldest_in_window, which_in_reach, which_in_window
from streamdedup.errors import IndexMismatch, InputError
from streamdedup.index.rows import Bools
from streamdedup.index.view import View
from streamdedup.model import NO_TIMESTAMP, Match, Outcome, Position
from streamdedup.settings.sections import Settings
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.sketcher import Sketcher, namespace_hash
from streamdedup.sketch.texts import NOT_STORED, TextPacker, TextSimilarity, shingle_sets

_NOWHERE = Position("", 0, 0)
"""The position of a document that is not in the stream."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kept document that shares a bucket with the document in question.

    Attributes:
        effective_time_ms: the time from which its stay counts; see :mod:`streamdedup.dedup.clock`.
        bands: the bands that both share, counted from 0.
        same_text: whether the whole normalised texts are equal.
        similarity: estimated from the signatures.
        exact: the similarity of the texts; None unless the index holds both.
        in_window: whether it can make other documents duplicates now.
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
    """The verdict that a document would get if it arrived now, and the reasons.

    Attributes:
        normalised_characters, shingles: of the text, distinct shingles; None for a document of the
            index, whose text is not read.
        number, position: of a document of the index; None for a text.
        effective_time_ms: the time from which its stay counts; None if the clock has no time yet.
        bands: number of bands of the index.
        bands_known: number of bands in which the index still finds the document by its key.
        bands_hit: number of bands that have candidates.
        oldest_in_window: number of the oldest document that can match.
        candidates: most similar first.
        original: id of the document that it would duplicate; None if it would be kept.
        why: the reason for the outcome, in one sentence.
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


def explain_text(
    view: View, text: str, settings: Settings, *, namespace: str = "", configured: bool
) -> Explanation:
    """Explain the verdict that a text would get if it arrived now, without an event time.

    It is the text before normalisation. The settings have what the index does not store: threshold,
    bucket size and window. If they are ``configured`` and not those of the index, raise an
    IndexMismatch. Else its own sketch parameters are used.
    """
    rule = _rule(view, settings, configured=configured)
    # The index does not store a secret seed, the settings have it.
    sketcher = Sketcher(settings.dedup.sketch_parameters() if configured else view.parameters)
    normalised = sketcher.normalise([text])
    namespaces = np.array([namespace_hash(namespace)], dtype=np.uint64)
    texts = NO_BLOBS
    if rule.shingling:
        texts = Blobs.of([TextPacker(settings.text_room()).pack(normalised[0])])
    documents = DocumentColumns(
        ids=Strings.of(["the text"]),
        positions=Positions.of([_NOWHERE]),
        event_times_ms=np.array([NO_TIMESTAMP], dtype=np.int64),
        namespaces=namespaces,
        sketches=sketcher.sketch(normalised, namespaces),
        texts=texts,
    )
    known = np.ones(documents.sketches.band_keys.shape[1], dtype=np.bool_)
    return _explain(view, rule, documents, known, text=normalised[0])


def explain_id(view: View, id_: str, settings: Settings, *, configured: bool) -> list[Explanation]:
    """Explain the verdict that a copy of each document with an id would get if it arrived now.

    The band keys are read back from the postings, 40 bits of each, which is what look-ups compare.
    So no text is needed. A bucket that was full has dropped its oldest documents; in that band the
    key is unknown. ``settings`` and ``configured`` are those of :func:`explain_text`.

    Raises:
        InputError: the index holds no document with this id.
        IndexMismatch: the settings are not those of the index.
    """
    rule = _rule(view, settings, configured=configured)
    numbers = view.numbers_of(id_)
    if not numbers:
        raise InputError(f"{view.directory} holds no document with id {id_}")
    explanations = []
    for number in numbers:
        keys, known = view.keys_of(number)
        _, documents = view.documents(np.array([number], dtype=np.int64))
        sketches = Sketches(documents.sketches.signatures, keys[None, :])
        copy = replace(documents, sketches=sketches, positions=Positions.of([_NOWHERE]))
        found = _explain(view, rule, copy, known)
        explanations.append(replace(found, number=number, position=documents.positions[0]))
    return explanations


def _rule(view: View, settings: Settings, *, configured: bool) -> Rule:
    """Return the rule of the settings, for the sketches that the index holds."""
    rule = Rule.from_settings(settings)
    if configured:
        if settings.dedup.sketch_parameters().described() != view.parameters.described():
            raise IndexMismatch(
                f"{view.directory}: the index holds sketches with other parameters than these "
                "settings; pass the --config that the index was built with, or no --config"
            )
        return rule
    codec = SignatureCodec.of(view.parameters)
    return replace(
        rule,
        codec=codec,
        shingling=view.parameters.shingling() if view.holds_texts else None,
        borderline=BORDERLINE * codec.standard_error(rule.threshold),
    )


def _explain(
    view: View, rule: Rule, documents: DocumentColumns, known: Bools, *, text: str | None = None
) -> Explanation:
    """Explain the verdict on a document, a row of columns, without its number and position.

    ``known`` says for each column of its band keys whether the key is known; ``(bands + 1,)``. The
    text is normalised.
    """
    probed = view.probe(documents, rule.bucket_size, known)
    clock = view.clock
    blank = text == ""
    blank_rows = frozenset({0} if blank else ())
    rows = np.zeros(1, dtype=np.int64)
    batch = SketchedBatch(documents.positions, documents, rows, blank_rows, {}, ())
    all_matches = replace(rule, max_matches=max(1, len(probed.numbers)))
    [verdict] = resolve(batch, probed, all_matches, view.next_number, clock).verdicts
    own_ms = documents.event_times_ms
    own_effective_ms = effective_ms(own_ms, np.array([clock.now_ms]), rule.allowances)
    [own_compared_ms] = compared_ms(own_ms, own_effective_ms).tolist()
    oldest = oldest_in_window(view.next_number, rule.window_documents)
    compared = compared_ms(probed.documents.event_times_ms, probed.effective_times_ms)
    in_window = (
        (probed.numbers >= oldest)
        & which_in_window(own_compared_ms, compared, rule.window_ms)
        & which_in_reach(probed.effective_times_ms, clock.now_ms, rule.reach_ms)
    ).tolist()
    matching = {match.position for match in verdict.matches}
    candidates = _candidates(probed, documents, rule, in_window, matching)
    shingles = None
    if text is not None:
        shingles = len(next(shingle_sets([text], view.parameters.shingling())))
    return Explanation(
        normalised_characters=None if text is None else len(text),
        shingles=shingles,
        number=None,
        id=documents.ids[0],
        position=None,
        event_time_ms=_none_if_missing(int(own_ms[0])),
        effective_time_ms=_none_if_missing(int(own_effective_ms[0])),
        bands=view.parameters.bands,
        bands_known=int(known[:-1].sum()),
        bands_hit=len({band for candidate in candidates for band in candidate.bands}),
        threshold=rule.threshold,
        window_documents=rule.window_documents,
        oldest_in_window=oldest,
        candidates=candidates,
        outcome=verdict.outcome,
        original=verdict.original.id if verdict.original else None,
        why=_why(verdict.original, candidates, rule, blank=blank),
    )


def _candidates(
    probed: Candidates,
    documents: DocumentColumns,
    rule: Rule,
    in_window: list[bool],
    matching: set[Position],
) -> list[Candidate]:
    """Return the probed documents with the facts about each, most similar first."""
    others = probed.documents
    signature = documents.sketches.signatures[0]
    estimates = rule.codec.estimate_jaccard(signature, others.sketches.signatures).tolist()
    whole_text = documents.sketches.band_keys.shape[1] - 1
    columns: dict[int, list[int]] = {}
    hits = zip(probed.hit_columns.tolist(), probed.hit_numbers.tolist(), strict=True)
    for column, number in hits:
        columns.setdefault(number, []).append(column)
    times_ms, effective_ms = others.event_times_ms.tolist(), probed.effective_times_ms.tolist()
    candidates = []
    for row, number in enumerate(probed.numbers.tolist()):
        exact = None
        if rule.shingling is not None and documents.texts and others.texts:
            own, other = documents.texts[0], others.texts[row]
            if NOT_STORED not in (own, other):
                exact = TextSimilarity(rule.shingling).jaccard(own, other)
        candidate = Candidate(
            number=number,
            id=others.ids[row],
            position=others.positions[row],
            event_time_ms=_none_if_missing(times_ms[row]),
            effective_time_ms=_none_if_missing(effective_ms[row]),
            bands=[column for column in columns[number] if column != whole_text],
            same_text=whole_text in columns[number],
            similarity=estimates[row],
            exact=exact,
            in_window=in_window[row],
            same_namespace=bool(others.namespaces[row] == documents.namespaces[0]),
            matches=others.positions[row] in matching,
        )
        candidates.append(candidate)
    return sorted(candidates, key=lambda candidate: (-candidate.similarity, candidate.number))


def _why(original: Match | None, candidates: list[Candidate], rule: Rule, *, blank: bool) -> str:
    if blank:
        return "kept: nothing is left of the text after normalisation; empty texts are not compared"
    if original is not None:
        exact = original.jaccard
        shown = f"about {original.jaccard_estimate:.3f}" if exact is None else f"{exact:.3f}"
        return (
            f"duplicate of {original.id}: their similarity is {shown}, the threshold is "
            f"{rule.threshold:g}"
        )
    if not candidates:
        return "kept: no document shares a band with it"
    causes = Counter[str]()
    for candidate in candidates:
        if not candidate.same_namespace:
            causes["in another namespace"] += 1
        elif not candidate.in_window:
            causes["outside the window"] += 1
        else:
            causes[f"below the threshold of {rule.threshold:g}"] += 1
    counts = ", ".join(f"{count} {cause}" for cause, count in causes.items())
    return f"kept: of {len(candidates)} candidates, {counts}"


def _none_if_missing(time_ms: int) -> int | None:
    return None if time_ms == NO_TIMESTAMP else time_ms
