"""``streamdedup index`` as it is typed, on indexes of the embedded mode."""

from __future__ import annotations

import datetime as dt
import io
import json
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.batches import IndexUpdate
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.index.view import View
from streamdedup.model import Document
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import IndexSettings, Settings
from tests.support.builders import columns, examples, open_index, small_settings, update_of
from tests.support.commands import CommandLine

Command = Callable[..., str]

STORIES = [
    "The council met on Monday to settle the budget for the coming year, and went home late.",
    "A storm closed the harbour, and all ferries stayed in port until the wind had turned.",
    "The harvest festival opens on Saturday with music, cider and a race of painted barrows.",
    "Engineers have found the crack in the bridge, which stays closed to lorries for a month.",
    "This is the document that has to be erased, and its text is as long as the other four.",
]
NEAR = STORIES[0].replace("late", "very late")


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Return a function that runs ``streamdedup index`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return partial(_run, CommandLine(capfd))


def _run(command_line: CommandLine, code: int, *arguments: str) -> str:
    return command_line(code, "index", *arguments)


def make_index(directory: Path, *, verify: str = "estimate", **index: Any) -> list[str]:
    """Make an index of the stories; return the ids."""
    ids = [f"story-{number}" for number in range(len(STORIES))]
    settings = Settings(
        dedup=DedupSettings.model_validate({"verify": verify}), index=IndexSettings(**index)
    )
    with Deduplicator(settings, directory) as deduplicator:
        documents = [Document(text, id_) for text, id_ in zip(STORIES, ids, strict=True)]
        assert all(verdict.kept for verdict in deduplicator.process(documents))
    return ids


def all_bytes(directory: Path) -> bytes:
    """Return everything that the files below a directory hold."""
    return b"".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def test_stats_counts_what_is_there(command: Command) -> None:
    """Documents, times, bytes by part and buckets, as text and as JSON."""
    settings = small_settings(Path("ix"), delta_documents=16)
    with open_index(settings) as index:
        for number in range(40):
            keys = [[(number // 4 + 1) << 32 | column for column in range(9)]]
            documents = columns(keys, number)
            times = np.array([1_000 * number], dtype=np.int64)
            index.apply(IndexUpdate(number, documents, (), times), number + 1)
        index.settle()
    found = json.loads(command(0, "stats", "ix", "--json"))
    assert found["documents"] == found["next_number"] == found["applied"] == 40
    assert found["log"] == "the embedded mode"
    assert (found["oldest_ms"], found["newest_ms"], found["clock_ms"]) == (0, 39_000, None)
    # Ten keys of four documents each, in nine columns.
    assert found["buckets"] == {"1": 0, "2": 0, "3-4": 90}
    assert found["largest_bucket"] == 4
    parts = found["bytes_by_part"]
    assert sum(parts.values()) == found["bytes_used"]
    assert parts["postings"] >= 7 * 9 * 40
    assert found["erased"] == found["erased_waiting"] == found["tail_documents"] == 0
    output = command(0, "stats", "ix")
    assert "40, next number 40" in output
    assert "1970-01-01 00:00:39 UTC" in output
    assert "the largest holds 4" in " ".join(output.split())


def test_stats_of_a_tail_and_of_stored_filters(command: Command) -> None:
    """Documents that a kill leaves in the tail count too; a whole slice stores its filter."""
    settings = small_settings(Path("ix"), delta_documents=16, window_documents=200)
    index = open_index(settings)
    for number in range(100):
        index.apply(update_of(columns([[number << 32] * 9], number), number), number + 1)
        index.settle()
    index._release()  # noqa: SLF001 - a kill
    found = json.loads(command(0, "stats", "ix", "--json"))
    assert found["tail_documents"] > 0
    assert found["next_number"] == found["applied"] == 100
    assert found["filters"]
    assert all(0 < each["fill"] < 0.6 for each in found["filters"])


@given(
    keys=st.lists(st.lists(st.integers(0, 3), min_size=9, max_size=9), min_size=1, max_size=60),
    size=st.integers(1, 5),
)
@examples(25)
def test_a_look_finds_what_the_index_finds(
    tmp_path_factory: pytest.TempPathFactory, keys: list[list[int]], size: int
) -> None:
    """In segments and in the tail, with buckets of any size."""
    settings = small_settings(tmp_path_factory.mktemp("view"), delta_documents=16, bucket_size=size)
    wanted = [[key << 40 for key in each] for each in keys]
    index = open_index(settings)
    for number, each in enumerate(wanted):
        index.apply(update_of(columns([each], number), number), number + 1)
    asked = columns(wanted, 1_000, topic="asked")
    expected = index.probe(asked)
    index._release()  # noqa: SLF001 - a kill, so that there is a tail
    with View(settings.index.directory) as view:
        found = view.probe(asked, size)
        assert view.next_number == len(keys)
    for name in ("hit_rows", "hit_columns", "hit_numbers", "numbers", "effective_times_ms"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name
    assert found.documents.ids == expected.documents.ids
    assert found.documents.positions == expected.documents.positions


@pytest.mark.parametrize("verify", ["estimate", "exact"])
def test_explain_tells_the_verdict_and_its_reasons(command: Command, verify: str) -> None:
    """The verdict is that of the engine; each candidate has its similarity and its reasons."""
    make_index(Path("ix"), verify=verify)
    [found] = json.loads(command(0, "explain", "ix", "--text", NEAR, "--json"))
    assert found["outcome"] == "duplicate"
    assert found["original"] == "story-0"
    assert found["normalised_characters"] == len(NEAR)
    assert found["shingles"] == len(
        {NEAR.lower()[start : start + 5] for start in range(len(NEAR) - 4)}
    )
    [candidate] = found["candidates"]
    assert candidate["matches"]
    assert candidate["position"] == ["python", 0, 0]
    assert 0 < len(candidate["bands"]) == found["bands_hit"] <= 20
    assert not candidate["same_text"]
    if verify == "exact":
        first, second = (
            {t.lower()[start : start + 5] for start in range(len(t) - 4)}
            for t in (NEAR, STORIES[0])
        )
        assert candidate["exact"] == pytest.approx(len(first & second) / len(first | second))
    else:
        assert candidate["exact"] is None
    output = command(0, "explain", "ix", "--text", NEAR)
    assert output.startswith("duplicate of story-0: their similarity is ")
    [found] = json.loads(command(0, "explain", "ix", "--text", STORIES[0], "--json"))
    [candidate] = found["candidates"]
    assert candidate["same_text"]
    assert candidate["bands"] == list(range(20))
    assert found["bands_hit"] == 20


@pytest.mark.parametrize(
    ("arguments", "settings", "why"),
    [
        (("--text", "Nothing of the kind was ever told here"), {}, "no document shares a band"),
        (("--text", " \n"), {}, "nothing is left of the text"),
        (("--text", STORIES[0], "--namespace", "b"), {}, "no document shares a band"),
        (("--text", STORIES[0]), {"index": {"window_documents": 2}}, "1 outside the window"),
        (("--text", NEAR), {"dedup": {"threshold": 0.99, "bands": 20, "rows": 7}}, "1 below the"),
    ],
    ids=["stranger", "blank", "namespace", "window", "threshold"],
)
def test_explain_says_why_a_text_would_be_kept(
    command: Command, arguments: tuple[str, ...], settings: dict[str, Any], why: str
) -> None:
    """Each reason to keep a text has its sentence."""
    make_index(Path("ix"))
    Path("c.yaml").write_text(json.dumps(settings))
    output = command(0, "explain", "ix", *arguments, "--config", "c.yaml")
    assert output.startswith("kept: ")
    assert why in output


def test_explain_finds_a_document_without_its_text(command: Command) -> None:
    """Its keys are read back from the postings; bands that full buckets dropped are counted."""
    settings = small_settings(Path("ix"), bucket_size=2, delta_documents=16)
    with open_index(settings) as index:
        # All share the first column; the oldest documents are pushed out of its bucket.
        keys = [
            [1 << 40, *((10 * number + each) << 40 for each in range(8))] for number in range(5)
        ]
        keys[4][3] = keys[0][3]
        for number, each in enumerate(keys):
            index.apply(update_of(columns([each], number), number), number + 1)
    [found] = json.loads(command(0, "explain", "ix", "--id", "id-0", "--json"))
    assert (found["number"], found["bands"], found["bands_known"]) == (0, 8, 7)
    assert [each["id"] for each in found["candidates"]] == ["id-0", "id-4"]
    assert found["candidates"][1]["bands"] == [3]
    assert found["normalised_characters"] is None
    output = command(0, "explain", "ix", "--id", "id-0")
    assert "full buckets have dropped it in 1" in output
    assert "itself" in output
    assert "holds no document with id x" in command(4, "explain", "ix", "--id", "x")


def test_explain_leaves_the_window_alone(command: Command) -> None:
    """Explaining, counting and erasing do not expire documents."""
    with pytest.warns(UserWarning, match="index.window has no effect"):
        ids = make_index(Path("ix"), window_documents=5, window=dt.timedelta(days=1))
    before = all_bytes(Path("ix", "segments"))
    Path("narrow.yaml").write_text("index: {window_documents: 1}\n")
    command(0, "explain", "ix", "--text", "x", "--config", "narrow.yaml")
    command(0, "stats", "ix")
    assert all_bytes(Path("ix", "segments")) == before
    command(0, "delete", "ix", "--id", ids[4], "--yes")
    with View(Path("ix")) as view:
        assert [view.numbers_of(each) for each in ids] == [[0], [1], [2], [3], []]


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.zst", "directory"])
def test_an_export_comes_back_as_it_was(command: Command, suffix: str) -> None:
    """The copy gives the same verdicts, and continues the same job."""
    make_index(Path("ix"))
    source = "ix"
    if suffix != "directory":
        source = f"x{suffix}"
        output = json.loads(command(0, "export", "ix", source, "--json"))
        assert output == {"documents": 5, "file": source, "bytes": Path(source).stat().st_size}
        assert not list(Path().glob(".streamdedup-*"))
    assert json.loads(command(0, "import", source, "iy", "--json"))["documents"] == 5
    assert sorted(each.name for each in Path("iy").iterdir()) == ["lock", "manifest", "segments"]
    assert all_bytes(Path("iy", "segments")) == all_bytes(Path("ix", "segments"))
    with Deduplicator(Settings(), Path("iy")) as deduplicator:
        [verdict] = deduplicator.process([Document(NEAR)])
        assert verdict.original is not None
        assert verdict.original.id == "story-0"
        # Offsets continue, so that no document is judged twice.
        assert verdict.position.offset == len(STORIES)


@pytest.mark.damages_index
def test_an_export_leaves_other_files_alone(command: Command) -> None:
    """Neither a file with a similar name, nor a link with the name of the export, is replaced."""
    make_index(Path("ix"))
    Path("x.tar.partial").write_text("notes")
    command(0, "export", "ix", "x.tar")
    Path("y.tar.partial").write_text("notes")
    Path("ix/segments").rename("segments")
    command(12, "export", "ix", "y.tar")
    assert {Path(f"{name}.tar.partial").read_text() for name in "xy"} == {"notes"}
    Path("link.tar").symlink_to("nowhere")
    assert "link.tar already exists" in command(4, "export", "ix", "link.tar")


def test_an_export_takes_the_tail_along(command: Command) -> None:
    """Documents that a kill leaves in the manifest are part of the export."""
    settings = small_settings(Path("ix"), delta_documents=16)
    index = open_index(settings)
    for number in range(20):
        index.apply(update_of(columns([[number << 40] * 9], number), number), number + 1)
    index._release()  # noqa: SLF001 - a kill
    command(0, "export", "ix", "x.tar")
    command(0, "import", "x.tar", "iy")
    with open_index(small_settings(Path("iy"), delta_documents=16)) as copy:
        assert copy.next_number == copy.applied == 20
        assert copy.numbers_of("id-19") == [19]


@pytest.mark.damages_index
def test_damage_does_not_travel(command: Command) -> None:
    """A changed byte stops an export and an import, and both leave no files behind."""
    make_index(Path("ix"))
    command(0, "export", "ix", "x.tar")
    [damaged] = Path("ix/segments").glob("*/documents.mdb")
    content = bytearray(damaged.read_bytes())
    content[-100] ^= 1
    damaged.write_bytes(content)
    assert "documents.mdb is not what was written" in command(12, "export", "ix", "y.tar")
    assert "documents.mdb is damaged" in command(4, "import", "ix", "iy")
    damaged.write_bytes(content[:-1])
    assert "documents.mdb is not what was written" in command(12, "export", "ix", "y.tar")
    assert not list(Path().glob("y.tar*"))

    exported = Path("x.tar").read_bytes()
    offset = exported.index(b"segments/") + 1024
    for broken, complaint in (
        (
            exported[:offset] + bytes([exported[offset] ^ 1]) + exported[offset + 1 :],
            "is damaged: its checksum",
        ),
        (exported[: len(exported) // 2], "is not a complete export"),
        (b"no archive at all" * 100, "is not a complete export"),
        (b"", "is not a complete export"),
    ):
        Path("z.tar").write_bytes(broken)
        assert complaint in command(4, "import", "z.tar", "iy")
        assert [each.name for each in Path("iy").iterdir()] == ["lock"]
    command(0, "import", "x.tar", "iy")


@pytest.mark.parametrize("name", ["../evil", "/evil", "segments/00000000/other", "evil"])
def test_an_import_writes_only_what_the_manifest_names(command: Command, name: str) -> None:
    """A file that was added to an export is rejected, whatever its path."""
    make_index(Path("ix"))
    command(0, "export", "ix", "x.tar")
    with tarfile.open("x.tar") as old, tarfile.open("z.tar", "w") as new:
        for member in old:
            new.addfile(member, old.extractfile(member))
        extra = tarfile.TarInfo(name)
        extra.size = 4
        new.addfile(extra, io.BytesIO(b"evil"))
    assert "is not part of the index" in command(4, "import", "z.tar", "iy")
    assert [each.name for each in Path("iy").iterdir()] == ["lock"]


@pytest.mark.damages_index
def test_check_finds_damage(command: Command) -> None:
    """Damage gives exit code 12 and a line for each problem; a sound index gives 0."""
    make_index(Path("ix"))
    assert command(0, "check", "ix").startswith("ok: 5 documents, 1 segments, ")
    assert json.loads(command(0, "check", "ix", "--json"))["ok"]
    [damaged] = Path("ix/segments").glob("*/documents.mdb")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert "ix: 1 problems were found" in command(12, "check", "ix")
    assert "ix: 1 problems were found" in command(12, "check", "ix", "--json")
    assert "holds no index" in command(9, "check", "nowhere")


def test_erased_bytes_are_gone(command: Command) -> None:
    """Id and text are gone from the directory, and the other documents still match."""
    ids = make_index(Path("ix"), verify="exact")
    assert ids[4].encode() in all_bytes(Path("ix"))
    output = json.loads(command(0, "delete", "ix", "--id", ids[4], "--yes", "--json"))
    assert output == {"documents": 1, "waiting": 0, "log": "the embedded mode"}
    assert ids[4].encode() not in all_bytes(Path("ix"))
    assert ids[3].encode() in all_bytes(Path("ix"))
    [found] = json.loads(command(0, "explain", "ix", "--text", STORIES[4], "--json"))
    assert (found["outcome"], found["candidates"]) == ("kept", [])
    assert json.loads(command(0, "stats", "ix", "--json"))["erased"] == 1
    with Deduplicator(Settings(dedup=DedupSettings(verify="exact")), "ix") as deduplicator:
        verdicts = deduplicator.process([Document(STORIES[4]), Document(STORIES[3])])
    assert [verdict.kept for verdict in verdicts] == [True, False]
    Path("c.yaml").write_text("dedup: {verify: exact}\nindex: {window_documents: 100}\n")
    command(0, "delete", "ix", "--id", ids[3], "--yes", "--config", "c.yaml")
    assert ids[3].encode() not in all_bytes(Path("ix"))
    assert ids[2].encode() in all_bytes(Path("ix"))


def test_the_tail_is_erased_too(command: Command) -> None:
    """The free pages of the manifest do not contain the document."""
    settings = small_settings(Path("ix"))
    index = open_index(settings)
    ids = ["id-to-stay", "id-to-go"]
    index.apply(update_of(columns([[1 << 40] * 9, [2 << 40] * 9], ids=ids), 0), 1)
    index._release()  # noqa: SLF001 - a kill
    assert b"id-to-go" in all_bytes(Path("ix"))
    command(0, "delete", "ix", "--id", "id-to-go", "--yes")
    assert b"id-to-go" not in all_bytes(Path("ix"))
    assert b"id-to-stay" in all_bytes(Path("ix"))
    with open_index(settings) as index:
        assert index.numbers_of("id-to-stay") == [0]
        assert index.next_number == 2


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("stats", "nowhere"), 9, "nowhere holds no index"),
        (("explain", "nowhere", "--text", "x"), 9, "nowhere holds no index"),
        (("export", "nowhere", "x.tar"), 9, "nowhere holds no index"),
        (("delete", "nowhere", "--id", "x", "--yes"), 9, "nowhere holds no index"),
        (("import", "nowhere", "iy"), 4, "cannot read nowhere"),
        (("import", "ix", "ix"), 9, "already holds an index"),
        (("import", "ix", "iy", "--for-changelog"), 3, "--for-changelog needs --config"),
        (("export", "ix", "x.zip"), 4, "must end with one of .tar"),
        (("export", "ix", "there.tar"), 4, "there.tar already exists"),
        (("export", "ix", "no/x.tar"), 4, "cannot write no/x.tar"),
        (("explain", "ix"), 3, "give one of --text and --id"),
        (("explain", "ix", "--text", "x", "--id", "y"), 3, "give one of --text and --id"),
        (("explain", "ix", "--text", "x", "-c", "seed.yaml"), 11, "other parameters"),
        (("delete", "ix", "--id", "story-0"), 3, "give --yes"),
        (("delete", "ix", "--id", "story-0", "--id", "y", "--yes"), 4, "no document with id y"),
    ],
)
def test_mistakes_are_one_line(
    command: Command, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    """Mistakes change nothing and create no directory."""
    make_index(Path("ix"))
    Path("there.tar").touch()
    Path("seed.yaml").write_text("dedup: {seed: 7}\n")
    before = all_bytes(Path("ix"))
    assert complaint in command(code, *arguments)
    assert not Path("nowhere").exists()
    assert not Path("iy", "manifest").exists()
    assert all_bytes(Path("ix", "segments")) in before
    with View(Path("ix")) as view:
        assert view.numbers_of("story-0") == [0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("stats", "ix"),
        ("explain", "ix", "--text", "x"),
        ("export", "ix", "x.tar"),
        ("import", "ix", "iy"),
        ("delete", "ix", "--id", "x", "--yes"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_open_index_is_left_alone(command: Command, arguments: tuple[str, ...]) -> None:
    """Each command needs exclusive access to the index."""
    with open_index(small_settings(Path("ix"))):
        assert "is open in this process already" in command(10, *arguments)
