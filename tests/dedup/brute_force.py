"""*Blocking.* The definitions of the clock and of verdicts, in plain Python without batches."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from streamdedup.batches import SketchedBatch
from streamdedup.dedup import clock as clocks
from streamdedup.dedup.resolve import COMPARED_BYTES
from streamdedup.model import NO_TIMESTAMP, Document, Match, Outcome, Position, Verdict
from streamdedup.settings.sections import IndexSettings, Settings
from streamdedup.settings.units import milliseconds
from streamdedup.sketch.codec import SignatureCodec
from tests.support.builders import (
    open_index,
    pass_through,
    sketched,
)

MILLISECOND = dt.timedelta(milliseconds=1)
HOUR = dt.timedelta(hours=1)
NOON = 1_700_000_000_000
Similar = tuple[Position, float, float | None]
Told = tuple[Outcome, tuple[Similar, ...]]


def clock_after(event_times_ms: Sequence[int]) -> int:
    """Return the clock after documents with these event times were judged, by the definition."""
    known = [time for time in event_times_ms if time != NO_TIMESTAMP]
    recent = [known[end - clocks.RECENT : end] for end in range(clocks.RECENT, len(known) + 1)]
    return max([NO_TIMESTAMP, *(sorted(times)[clocks.RANK] for times in recent)])


def effective(event_time_ms: int, now_ms: int, settings: IndexSettings) -> int:
    """Return the effective time of a document, by the definition."""
    if event_time_ms == NO_TIMESTAMP:
        return now_ms
    lateness, ahead = settings.lateness(), settings.ahead()
    if now_ms == NO_TIMESTAMP or lateness is None or ahead is None:
        return event_time_ms
    earliest, latest = now_ms - milliseconds(lateness), now_ms + milliseconds(ahead)
    return sorted([earliest, event_time_ms, latest])[1]


class Kept(NamedTuple):
    """A kept document: its row in the stream, and the time from which its stay counts."""

    row: int
    event_ms: int
    effective_ms: int

    @property
    def compared_ms(self) -> int:
        """The time by which it is compared."""
        return self.effective_ms if self.event_ms == NO_TIMESTAMP else self.event_ms


def in_window(mine: Kept, theirs: Kept, now_ms: int, settings: IndexSettings) -> bool:
    """Tell whether a kept document is in the window by time of another one, by the definition."""
    window, lateness = settings.window, settings.lateness()
    if window is None or lateness is None:
        return True
    leaves_ms = theirs.effective_ms + milliseconds(window) + milliseconds(lateness)
    in_reach = now_ms == NO_TIMESTAMP or now_ms < leaves_ms
    return in_reach and abs(mine.compared_ms - theirs.compared_ms) < milliseconds(window)


def told(verdicts: Iterable[Verdict]) -> list[Told]:
    """Return the outcome of each verdict, and each match with its similarities."""
    return [(each.outcome, similar(each.matches)) for each in verdicts]


def similar(matches: Iterable[Match]) -> tuple[Similar, ...]:
    """Return the positions of matches, with their similarities."""
    return tuple((match.position, match.jaccard_estimate, match.jaccard) for match in matches)


def true_jaccard(first: str, second: str) -> float:
    """Return the Jaccard similarity of the sets of 3-grams, by the definition."""
    one, two = (
        {text[at : at + 3] for at in range(len(text) - 2)} or {text} for text in (first, second)
    )
    return len(one & two) / len(one | two)


def model(
    documents: Sequence[Document],
    settings: Settings,
    borderline: float,
    compared_bytes: int = COMPARED_BYTES,
) -> tuple[list[Told], list[tuple[Similar, ...]]]:
    """Judge documents one by one with lists and dictionaries only.

    Returns:
        The verdicts, and the best refuted candidate of each kept document, if there is one.
    """
    threshold = settings.dedup.threshold
    batch = sketched(documents, settings)
    sketches = batch.documents.sketches
    codec = SignatureCodec.of(settings.dedup.sketch_parameters())
    kept: list[Kept] = []
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    verdicts: list[Told] = []
    refuted: list[tuple[Similar, ...]] = []
    for row in range(len(documents)):
        time_ms = documents[row].event_time_ms
        now_ms = clock_after([document.event_time_ms for document in documents[:row]])
        mine = Kept(row, time_ms, effective(time_ms, now_ms, settings.index))
        keys = list(enumerate(sketches.band_keys[row].tolist()))
        newest = {n for key in keys for n in buckets[key][-settings.index.bucket_size :]}
        candidates = {
            n
            for n in newest
            if n >= len(kept) - settings.index.window_documents
            and in_window(mine, kept[n], now_ms, settings.index)
        }
        estimates = {}
        for number in candidates:
            other = kept[number].row
            assert documents[other].namespace == documents[row].namespace
            [estimates[number]] = codec.estimate_jaccard(
                sketches.signatures[row], sketches.signatures[other : other + 1]
            ).tolist()
        reaching: list[tuple[float, int, Similar]] = []
        refused: list[tuple[float, int, Similar]] = []
        compared = ""
        for number, estimate in sorted(estimates.items(), key=lambda pair: (-pair[1], pair[0])):
            other = kept[number].row
            jaccard = None
            near = settings.dedup.verify == "exact" and abs(estimate - threshold) <= borderline
            if near and len(compared.encode()) < compared_bytes:
                jaccard = true_jaccard(documents[row].text, documents[other].text)
                compared += documents[other].text
            best_known = estimate if jaccard is None else jaccard
            reached = reaching if best_known >= threshold else refused
            reached.append((-best_known, number, (batch.positions[other], estimate, jaccard)))
        reaching.sort(key=lambda match: match[:2])
        blank = row in batch.blank
        if reaching and not blank:
            best = reaching[: settings.output.max_matches]
            verdicts.append((Outcome.DUPLICATE, tuple(match for *_, match in best)))
            refuted.append(())
            continue
        verdicts.append((Outcome.KEPT, ()))
        refuted.append(() if blank or not refused else (min(refused)[2],))
        if not blank:
            for key in keys:
                buckets[key].append(len(kept))
            kept.append(mine)
    return verdicts, refuted


def cut(documents: Sequence[Document], cuts: set[int], settings: Settings) -> list[SketchedBatch]:
    """Cut a stream into batches at the given indices."""
    edges = [0, *sorted(at for at in cuts if at < len(documents)), len(documents)]
    return [
        sketched(documents[start:stop], settings, first=start) for start, stop in pairwise(edges)
    ]


def judged(texts: Sequence[str | Document], settings: Settings) -> list[Verdict]:
    """Judge a stream in one batch, with a new index."""
    with open_index(settings) as index:
        return pass_through(index, [sketched(texts, settings)], settings)
