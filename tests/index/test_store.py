"""The index: against a dict, over crashes between its files, and against strangers and damage."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup import changelog
from streamdedup.errors import (
    IndexDamaged,
    IndexFull,
    IndexLocked,
    IndexMismatch,
    IndexUnusable,
    StreamdedupError,
)
from streamdedup.index import store
from streamdedup.index.environment import FORMAT
from streamdedup.index.shard import Shard
from streamdedup.index.store import Index
from streamdedup.model import Candidates, IndexUpdate, Position, SourceRange
from streamdedup.settings import Settings
from streamdedup.sketch.texts import NOT_STORED, unpack_text
from tests.builders import (
    COLUMNS,
    MIB,
    TOPIC,
    columns,
    examples,
    open_index,
    parameters,
    pass_through,
    sketched,
    small_settings,
    update_of,
)

WIDTH = COLUMNS
KEYS = st.lists(st.integers(0, 3), min_size=WIDTH, max_size=WIDTH)
BATCHES = st.lists(st.lists(KEYS, max_size=4), max_size=6)
TEXTS = [f"text number {number} of {number * 7919} words" for number in range(30)]


def hits(found: Candidates) -> dict[tuple[int, int], list[int]]:
    """Return the numbers found under each row and column."""
    grouped: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, column, number in zip(
        found.hit_rows.tolist(), found.hit_columns.tolist(), found.hit_numbers.tolist(), strict=True
    ):
        grouped[row, column].append(number)
    return grouped


def fill(index: Index, batches: list[list[list[int]]]) -> None:
    """Apply one update for each batch."""
    for batch in batches:
        index.apply(
            update_of(columns(batch, index.next_number), index.next_number), index.applied + 1
        )


@given(
    batches=BATCHES,
    probes=st.lists(KEYS, max_size=4),
    shards=st.sampled_from([1, 2, 9]),
    bucket_size=st.sampled_from([1, 2, 64]),
    window=st.sampled_from([1, 3, 100]),
    reopen=st.booleans(),
)
@examples(120)
def test_against_a_dict(
    batches: list[list[list[int]]],
    probes: list[list[int]],
    shards: int,
    bucket_size: int,
    window: int,
    reopen: bool,
) -> None:
    """A probe finds, in each bucket, the newest documents of the window, and all about them."""
    everything = [keys for batch in batches for keys in batch]
    oldest = max(0, len(everything) - window)
    with tempfile.TemporaryDirectory() as directory:
        settings = small_settings(
            Path(directory), shards=shards, bucket_size=bucket_size, window_documents=window
        )
        with open_index(settings) as index:
            fill(index, batches)
            found = index.probe(columns(probes, 1000))
        if reopen:
            with open_index(settings) as index:
                found = index.probe(columns(probes, 1000))
    expected = {}
    for row, keys in enumerate(probes):
        for column, key in enumerate(keys):
            bucket = [n for n, each in enumerate(everything) if each[column] == key]
            bucket = [n for n in bucket[-bucket_size:] if n >= oldest]
            if bucket:
                expected[row, column] = bucket
    assert hits(found) == expected
    assert found.numbers.tolist() == sorted({n for bucket in expected.values() for n in bucket})
    assert found.documents.ids == [f"id-{n}" for n in found.numbers.tolist()]
    assert [at.offset for at in found.documents.positions] == found.numbers.tolist()


def test_everything_comes_back(tmp_path: Path) -> None:
    """Ids, positions, times, namespaces and signatures are read back as they were written."""
    documents = columns(
        [[1] * WIDTH, [2] * WIDTH], ids=["x" * 5000, "\x00é\U0001f600"], topic="t" * 400
    )
    documents = documents.take([0, 1])
    documents.event_times_ms[:] = [-(2**62), 2**62]
    documents.namespaces[:] = [2**64 - 1, 7]
    with open_index(small_settings(tmp_path)) as index:
        index.apply(update_of(documents, 0), 1)
        found = index.probe(documents).documents
    assert found.ids == documents.ids
    assert found.positions == documents.positions
    np.testing.assert_array_equal(found.event_times_ms, documents.event_times_ms)
    np.testing.assert_array_equal(found.namespaces, documents.namespaces)
    np.testing.assert_array_equal(found.sketches.signatures, documents.sketches.signatures)


def test_replays_are_told(tmp_path: Path) -> None:
    """A probe says which positions were judged, and which of them are in the index."""
    with open_index(small_settings(tmp_path)) as index:
        update = update_of(columns([[1] * WIDTH], 5), 0)
        ranges = (SourceRange(TOPIC, 0, 3, 8),)
        index.apply(IndexUpdate(0, update.documents, ranges), 1)
        found = index.probe(columns([[9] * WIDTH] * 4, 4))
        assert found.already_judged.tolist() == [True, True, True, True]
        assert found.already_kept == {1}
        assert index.next_offset(TOPIC, 0) == 8
        assert index.next_offset(TOPIC, 1) == index.next_offset("another", 0) == 0
        assert not index.probe(columns([[1] * WIDTH], 8)).already_judged.any()


def test_apply_twice(tmp_path: Path) -> None:
    """An update that is applied again, at the same or an earlier offset, changes nothing."""
    with open_index(small_settings(tmp_path)) as index:
        update = update_of(columns([[1] * WIDTH]), 0)
        index.apply(update, 7)
        before = index.stats()
        index.apply(update, 7)
        index.apply(update, 3)
        assert index.stats() == before


def test_gap(tmp_path: Path) -> None:
    """An update that does not go on where the index ends is refused."""
    with open_index(small_settings(tmp_path)) as index:
        index.apply(update_of(columns([[1] * WIDTH]), 0), 1)
        with pytest.raises(IndexDamaged, match=r"next document has number 1"):
            index.apply(update_of(columns([[2] * WIDTH], 5), 5), 2)


def test_changelog_that_begins_late(tmp_path: Path) -> None:
    """A new index begins where the changelog does, and expires from there on."""
    with open_index(small_settings(tmp_path, window_documents=2)) as index:
        for step in range(4):
            number = 1_000_000 + step
            index.apply(update_of(columns([[1] * WIDTH], number), number), step + 1)
        assert set(index.probe(columns([[1] * WIDTH], 9)).numbers.tolist()) == {
            1_000_002,
            1_000_003,
        }
        assert index.stats().postings == 2 * WIDTH


@pytest.mark.parametrize(("signature", "width"), [(16, 8), (15, 9)], ids=["keys", "signature"])
def test_other_widths(signature: int, width: int, tmp_path: Path) -> None:
    """An update whose sketches are of another width is refused, and not half written."""
    with open_index(small_settings(tmp_path)) as index:
        update = update_of(columns([[1] * width], num_bytes=signature), 0)
        with pytest.raises(IndexDamaged, match="width"):
            index.apply(update, 1)
        assert index.is_new


def test_notes(tmp_path: Path) -> None:
    """What the transport notes is kept with the update, until noted anew."""
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        assert index.note("file") is None
        index.apply(update_of(columns([[1] * WIDTH]), 0), 1, {"file": b"1", "x" * 3000: b"long"})
        index.apply(update_of(columns([[2] * WIDTH], 1), 1), 2, {"file": b"2"})
    with open_index(settings) as index:
        assert (index.note("file"), index.note("x" * 3000)) == (b"2", b"long")


class TestWindow:
    """Documents leave the index when newer ones have taken their place."""

    def test_postings_and_positions_go(self, tmp_path: Path) -> None:
        """Ten times the window later nothing is left of the oldest, in any of the databases."""
        with open_index(small_settings(tmp_path, window_documents=10)) as index:
            fill(index, [[[number] * WIDTH for _ in range(5)] for number in range(20)])
            stats = index.stats()
            assert stats.postings == 10 * WIDTH
            # Documents go with the update after the one that took out their postings.
            assert stats.documents == 15
            assert index._main.entries(index._positions) == 15  # noqa: SLF001

    def test_one_update_longer_than_the_window(self, tmp_path: Path) -> None:
        """Documents that leave the window with the update that brought them are never found."""
        settings = small_settings(tmp_path, window_documents=3)
        with open_index(settings) as index:
            fill(index, [[[number] * WIDTH for number in range(8)], [[99] * WIDTH]])
            found = index.probe(columns([[0] * WIDTH, [7] * WIDTH], 50))
            assert found.numbers.tolist() == [7]
            assert index.stats().postings == 3 * WIDTH

    def test_smaller_window(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A window made smaller is reached in steps, so that no update grows without limit."""
        monkeypatch.setattr(store, "_MOST_OVERDUE", 4)
        with open_index(small_settings(tmp_path)) as index:
            fill(index, [[[number] * WIDTH for number in range(30)]])
        with open_index(small_settings(tmp_path, window_documents=2)) as index:
            left = []
            for _ in range(9):
                fill(index, [[[99] * WIDTH]])
                left.append(index.stats().postings // WIDTH)
        assert left == [26, 22, 18, 14, 10, 6, 2, 2, 2]


class Crash(Exception):  # noqa: N818 - the process is gone
    """What stands for the end of the process."""


def crash_at(monkeypatch: pytest.MonkeyPatch, shard: int) -> None:
    """Let the next update end before the given shard is written."""
    written = iter(range(100))
    apply = Shard.apply

    def until(self: Shard, *arguments: object) -> None:
        if next(written) == shard:
            raise Crash
        apply(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Shard, "apply", until)


@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("window", [8, 1000])
@pytest.mark.parametrize("reopened", [True, False], ids=["reopened", "used-further"])
class TestCrash:
    """A crash between the documents' commit and a shard's."""

    def settings(self, directory: Path, window: int) -> Settings:
        """Settings with three shards."""
        return small_settings(directory, shards=3, window_documents=window, bucket_size=3)

    def test_caught_up(
        self,
        shard: int,
        window: int,
        reopened: bool,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The shards get their part before the index is used again, as if nothing had been."""
        batches = [
            [[number % 4] * WIDTH for number in range(start, start + 5)] for start in range(6)
        ]
        probes = columns([[number] * WIDTH for number in range(4)], 500)
        results = []
        for name in ("smooth", "crashed"):
            settings = self.settings(tmp_path / name, window)
            index = open_index(settings)
            fill(index, batches[:4])
            if name == "crashed":
                with monkeypatch.context() as faults:
                    crash_at(faults, shard)
                    with pytest.raises(Crash):
                        fill(index, batches[4:5])
                if reopened:
                    index.close()
                    index = open_index(settings)
            else:
                fill(index, batches[4:5])
            seen = [hits(index.probe(probes)), index.stats().postings]
            fill(index, batches[5:])
            seen += [hits(index.probe(probes)), index.stats().postings, index.next_number]
            index.close()
            results.append(seen)
        assert results[0] == results[1]


def test_shard_two_updates_behind(tmp_path: Path) -> None:
    """A shard that lost more than the last update is not mended in silence."""
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        fill(index, [[[1] * WIDTH], [[2] * WIDTH]])
    kept = (tmp_path / "shard-001" / "data.mdb").read_bytes()
    with open_index(settings) as index:
        fill(index, [[[3] * WIDTH], [[4] * WIDTH]])
    (tmp_path / "shard-001" / "data.mdb").write_bytes(kept)
    with pytest.raises(IndexDamaged, match="shard-001"):
        open_index(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("profile", "news"),
        ("profile_version", 2),
        ("shingle_unit", "word"),
        ("shingle_size", 4),
        ("shingle_bag", True),
        ("variant", "classic"),
        ("num_perm", 33),
        ("value_bits", 64),
        ("signature_bits", 8),
        ("bands", 7),
        ("rows", 3),
        ("seed", 2),
    ],
    ids=str,
)
def test_other_parameters(name: str, value: int | str, tmp_path: Path) -> None:
    """An index that was built with another parameter is refused, and the parameter is named."""
    settings = small_settings(tmp_path)
    Index(settings.index, parameters(), "log", texts=False).close()
    with pytest.raises(IndexMismatch, match=f"{name} .*settings say {value}"):
        Index(settings.index, parameters(**{name: value}), "log", texts=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: open_index(small_settings(path, shards=3)), "index.shards is 3"),
        (lambda path: open_index(small_settings(path), "changelog topic other"), "topic other"),
    ],
    ids=["shards", "log"],
)
def test_other_layout(change: Callable[[Path], Index], message: str, tmp_path: Path) -> None:
    """An index with other shards or of another changelog is refused, with what differs."""
    open_index(small_settings(tmp_path)).close()
    with pytest.raises(IndexMismatch, match=message):
        change(tmp_path)


def test_other_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of another format is refused, and both formats are named."""
    with monkeypatch.context() as future:
        future.setattr("streamdedup.index.store.FORMAT", 99)
        open_index(small_settings(tmp_path)).close()
    with pytest.raises(IndexMismatch, match=f"index format 99, this release reads {FORMAT}"):
        open_index(small_settings(tmp_path))


def test_mixed_up_files(tmp_path: Path) -> None:
    """Two shards whose directories were swapped are refused."""
    open_index(small_settings(tmp_path)).close()
    (tmp_path / "shard-000").rename(tmp_path / "aside")
    (tmp_path / "shard-001").rename(tmp_path / "shard-000")
    (tmp_path / "aside").rename(tmp_path / "shard-001")
    with pytest.raises(IndexMismatch, match="this is shard-001, not shard-000"):
        open_index(small_settings(tmp_path))


class TestLock:
    """One process owns an index."""

    def test_second_in_this_process(self, tmp_path: Path) -> None:
        """The index cannot be opened twice, and can be again once it is closed."""
        with open_index(small_settings(tmp_path)), pytest.raises(IndexLocked):
            open_index(small_settings(tmp_path))
        open_index(small_settings(tmp_path)).close()

    def test_second_process(self, tmp_path: Path) -> None:
        """Another process is refused while this one lives, and let in when it was killed."""
        code = (
            "import sys, time; from pathlib import Path\n"
            "from tests.builders import open_index, small_settings\n"
            "index = open_index(small_settings(Path(sys.argv[1])))\n"
            "print('open', flush=True); time.sleep(600)"
        )
        root = Path(__file__).parents[2]
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(root)},
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"open\n"
            with pytest.raises(IndexLocked, match="another process"):
                open_index(small_settings(tmp_path))
            other.send_signal(signal.SIGKILL)
        open_index(small_settings(tmp_path)).close()

    def test_close_twice(self, tmp_path: Path) -> None:
        """Closing what is closed does nothing."""
        index = open_index(small_settings(tmp_path))
        index.close()
        index.close()


@pytest.mark.parametrize("place", ["file/index", "file"], ids=["under-a-file", "a-file"])
def test_unusable_directory(place: str, tmp_path: Path) -> None:
    """A place that can hold no directory is refused, by its name."""
    (tmp_path / "file").touch()
    with pytest.raises(IndexUnusable, match="file"):
        open_index(small_settings(tmp_path / place))


def test_unwritable_directory(tmp_path: Path) -> None:
    """A directory that may not be written is refused, by its name."""
    tmp_path.chmod(0o500)
    pid = os.fork()
    if pid == 0:  # Root may write everywhere, so it is a child that is nobody who tries.
        if os.geteuid() == 0:
            os.setuid(65534)
        os._exit(use(small_settings(tmp_path / "index")))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_full(tmp_path: Path) -> None:
    """A full map is said, the update can be had again with a larger one, and nothing is lost."""
    small = small_settings(tmp_path, map_size=MIB)
    texts = [random.Random(number).randbytes(60).hex() for number in range(3000)]
    batches = [sketched(texts[at : at + 50], small, first=at) for at in range(0, len(texts), 50)]
    with open_index(small) as index, pytest.raises(IndexFull, match=r"index\.map_size"):
        pass_through(index, batches, small)
    with open_index(small_settings(tmp_path, map_size=64 * MIB)) as index:
        done = index.next_offset(TOPIC, 0)
        assert 0 < done < len(texts)
        pass_through(index, batches[done // 50 :], small)
        grown = hits(index.probe(batches[3].documents)), index.stats().postings
    with open_index(small_settings(tmp_path / "roomy", map_size=64 * MIB)) as index:
        pass_through(index, batches, small)
        assert grown == (hits(index.probe(batches[3].documents)), index.stats().postings)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a sound index, by environment."""
    directory = tmp_path_factory.mktemp("sound")
    settings = small_settings(directory)
    with open_index(settings) as index:
        for at in range(0, 30, 10):
            pass_through(index, [sketched(TEXTS[at : at + 10], settings, first=at)], settings)
    files = directory.glob("*/data.mdb")
    return {path.parent.name: path.read_bytes() for path in files}


def write(directory: Path, files: dict[str, bytes]) -> Settings:
    """Lay files out as an index."""
    for name, content in files.items():
        (directory / name).mkdir(parents=True)
        (directory / name / "data.mdb").write_bytes(content)
    return small_settings(directory)


ENVIRONMENTS = pytest.mark.parametrize("name", ["documents", "shard-000", "shard-001"])


class TestDamage:
    """Files that are not what was written are refused in our words, and never end the process."""

    @ENVIRONMENTS
    @pytest.mark.parametrize("pages", [1, 2, 3, 5])
    def test_cut(self, name: str, pages: int, sound: dict[str, bytes], tmp_path: Path) -> None:
        """A file that was cut is refused, before anything behind its end is read."""
        assert len(sound[name]) > pages * 4096
        settings = write(tmp_path, {**sound, name: sound[name][: pages * 4096]})
        with pytest.raises(IndexDamaged, match=name):
            open_index(settings)

    @ENVIRONMENTS
    @pytest.mark.parametrize("size", [0, 10, 100], ids=["empty", "10-bytes", "100-bytes"])
    def test_hardly_anything_left(
        self, name: str, size: int, sound: dict[str, bytes], tmp_path: Path
    ) -> None:
        """A file that was emptied is not taken for a new one beside the others."""
        settings = write(tmp_path, {**sound, name: sound[name][:size]})
        with pytest.raises((IndexDamaged, IndexUnusable), match=r"index|shard|documents"):
            open_index(settings)

    @ENVIRONMENTS
    def test_gone(self, name: str, sound: dict[str, bytes], tmp_path: Path) -> None:
        """An environment that is gone is not made anew beside the others."""
        files = {key: content for key, content in sound.items() if key != name}
        with pytest.raises(IndexDamaged):
            open_index(write(tmp_path, files))

    @ENVIRONMENTS
    def test_no_magic(self, name: str, sound: dict[str, bytes], tmp_path: Path) -> None:
        """A file that is something else is refused."""
        with pytest.raises(IndexDamaged, match=name):
            open_index(write(tmp_path, {**sound, name: b"\xff" * len(sound[name])}))

    @ENVIRONMENTS
    @pytest.mark.parametrize("page", [0, 1])
    def test_flipped_header(
        self, name: str, page: int, sound: dict[str, bytes], tmp_path: Path
    ) -> None:
        """Each flipped byte in a header is refused in our words or does no harm at all."""
        outcomes = set()
        for at in range(page * 4096, page * 4096 + 152, 5):
            content = bytearray(sound[name])
            content[at] ^= 0xFF
            settings = write(tmp_path / str(at), {**sound, name: bytes(content)})
            pid = os.fork()
            if pid == 0:  # A crash would end this process, so it is a child that looks.
                os._exit(use(settings))
            outcomes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        assert outcomes <= {0, 1}


def use(settings: Settings) -> int:
    """Use an index; return 0 if that works, 1 for an error of ours and 2 for any other."""
    try:
        with open_index(settings) as index:
            batch = sketched(TEXTS, settings, first=100)
            pass_through(index, [batch], settings)
    except StreamdedupError:
        return 1
    except BaseException:  # noqa: BLE001 - whatever it is, it must not be
        return 2
    return 0


@pytest.mark.parametrize("raw", [b"no JSON", b"[]", b'{"format":1}'], ids=ascii)
def test_unreadable_header(raw: bytes, tmp_path: Path) -> None:
    """A header that is no JSON, or lacks a field, is damage."""
    settings = small_settings(tmp_path)
    with open_index(settings) as index, index._main.write(0) as txn:  # noqa: SLF001
        index._main.put_note(txn, b"header", raw)  # noqa: SLF001
    with pytest.raises(IndexDamaged, match="header"):
        open_index(settings)


def test_long_names(tmp_path: Path) -> None:
    """Topics and paths longer than a key of the store are told apart."""
    topics = ["/" + "directory/" * 300 + end for end in ("a", "b")]
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        for number, topic in enumerate(topics):
            documents = columns([[number] * WIDTH], number, topic=topic)
            index.apply(update_of(documents, number), number + 1)
    with open_index(settings) as index:
        assert [index.next_offset(topic, 0) for topic in topics] == [1, 2]
        found = index.probe(columns([[0] * WIDTH], 0, topic=topics[1]))
        assert found.already_judged.tolist() == [True]
        assert found.already_kept == frozenset()
        assert found.documents.positions == [Position(topics[0], 0, 0)]


class TestTexts:
    """Stored texts, for exact verification."""

    def fill(self, path: Path, *, verify: Literal["estimate", "exact"]) -> None:
        """Index two documents with the settings, and whatever they have of texts."""
        settings = small_settings(path, verify=verify)
        with open_index(settings) as index:
            first = index.next_number
            batch = sketched([f"{first} the first text", f"{first} one"], settings, first=first)
            index.apply(update_of(batch.documents, first), index.applied + 1)

    def found(self, index: Index, settings: Settings) -> list[bytes]:
        """Return what is stored of the first text."""
        batch = sketched(["0 The FIRST text"], settings, first=99)
        return list(index.probe(batch.documents).documents.texts)

    def test_they_come_back(self, tmp_path: Path) -> None:
        """As they were normalised."""
        self.fill(tmp_path, verify="exact")
        settings = small_settings(tmp_path, verify="exact")
        with open_index(settings) as index:
            assert "0 the first text" in map(unpack_text, self.found(index, settings))

    def test_without_exact_there_are_none(self, tmp_path: Path) -> None:
        """Neither in the documents nor in what a probe returns, though an update bring some."""
        self.fill(tmp_path / "plain", verify="estimate")
        exact = small_settings(tmp_path, verify="exact")
        settings = small_settings(tmp_path / "mixed")
        with open_index(settings) as index:
            batch = sketched(["0 the first text"], exact)
            index.apply(update_of(batch.documents, 0), 1)
            assert self.found(index, settings) == []
            with index._main.read(index._documents) as txn:  # noqa: SLF001
                [stored] = [store._DECODER.decode(value) for _, value in txn.cursor()]  # noqa: SLF001
        assert stored.text == NOT_STORED

    def test_an_index_without_texts_is_refused(self, tmp_path: Path) -> None:
        """One line says what is missing and what to do; as it was it can be used on."""
        self.fill(tmp_path, verify="estimate")
        with pytest.raises(
            IndexMismatch, match=r"without the texts.*set dedup\.verify to estimate"
        ):
            open_index(small_settings(tmp_path, verify="exact"))
        self.fill(tmp_path, verify="estimate")

    def test_an_index_with_texts_can_go_on_without(self, tmp_path: Path) -> None:
        """But then not back, once a document has come without; that it was opened does no harm."""
        self.fill(tmp_path, verify="exact")
        with open_index(small_settings(tmp_path)) as index:
            index.apply(update_of(columns([]), 2), 2)
        self.fill(tmp_path, verify="exact")
        self.fill(tmp_path, verify="estimate")
        with pytest.raises(IndexMismatch, match="without the texts"):
            open_index(small_settings(tmp_path, verify="exact"))

    def test_an_index_of_earlier_releases_has_none(self, tmp_path: Path) -> None:
        """An index that says nothing of texts holds none."""
        self.fill(tmp_path, verify="estimate")
        with (
            open_index(small_settings(tmp_path)) as index,
            index._main.write(index.applied) as txn,  # noqa: SLF001
        ):
            txn.delete(b"texts", db=index._main._meta)  # noqa: SLF001
        with pytest.raises(IndexMismatch, match="without the texts"):
            open_index(small_settings(tmp_path, verify="exact"))

    def test_a_rebuilt_index_compares_texts(self, tmp_path: Path) -> None:
        """What comes back from a changelog's bytes gives the same verdicts, texts compared."""
        words = [f"word{number}" for number in range(20)]
        kept = [" ".join(words[start:]) for start in (0, 6)]
        late = " ".join(words[2:])
        verdicts = []
        for name, through in (("first", False), ("rebuilt", True)):
            settings = small_settings(tmp_path / name, threshold=0.85, verify="exact")
            fingerprint = settings.dedup.sketch_parameters().fingerprint()
            with open_index(settings) as index:
                update = update_of(sketched(kept, settings).documents, 0)
                [entry] = changelog.encode(update, fingerprint, 2**40)
                index.apply(changelog.decode(entry, fingerprint) if through else update, 1)
                verdicts += pass_through(index, [sketched([late], settings, first=9)], settings)
        assert verdicts[0] == verdicts[1]
        [match] = verdicts[0].matches
        assert match.jaccard is not None

    def test_an_update_without_texts_is_refused(self, tmp_path: Path) -> None:
        """A changelog that was written without texts does not fill an index that needs them."""
        batch = sketched(["a text"], small_settings(tmp_path))
        with open_index(small_settings(tmp_path, verify="exact")) as index:
            with pytest.raises(IndexMismatch, match="changelog was written without the texts"):
                index.apply(update_of(batch.documents, 0), 1)
            index.apply(update_of(batch.documents.take([]), 0), 1)
            assert index.next_number == 0
