"""The index as its callers see it: what comes back, what is refused, and in which words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.errors import (
    IndexDamaged,
    IndexFull,
    IndexLocked,
    IndexMismatch,
    IndexUnusable,
)
from streamdedup.formats import changelog
from streamdedup.index.header import FORMAT
from streamdedup.index.manifest import Manifest
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.model import Candidates, DocumentColumns, Position, SourceRange
from streamdedup.settings.sections import Settings
from streamdedup.sketch.texts import unpack_text
from tests.support.builders import (
    COLUMNS,
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
from tests.support.paths import ROOT

WIDTH = COLUMNS


def key(number: int) -> int:
    """Return a band key; small numbers lie in the bits that the index does not store."""
    return number << 40


def hits(found: Candidates) -> dict[tuple[int, int], list[int]]:
    """Return the numbers found under each row and column."""
    grouped: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, column, number in zip(
        found.hit_rows.tolist(), found.hit_columns.tolist(), found.hit_numbers.tolist(), strict=True
    ):
        grouped[row, column].append(number)
    return grouped


def fill(index: Index, batches: list[list[int]]) -> None:
    """Apply one update for each batch of documents, whose keys are all the same one."""
    for batch in batches:
        first = index.next_number
        documents = columns([[key(each)] * WIDTH for each in batch], first)
        index.apply(update_of(documents, first), index.applied + 1)


def test_everything_comes_back(tmp_path: Path) -> None:
    """Ids, positions, times, namespaces and signatures are read back as they were written."""
    documents = columns(
        [[key(1)] * WIDTH, [key(2)] * WIDTH], ids=["x" * 5000, "\x00é\U0001f600"], topic="t" * 400
    )
    documents.namespaces[:] = [2**64 - 1, 7]
    documents = replace(documents, event_times_ms=np.array([-(2**62), 2**62], dtype=np.int64))
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        index.apply(update_of(documents, 0), 1)
        in_memory = index.probe(documents)
    with open_index(settings) as index:
        on_disk = index.probe(documents)
    for candidates in (in_memory, on_disk):
        compare(candidates, documents)


def compare(candidates: Candidates, documents: DocumentColumns) -> None:
    """Compare all that is stored of some documents."""
    found = candidates.documents
    np.testing.assert_array_equal(candidates.effective_times_ms, documents.event_times_ms)
    assert found.ids == documents.ids
    assert found.positions == documents.positions
    np.testing.assert_array_equal(found.event_times_ms, documents.event_times_ms)
    np.testing.assert_array_equal(found.namespaces, documents.namespaces)
    np.testing.assert_array_equal(found.sketches.signatures, documents.sketches.signatures)


def test_replays_are_told(tmp_path: Path) -> None:
    """A probe says which positions were judged, and which of them are in the index."""
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        update = update_of(columns([[key(1)] * WIDTH], 5), 0)
        ranges = (SourceRange(TOPIC, 0, 3, 8),)
        index.apply(replace(update, ranges=ranges), 1)
        before = index.probe(columns([[key(9)] * WIDTH] * 4, 4))
    with open_index(settings) as index:
        for found in (before, index.probe(columns([[key(9)] * WIDTH] * 4, 4))):
            assert found.already_judged.tolist() == [True, True, True, True]
            assert found.already_kept == {1}
        assert index.next_offset(TOPIC, 0) == 8
        assert index.next_offset(TOPIC, 1) == index.next_offset("another", 0) == 0
        assert not index.probe(columns([[key(1)] * WIDTH], 8)).already_judged.any()


def test_apply_twice(tmp_path: Path) -> None:
    """An update that is applied again, at the same or an earlier offset, changes nothing."""
    with open_index(small_settings(tmp_path)) as index:
        update = update_of(columns([[key(1)] * WIDTH]), 0)
        index.apply(update, 7)
        before = index.stats()
        index.apply(update, 7)
        index.apply(update, 3)
        assert index.stats() == before


def test_gap(tmp_path: Path) -> None:
    """An update that does not go on where the index ends is refused."""
    with open_index(small_settings(tmp_path)) as index:
        index.apply(update_of(columns([[key(1)] * WIDTH]), 0), 1)
        with pytest.raises(IndexDamaged, match=r"next document has number 1"):
            index.apply(update_of(columns([[key(2)] * WIDTH], 5), 5), 2)


def test_changelog_that_begins_late(tmp_path: Path) -> None:
    """A new index begins where the changelog does, and is opened again there."""
    settings = small_settings(tmp_path, delta_documents=16)
    with open_index(settings, "changelog") as index:
        for step in range(40):
            number = 1_000_000 + step
            index.apply(update_of(columns([[key(step)] * WIDTH], number), number), step + 1)
        index.settle()
    with open_index(settings, "changelog") as index:
        found = index.probe(columns([[key(0)] * WIDTH, [key(39)] * WIDTH], 9))
        assert found.numbers.tolist() == [1_000_000, 1_000_039]
        assert (index.next_number, index.stats().documents) == (1_000_040, 40)


@pytest.mark.parametrize(("signature", "width"), [(16, 8), (15, 9)], ids=["keys", "signature"])
def test_other_widths(signature: int, width: int, tmp_path: Path) -> None:
    """An update whose sketches are of another width is refused, and not half written."""
    with open_index(small_settings(tmp_path)) as index:
        update = update_of(columns([[key(1)] * width], num_bytes=signature), 0)
        with pytest.raises(IndexDamaged, match="width"):
            index.apply(update, 1)
        assert index.is_new


def test_notes(tmp_path: Path) -> None:
    """What the transport notes is kept with the update, until noted anew."""
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        assert index.note("file") is None
        index.apply(
            update_of(columns([[key(1)] * WIDTH]), 0), 1, {"file": b"1", "x" * 3000: b"long"}
        )
        index.apply(update_of(columns([[key(2)] * WIDTH], 1), 1), 2, {"file": b"2"})
    with open_index(settings) as index:
        assert (index.note("file"), index.note("x" * 3000)) == (b"2", b"long")


@pytest.mark.parametrize("log", [LOCAL_LOG, "changelog"], ids=["tail", "changelog"])
def test_crash(log: str, tmp_path: Path) -> None:
    """Without a changelog everything is back; with one it is known from where to read again."""
    settings = small_settings(tmp_path, delta_documents=16)
    index = open_index(settings, log)
    fill(index, [[number] * 3 for number in range(15)])
    index.settle()
    durable = index.stats().durable
    assert 0 < durable < 15
    index._release()  # noqa: SLF001 - a crash: nothing more is written
    with open_index(settings, log) as index:
        assert index.applied == (15 if log == LOCAL_LOG else durable)
        assert index.next_number == 3 * index.applied
        fill(index, [[number] * 3 for number in range(index.applied, 15)])
        found = hits(index.probe(columns([[key(each)] * WIDTH for each in range(15)], 500)))
    assert found == {
        (row, column): [3 * row, 3 * row + 1, 3 * row + 2]
        for row in range(15)
        for column in range(WIDTH)
    }


@given(
    batches=st.lists(st.lists(st.integers(0, 5), max_size=9), max_size=20),
    bucket_size=st.sampled_from([1, 3, 64]),
    probes=st.lists(st.integers(0, 6), max_size=3),
)
@examples(30)
def test_flushes_change_nothing(
    batches: list[list[int]], bucket_size: int, probes: list[int]
) -> None:
    """The same stream has the same candidates, whatever is in memory, in runs, or merged."""
    seen = []
    for delta_documents, shards in ((16, 1), (32, 9), (65_536, 2)):
        with tempfile.TemporaryDirectory() as folder:
            settings = small_settings(
                Path(folder),
                shards=shards,
                bucket_size=bucket_size,
                delta_documents=delta_documents,
                window_documents=50,
            )
            with open_index(settings) as index:
                fill(index, batches)
                index.settle()
                oldest = index.next_number - 50
                found = hits(index.probe(columns([[key(each)] * WIDTH for each in probes], 10**6)))
                seen.append({at: [n for n in found[at] if n >= oldest] for at in found})
                seen[-1] = {at: numbers for at, numbers in seen[-1].items() if numbers}
    assert seen[0] == seen[1] == seen[2]


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


def test_other_log(tmp_path: Path) -> None:
    """The index of another changelog is refused, and both are named."""
    open_index(small_settings(tmp_path)).close()
    with pytest.raises(IndexMismatch, match="belongs to the embedded mode, not to changelog other"):
        open_index(small_settings(tmp_path), "changelog other")


@pytest.mark.damages_index
def test_other_format(tmp_path: Path) -> None:
    """An index of another format is refused, and both formats are named."""
    settings = small_settings(tmp_path)
    open_index(settings).close()
    rewrite_header(tmp_path, {"format": 99})
    with pytest.raises(IndexMismatch, match=f"index format 99, this release reads {FORMAT}"):
        open_index(settings)


@pytest.mark.damages_index
@pytest.mark.parametrize("raw", ["no JSON", [], {"format": FORMAT}], ids=str)
def test_unreadable_header(raw: object, tmp_path: Path) -> None:
    """A header that is no JSON, or lacks a field, is damage."""
    settings = small_settings(tmp_path)
    open_index(settings).close()
    rewrite_header(tmp_path, raw)
    with pytest.raises(IndexDamaged, match="header"):
        open_index(settings)


def rewrite_header(directory: Path, content: object) -> None:
    """Put something else where the header stands; a text as it is."""
    raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    with (
        closing(Manifest(directory, None)) as manifest,
        manifest._lmdb.begin(write=True, db=manifest._meta) as txn,  # noqa: SLF001
    ):
        txn.put(b"header", raw)


@pytest.mark.parametrize("shards", [1, 3, 9, 64])
def test_other_shards(shards: int, tmp_path: Path) -> None:
    """Segments keep the shards that they were written with; merged ones get the new number."""
    probes = columns([[key(each)] * WIDTH for each in range(8)], 10**6)
    with open_index(small_settings(tmp_path, shards=2, delta_documents=16)) as index:
        fill(index, [[number] * 8 for number in range(4)])
        index.flush()
        index.settle()
    with open_index(small_settings(tmp_path, shards=shards, delta_documents=16)) as index:
        before = hits(index.probe(probes))
        fill(index, [[number] * 8 for number in range(4, 24)])
        index.flush()
        index.settle()
        assert index.stats().merges > 0
        after = hits(index.probe(probes))
    assert {at: after[at] for at in before} == before
    assert len(before) == 4 * WIDTH
    assert len(after) == 8 * WIDTH


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
            "from tests.support.builders import open_index, small_settings\n"
            "index = open_index(small_settings(Path(sys.argv[1])))\n"
            "print('open', flush=True); time.sleep(600)"
        )
        root = ROOT
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
        os._exit(outcome_of(small_settings(tmp_path / "index")))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def outcome_of(settings: Settings) -> int:
    """Open an index; return 0 if that works, 1 if it is unusable and 2 for any other error."""
    try:
        open_index(settings).close()
    except IndexUnusable:
        return 1
    except BaseException:  # noqa: BLE001 - whatever it is, it must not be
        return 2
    return 0


class TestNoRoom:
    """A full disk, or the most that the index may take of it."""

    CODE = """
import resource, sys
from pathlib import Path
from streamdedup.errors import IndexFull
from tests.support.builders import columns, open_index, small_settings, update_of

settings = small_settings(Path(sys.argv[1]), delta_documents=2048)
index = open_index(settings, sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    for step in range(1000):
        first = index.next_number
        documents = columns([[key << 40] * 9 for key in range(first, first + 100)], first)
        index.apply(update_of(documents, first), step + 1)
        print(index.applied, flush=True)
    index.close()
except Exception as error:
    print(type(error).__name__, error, sep="|", file=sys.stderr)
"""

    @pytest.mark.parametrize("log", [LOCAL_LOG, "changelog"], ids=["tail", "changelog"])
    @pytest.mark.parametrize("limit", [30_000, 100_000])
    def test_files_cannot_grow(self, log: str, limit: int, tmp_path: Path) -> None:
        """What the system refuses to write is said in one line, and costs nothing that was in."""
        ended = subprocess.run(
            [sys.executable, "-c", self.CODE, str(tmp_path), log, str(limit)],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        kind, _, message = ended.stderr.strip().partition("|")
        assert kind in {"IndexFull", "IndexUnusable"}, ended.stderr
        assert str(tmp_path) in message
        done = int(ended.stdout.split()[-1]) if ended.stdout else 0
        with open_index(small_settings(tmp_path, delta_documents=2048), log) as index:
            if log == LOCAL_LOG:
                assert index.applied >= done
            number = index.next_number
            assert number == 100 * index.applied
            found = index.probe(columns([[key(each)] * WIDTH for each in range(number)], 10**6))
            assert found.numbers.tolist() == list(range(number))

    def test_disk_budget(self, tmp_path: Path) -> None:
        """At the budget the index stops with one line; with a larger one it goes on."""
        settings = small_settings(tmp_path, delta_documents=1024)
        index_settings = settings.index.model_copy(update={"disk_budget": 1024**2})
        small = settings.model_copy(update={"index": index_settings})
        index = open_index(small, "changelog")
        with pytest.raises(IndexFull, match=r"no room left.*raise index\.disk_budget"):
            fill(index, [list(range(at, at + 512)) for at in range(0, 100_000, 512)])
        assert 0 < index.stats().bytes_used < 2 * 1024**2
        assert index.room().bytes_left < 1024**2
        with pytest.raises(IndexFull):
            index.close()
        with open_index(settings, "changelog") as index:
            done = index.next_number
            assert done > 0
            fill(index, [list(range(done, done + 512))])
            found = index.probe(columns([[key(each)] * WIDTH for each in (0, done + 511)], 10**6))
            assert found.numbers.tolist() == [0, done + 511]


def test_long_names(tmp_path: Path) -> None:
    """Topics and paths longer than a key of the store are told apart."""
    topics = ["/" + "directory/" * 300 + end for end in ("a", "b")]
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        for number, topic in enumerate(topics):
            documents = columns([[key(number)] * WIDTH], number, topic=topic)
            index.apply(update_of(documents, number), number + 1)
    with open_index(settings) as index:
        assert [index.next_offset(topic, 0) for topic in topics] == [1, 2]
        found = index.probe(columns([[key(0)] * WIDTH], 0, topic=topics[1]))
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
        with closing(Manifest(tmp_path / "mixed", None, readonly=True)) as manifest:
            assert not manifest.checkpoint().has_all_texts

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

    def test_they_are_lost_by_a_crash_as_well(self, tmp_path: Path) -> None:
        """A document without its text that only the tail holds counts as one."""
        self.fill(tmp_path, verify="exact")
        settings = small_settings(tmp_path)
        index = open_index(settings)
        batch = sketched(["2 a third text"], settings, first=2)
        index.apply(update_of(batch.documents, 2), 2)
        index._release()  # noqa: SLF001 - a crash: nothing more is written
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
