"""``streamdedup index`` with the indexes of workers: import, rebuild, and erasure."""

from __future__ import annotations

import json
import shutil
import signal
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from deploy.broker.broker import Broker
from streamdedup.admin import maintenance
from streamdedup.index import archive
from streamdedup.index.manifest import Manifest
from tests.support.commands import CommandLine
from tests.support.corpora import stream_of_documents
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka

PART = 100
SETTINGS: dict[str, dict[str, Any]] = {"batch": {"documents": 20}, "index": {"delta_documents": 64}}


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Return a runner of command lines in this process."""
    return CommandLine(capfd)


def copies(documents: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the documents again, under other ids."""
    return [{"id": f"{name}/{document['id']}", "text": document["text"]} for document in documents]


def originals(stage: Stage) -> dict[str, str]:
    """Return the id of the original, by the id of the duplicate."""
    return {
        content["id"]: content["original"]
        for content in (json.loads(record.value) for record in stage.read("duplicates"))
    }


def kept(stage: Stage) -> set[str]:
    """Return the ids of the clean topic."""
    return {json.loads(record.value)["id"] for record in stage.read("clean")}


def distinct(count: int) -> list[dict[str, Any]]:
    """Return long documents with different beginnings."""
    documents, heads = [], set[str]()
    for document in stream_of_documents(4 * count):
        head = document["text"][:60]
        if len(document["text"]) > 400 and head not in heads:
            heads.add(head)
            documents.append(document)
    assert len(documents) >= count
    return documents[:count]


@dataclass(frozen=True)
class Corpus:
    """A corpus that the embedded mode has judged.

    Attributes:
        kept: its kept documents.
        archive: the exported index.
    """

    kept: list[dict[str, Any]]
    archive: Path


def export_corpus(folder: Path, documents: list[dict[str, Any]], command: CommandLine) -> Corpus:
    """Judge documents with the embedded mode, and export its index."""
    lines, index, kept_path = folder / "corpus.jsonl", folder / "corpus", folder / "kept"
    archive = folder / "corpus.tar.zst"
    write_lines(lines, documents)
    command(0, "dedup", lines, "--index", index, "--kept", kept_path)
    command(0, "index", "export", index, archive)
    ids = {json.loads(line)["id"] for line in kept_path.read_text().splitlines()}
    return Corpus([document for document in documents if document["id"] in ids], archive)


def write_lines(path: Path, documents: list[dict[str, Any]]) -> None:
    """Write documents as lines of JSON."""
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))


def assert_duplicates(stage: Stage, documents: list[dict[str, Any]], name: str) -> None:
    """Check that the copies under this name are duplicates of the documents."""
    expected = {f"{name}/{document['id']}": document["id"] for document in documents}
    assert expected.items() <= originals(stage).items()


@pytest.mark.long
def test_a_corpus_seeds_a_stream(broker: Broker, tmp_path: Path, command: CommandLine) -> None:
    """Copies of the corpus are duplicates, through a kill and a lost disk.

    Only a rebuild from the changelog alone loses the corpus, as documented. This is one long test,
    because each step needs the stream and the index of the step before it.
    """
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(**SETTINGS)
    stage.create_topics()
    documents = distinct(2 * PART)
    fresh = documents[PART:]
    corpus = export_corpus(tmp_path, documents[:PART], command)
    assert len(corpus.kept) > PART // 2
    into = (stage.index, "--for-changelog", "-c", stage.config)
    seeding = ("index", "import", corpus.archive, *into)
    imported = json.loads(command(0, *seeding, "--json"))
    assert imported["documents"] == len(corpus.kept)
    assert stage.topics["changelog"] in imported["log"]

    first = copies(corpus.kept[::2], "first") + fresh[: PART // 2]
    stage.produce_json(first)
    total = len(first)
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: total}, worker)
        worker.kill()
    assert_duplicates(stage, corpus.kept[::2], "first")

    # After the kill, the entries of the changelog follow the imported documents.
    second = copies(corpus.kept[1::2], "second") + fresh[PART // 2 :]
    stage.produce_json(second)
    total += len(second)
    stage.run_until_committed({0: total})
    assert_duplicates(stage, corpus.kept[1::2], "second")
    assert stage.read("changelog")

    # After the loss of the disk, the archive and the changelog restore the whole index.
    shutil.rmtree(stage.index)
    command(0, *seeding)
    stream_kept = kept(stage)
    known = corpus.kept + [document for document in fresh if document["id"] in stream_kept]
    stage.produce_json(copies(known, "third"))
    total += len(known)
    stage.run_until_committed({0: total})
    assert {f"third/{document['id']}" for document in known} <= originals(stage).keys()
    assert kept(stage) == stream_kept

    command(0, "index", "rebuild", stage.index, "-c", stage.config, "--yes", "--partial")
    stage.produce_json(copies(corpus.kept, "fourth"))
    stage.run_until_committed({0: total + len(corpus.kept)})
    assert len(kept(stage)) > len(stream_kept) + len(corpus.kept) // 2


def test_an_index_is_bound_only_to_a_fitting_changelog(
    broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """A changelog with other documents, and other parameters, are refused; nothing is left."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(**SETTINGS)
    stage.create_topics()
    documents = distinct(PART)
    lines = tmp_path / "corpus.jsonl"
    write_lines(lines, documents[:5])
    command(0, "dedup", lines, "--index", tmp_path / "corpus")
    bind = ("index", "import", tmp_path / "corpus", tmp_path / "new", "--for-changelog")
    other = stage.variant("other", dedup={"seed": 7})
    assert "seed 1 (the settings say 7)" in command(11, *bind, "-c", other.config)
    stage.produce_json(documents)
    stage.run_until_committed({0: PART})
    complaint = command(11, *bind, "-c", stage.config)
    assert "begins with document 0, the index ends with 5" in complaint
    assert not (tmp_path / "new" / "manifest").exists()
    assert not (tmp_path / "new" / "segments").exists()


def test_an_interrupted_import_leaves_no_index(
    broker: Broker, tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of the import, and before the index is bound to its changelog."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(**SETTINGS)
    stage.create_topics()
    write_lines(tmp_path / "corpus.jsonl", distinct(5))
    command(0, "dedup", tmp_path / "corpus.jsonl", "--index", tmp_path / "corpus")

    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    def import_index(source: Path, directory: Path, _: object) -> int:
        return archive.import_index(source, directory, interrupt)

    into = (tmp_path / "new", "--for-changelog", "-c", stage.config)
    for name, replaced in {"import_index": import_index, "check_continues": interrupt}.items():
        with monkeypatch.context() as patch:
            patch.setattr(maintenance, name, replaced)
            said = command(130, "index", "import", tmp_path / "corpus", *into)
        assert "importing was interrupted" in said
        assert not (tmp_path / "new" / "manifest").exists()
        assert not (tmp_path / "new" / "segments").exists()


def test_a_new_changelog_continues_an_index(
    broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """After the loss of the changelog its index continues; an index of another source must not."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(**SETTINGS)
    stage.create_topics()
    documents = distinct(PART)
    stage.produce_json(documents)
    stage.run_until_committed({0: PART})
    known = kept(stage)
    stage.delete_topic("changelog")
    restarted = stage.variant("restarted", topics={"changelog": f"{stage.name}-changelog-2"})
    restarted.create_topics()
    into = (restarted.index, "--for-changelog", "-c", restarted.config)
    seeding = ("index", "import", stage.index, *into)
    command(0, *seeding)
    again = copies([document for document in documents if document["id"] in known], "again")
    stage.produce_json(again)
    restarted.run_until_committed({0: PART + len(again)})
    assert {document["id"] for document in again} <= originals(stage).keys()
    assert kept(stage) == known

    shutil.rmtree(restarted.index)
    with closing(Manifest(stage.index, None)) as manifest:
        header = replace(manifest.header, log="changelog topic a of cluster b")
        manifest.rebind(header, manifest.checkpoint())
    assert "come from another topic named" in command(11, *seeding)
    assert not (restarted.index / "manifest").exists()


@pytest.mark.long
def test_erased_documents_stay_erased(broker: Broker, tmp_path: Path, command: CommandLine) -> None:
    """Their bytes are overwritten, they match nothing, and a rebuild erases them too.

    This is one long test, because each step needs the index of the step before it.
    """
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(**SETTINGS)
    stage.create_topics()
    documents = distinct(2 * PART)
    victims = [documents[3], documents[PART - 1]]
    for number, victim in enumerate(victims):
        victim["id"] = f"id-to-erase-{number}"
    stage.produce_json(documents[:PART])
    erasing = ("index", "delete", stage.index, "--id", victims[0]["id"], "--id", victims[1]["id"])
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: PART}, worker)
        assert "open in another process" in command(10, *erasing, "--yes", "-c", stage.config)
        worker.kill()
    entries = len(stage.read("changelog"))
    unknown = ("--id", "missing", "--yes", "-c", stage.config)
    assert "no document with id missing" in command(4, *erasing, *unknown)
    assert "give --config" in command(3, *erasing, "--yes")
    assert len(stage.read("changelog")) == entries

    # A worker elsewhere with the same transactional id is fenced before the changelog is written.
    with stage.variant("elsewhere").start_worker() as elsewhere:
        elsewhere.wait_until_ready()
        erased = json.loads(command(0, *erasing, "--yes", "--json", "-c", stage.config))
        assert erased["documents"] == 2
        assert erased["waiting"] == 0
        stage.produce_json(documents[PART : PART + 1])
        elsewhere.assert_ends(8, "taken over")
    assert len(stage.read("changelog")) == entries + 1
    content = b"".join(path.read_bytes() for path in stage.index.rglob("*") if path.is_file())
    assert b"id-to-erase" not in content
    assert documents[4]["id"].encode() in content

    command(0, "index", "rebuild", stage.index, "-c", stage.config, "--yes")
    stats = json.loads(command(0, "index", "stats", stage.index, "--json"))
    assert stats["erased"] == 2
    again = copies([documents[4], *victims], "again")
    stage.produce_json(again)
    stage.run_until_committed({0: PART + 1 + len(again)})
    assert originals(stage)["again/" + documents[4]["id"]] == documents[4]["id"]
    assert {f"again/{victim['id']}" for victim in victims} <= kept(stage)


@pytest.mark.long
def test_a_rebuild_reports_what_the_changelog_has_lost(
    broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """It replays the whole changelog, and refuses a truncated one before it removes anything."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(**SETTINGS)
    stage.create_topics()
    documents = distinct(2 * PART)
    stage.produce_json(documents)
    stage.run_until_committed({0: 2 * PART})
    rebuild = ("index", "rebuild", stage.index, "-c", stage.config, "--json")
    assert "give --yes" in command(3, *rebuild)
    before = json.loads(command(0, "index", "stats", stage.index, "--json"))
    rebuilt = json.loads(command(0, *rebuild, "--yes"))
    after = json.loads(command(0, "index", "stats", stage.index, "--json"))
    same = ("documents", "applied", "next_number", "buckets", "clock_ms", "log")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert rebuilt["documents"] == after["documents"] == len(kept(stage))
    assert rebuilt["lost"] == 0

    stage.delete_records("changelog", 5)
    assert "does not begin with document 0" in command(5, *rebuild, "--yes")
    assert json.loads(command(0, "index", "stats", stage.index, "--json")) == after
    rebuilt = json.loads(command(0, *rebuild, "--yes", "--partial"))
    assert rebuilt["lost"] > 0
    assert rebuilt["documents"] == after["documents"] - rebuilt["lost"]
    # Documents that have left the window do not count as lost.
    narrow = stage.variant("narrow", index={"window_documents": rebuilt["documents"] - 1})
    shutil.move(stage.index, narrow.index)
    command(0, "index", "rebuild", narrow.index, "-c", narrow.config, "--yes")


def test_the_index_of_another_log_is_not_removed(
    broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """A rebuild only removes an index that it can recreate."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    lines = tmp_path / "corpus.jsonl"
    lines.write_text('{"id": "a", "text": "A story."}\n')
    command(0, "dedup", lines, "--index", stage.index)
    complaint = command(11, "index", "rebuild", stage.index, "-c", stage.config, "--yes")
    assert "holds the index of the embedded mode" in complaint
    assert json.loads(command(0, "index", "stats", stage.index, "--json"))["documents"] == 1
