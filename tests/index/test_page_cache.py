"""The background reads files after a start, as far as memory allows; look-ups ask for pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamdedup.index import chores, layers
from streamdedup.index.chores import Prefetch, Readahead, free_memory
from streamdedup.index.postings import addresses_of
from streamdedup.index.segment import Segment
from streamdedup.index.store import Index
from tests.index.damage import build_sound_index, update
from tests.support.builders import COLUMNS, open_index, small_settings
from tests.support.patience import wait_until
from tests.testkit.page_cache import drop_from_cache, resident_share

MEMORY = 100 * 1024**3


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """An index of several segments."""
    directory = build_sound_index(tmp_path / "index")
    with open_index(small_settings(directory, delta_documents=16, window_documents=200)) as opened:
        opened.settle()
        # Its own readahead is over.
        chores = opened._layers._background._chores  # noqa: SLF001 - nothing else tells
        wait_until(lambda: chores[0].due_in() is None, "the files to be read")
        yield opened


def held(index: Index) -> list[Segment]:
    """Return the segments, newest first."""
    return index._layers._segments.held  # noqa: SLF001 - what is read


def test_addresses_lie_in_the_files(index: Index) -> None:
    """Whatever is looked up, only pages of the files are asked for, and each search has some."""
    segments = held(index)
    subs = np.stack([segment.subs for segment in segments])
    table = np.array([(each.slot, each.entry.first, each.entry.count) for each in segments])
    keys = np.random.default_rng(1).integers(0, 2**64, (50, COLUMNS), dtype=np.uint64)
    keys[0], keys[1] = 0, 2**64 - 1
    masks = np.full(keys.shape, 2**64 - 1, dtype=np.uint64)
    out = np.empty(4 * keys.size * len(segments), dtype=np.int64)
    count = addresses_of(keys, masks, table, subs, out)
    assert count > 0
    starts = {
        file.start: file.start + file.path.stat().st_size for s in segments for file in s.files
    }
    for address in out[:count].tolist():
        assert any(start <= address < end for start, end in starts.items())
    pages = Prefetch()
    pages.set_files([file for segment in segments for file in segment.files])
    pages.pages(out[:count])
    assert addresses_of(keys, masks, table, subs, out[:9]) == 8
    assert addresses_of(keys, np.zeros_like(masks), table, subs, out) == 0


def test_pages_are_read(index: Index) -> None:
    """Asking for a page brings it into memory."""
    file = held(index)[-1].documents
    drop_from_cache(file.path)
    pages = Prefetch()
    pages.set_files([file])
    pages.pages(file.start + np.arange(0, file.path.stat().st_size, 4096))
    wait_until(lambda: resident_share([file.path]) == 1, "the pages")


def test_only_who_waited_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on at first, and while more than every tenth look-up reads a page."""
    read = iter([100, 100 + 8 * 11, 600, 600 + 8 * 10, 2000, 3000])
    monkeypatch.setattr(chores, "_blocks_read", lambda: next(read))
    pages = Prefetch()
    states = [pages.is_on]
    for _ in range(3):
        with pages.measure(100):
            pass
        states.append(pages.is_on)
    assert states == [True, True, False, True]


def test_blocks_of_this_thread() -> None:
    """The system counts what this thread reads from disks, and never counts down."""
    before = chores._blocks_read()  # noqa: SLF001
    assert chores._blocks_read() >= before >= 0  # noqa: SLF001


def test_the_same_is_found(index: Index) -> None:
    """A look-up finds the same, whether it asks or not."""
    numbers = np.arange(index.oldest_number, index.next_number)
    numbers = numbers[~np.isin(numbers, (5, 120))]
    lookup = index._layers.lookup  # noqa: SLF001
    answers = []
    for is_on in (True, False):
        lookup._prefetch.is_on = is_on  # noqa: SLF001
        answers.append(index.documents(numbers)[1].ids)
    assert answers[0] == answers[1]


def read_by(index: Index, free: int) -> int:
    """Return how many bytes are read when so many are free."""
    reader = Readahead(held(index), lambda: free)
    while reader.due_in() is not None:
        reader.step()
    reader.step()  # there is nothing left to do
    return reader.bytes_read


def test_everything_is_read_once(index: Index) -> None:
    """All files are read, and then the chore is done."""
    assert read_by(index, MEMORY) == sum(segment.entry.size for segment in held(index))


def test_postings_come_first(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that does not suffice gets the newest postings; documents come last."""
    monkeypatch.setattr(chores, "READ_BYTES", 4096)
    newest = held(index)[0]
    size = newest.shards[0].file.path.stat().st_size
    reader = Readahead(held(index), lambda: size + 4095)
    opened: list[Path] = []
    for segment in held(index):
        for file in segment.files:
            monkeypatch.setattr(file, "read_through", noting(opened, file.path, file.read_through))
    while reader.due_in() is not None:
        reader.step()
    assert opened == [newest.shards[0].file.path]
    assert reader.bytes_read == size
    reader = Readahead(held(index), lambda: MEMORY)
    while reader.due_in() is not None:
        reader.step()
    assert [path.name for path in opened[-len(held(index)) :]] == ["documents.mdb"] * len(
        held(index)
    )


def noting(opened: list[Path], path: Path, read: object) -> object:
    """Return a way to read a file that notes the path first."""

    def read_through(part_bytes: int) -> Iterator[int]:
        opened.append(path)
        return read(part_bytes)  # type: ignore[operator, no-any-return]

    return read_through


@pytest.mark.parametrize("free", [0, 4 * 1024**2 - 1])
def test_without_free_memory_nothing_is_read(index: Index, free: int) -> None:
    """Reading would only replace what is in memory."""
    assert read_by(index, free) == 0


def test_an_error_ends_the_reading(index: Index) -> None:
    """It would come again with each step, and the background would do nothing else."""
    reader = Readahead(held(index), lambda: int("max"))
    with pytest.raises(ValueError, match="max"):
        reader.step()
    reader.step()
    assert reader.due_in() is None


def test_files_that_are_gone(index: Index) -> None:
    """A closed file, and one that cannot be opened, are left out."""
    gone = [
        Segment(index.directory, segment.entry, len(segment.subs) // 256) for segment in held(index)
    ]
    sizes = [segment.entry.size for segment in gone]
    gone[0].close()
    file = gone[1].documents
    file.path = file.path.with_name("missing.mdb")
    reader = Readahead(gone, lambda: MEMORY)
    while reader.due_in() is not None:
        reader.step()
    assert reader.bytes_read == sum(sizes[1:]) - gone[1].entry.documents.size
    for segment in gone[1:]:
        segment.close()


def test_the_background_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads everything, and jobs are done meanwhile and afterwards."""
    readers: list[Readahead] = []

    class Watched(Readahead):
        def __init__(self, segments: list[Segment]) -> None:
            super().__init__(segments, lambda: MEMORY)
            readers.append(self)

    monkeypatch.setattr(layers, "Readahead", Watched)
    directory = build_sound_index(tmp_path / "index")
    settings = small_settings(directory, delta_documents=16, window_documents=200)
    with open_index(settings) as index:
        index.settle()
    readers.clear()
    with open_index(settings) as index:
        size = sum(segment.entry.size for segment in held(index))
        wait_until(lambda: readers[0].due_in() is None, "the files to be read")
        assert readers[0].bytes_read == size
        index.apply(update(143, 1), index.applied + 1)
        index.flush()
        assert index.stats().flushes == 1


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files below a folder."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:    1000 kB\nHugePages_Total: 0\n"}
GROUP_2 = {
    "proc/self/cgroup": "0::/kube/pod\n",
    "sys/fs/cgroup/kube/pod/memory.max": "500000\n",
    "sys/fs/cgroup/kube/pod/memory.current": "300000\n",
    "sys/fs/cgroup/kube/pod/memory.stat": "anon 1\ninactive_file 50000\nactive_file 10000\n",
    "sys/fs/cgroup/kube/memory.max": "max\n",
}
GROUP_1 = {
    "proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/abc\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "400000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "100000\n",
    "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 5\ntotal_active_file 6\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 0),
        (MEMINFO, 1_024_000),
        ({**MEMINFO, **GROUP_2}, 260_000),
        ({**MEMINFO, **GROUP_2, "sys/fs/cgroup/kube/memory.max": "100000"}, 100_000),
        ({**MEMINFO, **GROUP_2, "sys/fs/cgroup/memory.max": "90000"}, 90_000),
        ({**MEMINFO, **GROUP_1}, 300_011),
        ({**MEMINFO, **GROUP_2, "sys/fs/cgroup/kube/pod/memory.max": "1"}, 0),
    ],
    ids=["unknown", "machine", "group", "parent", "container", "group-1", "full"],
)
def test_free_memory(files: dict[str, str], free: int, tmp_path: Path) -> None:
    """The least of what the machine and each control group leave, their page cache included."""
    assert free_memory(tree(tmp_path, files)) == free


def test_free_memory_of_this_machine() -> None:
    """Linux tells it, and it is less than all memory."""
    total = chores._fields(Path("/proc/meminfo"))["MemTotal:"] * 1024
    assert 0 < free_memory() < total
