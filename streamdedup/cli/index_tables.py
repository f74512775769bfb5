"""*Blocking* (prints). The contents of an index and the explanation of a verdict, for people."""

from __future__ import annotations

import datetime as dt

from rich.table import Table
from rich.text import Text

from streamdedup.admin.explain import Candidate, Explanation
from streamdedup.cli import screen
from streamdedup.index.view import Contents

_CANDIDATES = 10
"""Candidates in a table; the JSON has all of them."""


def print_contents(contents: Contents) -> None:
    """Print the documents, bytes, buckets and filters of an index."""
    console = screen.standard_output()
    documents = max(1, contents.documents)
    facts = {
        "log": contents.log,
        "documents": f"{contents.documents:,}, next number {contents.next_number:,}",
        "segments": f"{contents.segments}, and {contents.tail_documents:,} documents in the tail",
        "applied": f"{contents.applied:,}",
        "erased": f"{contents.erased:,}, {contents.erased_waiting:,} not overwritten yet",
        "clock": _time(contents.clock_ms),
        "times": f"{_time(contents.oldest_ms)} to {_time(contents.newest_ms)}",
        "texts": "stored" if contents.holds_texts else "not stored",
        "disk": f"{contents.bytes_used:,} bytes, {contents.bytes_used / documents:.1f} a document",
    }
    for name, value in facts.items():
        console.print(f"{name:<11} {value}", markup=False)
    parts = [
        (name, f"{size:,}", f"{size / documents:.1f}")
        for name, size in contents.bytes_by_part.items()
    ]
    console.print(screen.table("Bytes", ("part", "bytes", "a document"), parts))
    buckets = [(name, f"{count:,}") for name, count in contents.buckets.items()]
    title = f"Buckets; the largest holds {contents.largest_bucket:,}"
    console.print(screen.table(title, ("documents", "buckets"), buckets))
    if contents.filters:
        filters = [
            (one.segment, f"{one.documents:,}", f"{one.fill:.1%}") for one in contents.filters
        ]
        columns = ("segment", "documents", "bits set")
        console.print(screen.table("Stored filters", columns, filters))


def print_explanation(explanation: Explanation, *, configured: bool) -> None:
    """Print a verdict, its reasons and its candidates; ``configured``: with a settings file."""
    console = screen.standard_output()
    subject = "" if explanation.number is None else "a copy now: "
    console.print(Text(subject + explanation.why, style="bold"), soft_wrap=True)
    if explanation.number is not None:
        topic, partition, offset = explanation.position or ("", 0, 0)
        effective = _time(explanation.effective_time_ms)
        console.print(f"number     {explanation.number:,}", markup=False)
        console.print(f"position   {topic}:{partition}:{offset}", markup=False, soft_wrap=True)
        console.print(f"event time {_time(explanation.event_time_ms)}, effective {effective}")
    else:
        console.print(
            f"text       {explanation.normalised_characters:,} characters after normalisation, "
            f"{explanation.shingles:,} shingles"
        )
    missing = explanation.bands - explanation.bands_known
    console.print(
        f"bands      {explanation.bands_hit} of {explanation.bands} lead to candidates"
        + (f"; full buckets have dropped it in {missing}" if missing else "")
    )
    console.print(
        f"settings   threshold {explanation.threshold:g}, window of "
        f"{explanation.window_documents:,} documents, from number {explanation.oldest_in_window:,}"
        + ("" if configured else " (no --config: defaults)")
    )
    if explanation.candidates:
        console.print(_candidates(explanation))


def _candidates(explanation: Explanation) -> Table:
    candidates = explanation.candidates
    title = f"{len(candidates):,} candidates"
    if len(candidates) > _CANDIDATES:
        title += f", the first {_CANDIDATES}"
    rows = [
        (
            Text(one.id),
            f"{one.number:,}",
            f"{len(one.bands)}{' + text' if one.same_text else ''}",
            f"{one.similarity:.3f}",
            "" if one.exact is None else f"{one.exact:.3f}",
            "itself" if one.number == explanation.number else _verdict(one),
        )
        for one in candidates[:_CANDIDATES]
    ]
    return screen.table(
        title, ("document", "number", "bands", "estimate", "exact", "verdict"), rows
    )


def _verdict(candidate: Candidate) -> str:
    if candidate.matches:
        return "match"
    if not candidate.same_namespace:
        return "another namespace"
    return "below the threshold" if candidate.in_window else "outside the window"


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return "unknown"
    try:
        moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
