"""What is due, as tables: ``10+5`` is a segment of documents 10 to 14, a ``*`` marks a busy one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest

from streamdedup.dedup.rule import NO_LIMIT
from streamdedup.index.layout import MOST_DOCUMENTS, FileEntry, SegmentEntry, ShardEntry
from streamdedup.index.upkeep import (
    MOST_IN_PART,
    RUN_SLOTS,
    SLICE_SLOTS,
    SLICES,
    UpkeepLimits,
    expired,
    free_slot,
    next_merge,
)
from streamdedup.model import NO_TIMESTAMP
from streamdedup.settings.sections import IndexSettings

LIMITS = UpkeepLimits(
    delta_documents=10, part_documents=200, parts=1, window_documents=500, reach_ms=1000
)
FILE = FileEntry("file", 100, 0)


@dataclass
class Part:
    """A segment, as upkeep sees it."""

    entry: SegmentEntry
    slot: int = -1
    busy: bool = False

    def __str__(self) -> str:
        return f"{self.entry.first}+{self.entry.count}"


def part(written: str, slot: int = -1, *, newest_ms: int = 0, plane_bytes: int = 0) -> Part:
    """Return the segment that a table describes."""
    first, count = map(int, written.lstrip("*").split("+"))
    shard = ShardEntry(FILE, 0, b"", 0, plane_bytes)
    entry = SegmentEntry("name", first, count, 0, newest_ms, FILE, [shard], {})
    return Part(entry, slot, busy=written.startswith("*"))


def parts(written: str) -> list[Part]:
    """Return the segments of a table, newest first; a table has the oldest first."""
    return [part(one) for one in reversed(written.split())]


@pytest.mark.parametrize(
    ("segments", "next_number", "due"),
    [
        ("", 1000, ""),
        ("0+100 100+100", 600, "0+100"),
        ("0+100 100+100", 599, ""),
        ("0+100 100+100 200+400", 700, "0+100 100+100"),
        ("0+100 100+100 200+400", 5000, "0+100 100+100 200+400"),
        ("*0+100 100+100", 700, ""),
        ("0+100 *100+100 200+100", 5000, "0+100"),
    ],
    ids=["empty", "one", "almost", "two", "all", "oldest-busy", "second-busy"],
)
def test_expiry_by_count(segments: str, next_number: int, due: str) -> None:
    """The oldest segments expire when the window has passed all their documents, in order."""
    limits = replace(LIMITS, reach_ms=NO_LIMIT)
    found = expired(parts(segments), next_number, 10**9, limits)
    assert " ".join(map(str, found)) == due


@pytest.mark.parametrize(
    ("newest_ms", "now_ms", "count"),
    [((0, 0), 999, 0), ((0, 1), 1000, 1), ((0, 1), 1001, 2), ((5000, 0), 1001, 0)],
    ids=["neither", "older", "both", "only-the-newer-is-out"],
)
def test_expiry_by_time(newest_ms: tuple[int, int], now_ms: int, count: int) -> None:
    """A segment expires when its newest document is out of reach, and never before an older one."""
    older, newer = part("0+10", newest_ms=newest_ms[0]), part("10+10", newest_ms=newest_ms[1])
    found = expired([newer, older], 20, now_ms, LIMITS)
    assert found == [older, newer][:count]


def test_expiry_needs_a_clock() -> None:
    """Before the clock has started, nothing expires by time."""
    assert expired([part("0+10", newest_ms=-(10**9))], 20, NO_TIMESTAMP, LIMITS) == []


@pytest.mark.parametrize(
    ("segments", "oldest_in_memory", "due", "ends_slice"),
    [
        ("", 0, "", False),
        ("0+100 100+100", 200, "0+100 100+100", True),
        ("0+100 100+100", 199, "", False),
        ("0+200", 200, "", False),
        ("0+100 *100+100", 200, "", False),
        ("0+100 100+100 200+100 300+100", 400, "200+100 300+100", True),
        ("0+100 100+100 200+100 *300+100", 400, "0+100 100+100", True),
        ("0+10 10+10 20+10 30+10 40+10", 50, "", False),
        ("0+10 10+10 20+10 30+10 40+10 50+10", 60, "0+10 10+10 20+10 30+10 40+10 50+10", False),
        ("0+60 60+10 70+10 80+10 90+10 100+10", 110, "", False),
        ("0+60 60+1 61+10 71+10 81+10 91+10 101+10", 111, "60+1 61+10 71+10 81+10 91+10 101+10", 0),
        ("0+9 9+10 19+10 *29+10 39+10 49+10 59+10", 69, "", False),
        ("0+30 30+30 60+30 90+30 120+30 150+10", 160, "", False),
    ],
    ids=[
        "empty",
        "full-slice",
        "slice-still-filling",
        "slice-merged-already",
        "busy",
        "newest-slice-first",
        "next-slice-if-busy",
        "five-runs",
        "six-runs",
        "a-larger-one-is-another-class",
        "only-the-newest-of-a-size",
        "a-run-is-busy",
        "merged-soon-with-the-slice",
    ],
)
def test_merges(segments: str, oldest_in_memory: int, due: str, ends_slice: bool) -> None:
    """A full slice is merged, newest slice first; otherwise six segments of similar size."""
    found = next_merge(parts(segments), oldest_in_memory, (), LIMITS)
    if not due:
        assert found is None
        return
    assert found is not None
    assert (" ".join(map(str, found.members)), found.ends_slice) == (due, bool(ends_slice))
    assert (found.first, found.end) == (found.members[0].entry.first, found.members[-1].entry.end)
    assert found.size == 200 * len(found.members)


def test_runs_of_runs() -> None:
    """Segments of merged runs are merged, if the result is at most half of a part."""
    segments = "0+30 30+30 60+30 90+30 120+30 150+30"
    for part_documents, due in ((719, 0), (720, 6)):
        limits = replace(LIMITS, part_documents=part_documents)
        found = next_merge(parts(segments), 180, (), limits)
        assert (0 if found is None else len(found.members)) == due


@pytest.mark.parametrize(
    ("segments", "waiting", "due"),
    [
        ("0+200 200+10", {5}, "0+200"),
        ("0+200 200+10", {205}, "200+10"),
        ("0+200 200+10", {5, 205}, "200+10"),
        ("*0+200 200+10", {5}, None),
        ("0+200 200+10", {210}, None),
        ("0+100 100+100 200+10", {205}, "0+100 100+100"),
    ],
    ids=["old", "new", "newest-first", "busy", "in-memory", "after-a-full-slice"],
)
def test_erased_documents_are_overwritten(
    segments: str, waiting: set[int], due: str | None
) -> None:
    """A segment that holds a waiting erasure is rewritten, unless another merge comes first."""
    found = next_merge(parts(segments), 210, waiting, LIMITS)
    assert (None if found is None else " ".join(map(str, found.members))) == due


@pytest.mark.parametrize("plane_bytes", [0, 8])
def test_a_rewritten_slice_remains_a_slice(plane_bytes: int) -> None:
    """Its filter is stored again if, and only if, it was stored before."""
    found = next_merge([part("0+200", plane_bytes=plane_bytes)], 200, {5}, LIMITS)
    assert found is not None
    assert found.ends_slice == (plane_bytes > 0)


@pytest.mark.parametrize(
    ("segments", "users", "new", "slot"),
    [
        ({}, [], (0, 10), RUN_SLOTS[0]),
        ({}, [0, 1, 3], (0, 10), RUN_SLOTS[2]),
        ({}, [], (0, 11), SLICE_SLOTS[0]),
        ({}, [*RUN_SLOTS], (0, 10), SLICE_SLOTS[0]),
        ({"0+100": 9}, [9], (100, 50), 9),
        ({"0+100": 9}, [9], (200, 50), SLICE_SLOTS[0]),
        ({"0+100": 9}, [*SLICE_SLOTS], (200, 50), 9),
        ({"0+100": 9, "200+100": 12}, [*SLICE_SLOTS], (400, 50), 12),
        ({"0+10": 0}, [*SLICE_SLOTS], (200, 50), None),
        ({}, [*RUN_SLOTS, *SLICE_SLOTS], (0, 10), None),
    ],
    ids=[
        "run",
        "next-free-run",
        "too-large-for-a-run",
        "no-run-is-free",
        "slot-of-its-slice",
        "slot-of-another-slice",
        "none-is-free",
        "newest-slice-is-shared",
        "none-to-share",
        "all-are-being-cleared",
    ],
)
def test_slots(
    segments: dict[str, int], users: list[int], new: tuple[int, int], slot: int | None
) -> None:
    """A run gets its own slot, a slice its slice's; if none is free, the newest is shared."""
    held = [part(written, slot) for written, slot in segments.items()]
    assert free_slot(held, Counter(users), *new, LIMITS) == slot


@pytest.mark.parametrize(
    ("segments", "oldest_in_memory", "due", "ends_slice"),
    [
        ("0+60 60+40 100+10", 110, "0+60 60+40", False),
        ("0+100 100+60 160+40", 200, "100+60 160+40", False),
        ("0+100 100+100 200+60 260+40", 300, "200+60 260+40", True),
        ("0+100 100+100 200+100 300+60 360+40", 400, "300+60 360+40", False),
        ("0+100 100+100 200+100", 400, "", False),
    ],
    ids=["first", "second", "last", "of-the-next-slice", "merged-already"],
)
def test_parts_of_a_slice(
    segments: str, oldest_in_memory: int, due: str, *, ends_slice: bool
) -> None:
    """Each part of a slice is merged for itself; the last one ends the slice."""
    limits = replace(LIMITS, part_documents=100, parts=3)
    found = next_merge(parts(segments), oldest_in_memory, (), limits)
    written = "" if found is None else " ".join(map(str, found.members))
    assert (written, found is not None and found.ends_slice) == (due, ends_slice)


def test_parts_share_the_slot_of_their_slice() -> None:
    """A part gets the slot of its slice, and the next slice another one."""
    limits = replace(LIMITS, part_documents=100, parts=3)
    held = [part("300+100", 9)]
    for first, slot in ((400, 9), (500, 9), (600, SLICE_SLOTS[0])):
        assert free_slot(held, Counter([9]), first, 50, limits) == slot


def test_no_segment_gets_more_documents_than_it_can_number() -> None:
    """Segments that are too long together, after a huge batch, stay apart."""
    limits = replace(LIMITS, part_documents=MOST_IN_PART)
    fitting = f"0+{MOST_IN_PART - 1} {MOST_IN_PART - 1}+{MOST_DOCUMENTS - MOST_IN_PART + 1}"
    found = next_merge(parts(fitting), 2 * MOST_DOCUMENTS, (), limits)
    assert found is not None
    assert found.end == MOST_DOCUMENTS
    longer = f"0+{MOST_IN_PART - 1} {MOST_IN_PART - 1}+{MOST_DOCUMENTS - MOST_IN_PART + 2}"
    assert next_merge(parts(longer), 2 * MOST_DOCUMENTS, (), limits) is None


@pytest.mark.parametrize(
    ("window_documents", "delta_documents", "part_documents", "parts"),
    [
        (1, 16, 16, 1),
        (1000, 16, 152, 1),
        (50_000_000, 65_536, 7_180_307, 1),
        (50_000_000, 16, 7_142_867, 1),
        (250_000_000, 65_536, 11_917_245, 3),
        (1_000_000_000, 65_536, 14_289_460, 10),
        (1_000_000_000, 1_048_576, 14_345_633, 10),
    ],
)
def test_slices_cover_the_window(
    window_documents: int, delta_documents: int, part_documents: int, parts: int
) -> None:
    """Seven slices hold the window and what is on its way; a slice is at least one delta."""
    settings = IndexSettings(window_documents=window_documents, delta_documents=delta_documents)
    limits = UpkeepLimits.of(settings)
    assert (limits.part_documents, limits.parts) == (part_documents, parts)
    most = window_documents + 4 * delta_documents
    assert SLICES * limits.slice_documents >= most or part_documents == delta_documents
    # The last run of a part may reach into the next part.
    assert part_documents + delta_documents <= MOST_DOCUMENTS
