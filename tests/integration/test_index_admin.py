"""``streamdedup index`` on the indexes of workers: seeded, rebuilt, and with documents erased."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from deploy.broker.broker import Broker
from streamdedup.index.manifest import Manifest
from tests.support.commands import CommandLine
from tests.support.corpora import stream_of_documents
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka

PART = 100
SETTINGS: dict[str, dict[str, Any]] = {"batch": {"documents": 20}, "index": {"delta_documents": 64}}


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Return what runs a command line in this process."""
    return CommandLine(capfd)


def copies(documents: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the documents again, under other ids."""
    return [{"id": f"{name}/{each['id']}", "text": each["text"]} for each in documents]


def originals(stage: Stage) -> dict[str, str]:
    """Return which document each duplicate repeats."""
    return {
        content["id"]: content["original"]
        for content in (json.loads(record.value) for record in stage.read("duplicates"))
    }


def kept(stage: Stage) -> set[str]:
    """Return the ids of the clean topic."""
    return {json.loads(record.value)["id"] for record in stage.read("clean")}


def distinct(count: int) -> list[dict[str, Any]]:
    """Return long documents that repeat each other in nothing."""
    documents, heads = [], set[str]()
    for each in stream_of_documents(4 * count):
        head = each["text"][:60]
        if len(each["text"]) > 400 and head not in heads:
            heads.add(head)
            documents.append(each)
    assert len(documents) >= count
    return documents[:count]


def test_a_corpus_seeds_a_stream(broker: Broker, tmp_path: Path, command: CommandLine) -> None:
    """Documents of the corpus are duplicates in the stream, through kill, lost disk and restore.

    Only a rebuild from the changelog alone has lost them, as is documented.
    """
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(**SETTINGS)
    stage.create_topics()
    documents = distinct(2 * PART)
    lines = tmp_path / "corpus.jsonl"
    lines.write_text("".join(json.dumps(each) + "\n" for each in documents[:PART]))
    corpus, exported = tmp_path / "corpus", tmp_path / "corpus.tar.zst"
    command(0, "dedup", lines, "--index", corpus, "--kept", tmp_path / "kept")
    corpus_ids = {json.loads(line)["id"] for line in (tmp_path / "kept").read_text().splitlines()}
    assert len(corpus_ids) > PART // 2
    command(0, "index", "export", corpus, exported)
    seeding = ("index", "import", exported, stage.index, "--for-changelog", "-c", stage.config)
    told = json.loads(command(0, *seeding, "--json"))
    assert told["documents"] == len(corpus_ids)
    assert stage.topics["changelog"] in told["log"]

    seeded = [each for each in documents[:PART] if each["id"] in corpus_ids]
    fresh = documents[PART:]
    stage.produce_json(copies(seeded[::2], "first") + fresh[: PART // 2])
    total = len(seeded[::2]) + PART // 2
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: total}, worker)
        worker.kill()
    found = originals(stage)
    assert {f"first/{each['id']}": each["id"] for each in seeded[::2]}.items() <= found.items()

    # After the kill, the changelog's few entries go on behind the seed.
    stage.produce_json(copies(seeded[1::2], "second") + fresh[PART // 2 :])
    total += len(seeded[1::2]) + PART - PART // 2
    stage.run_until_committed({0: total})
    found = originals(stage)
    assert {f"second/{each['id']}": each["id"] for each in seeded[1::2]}.items() <= found.items()
    entries = len(stage.read("changelog"))
    assert entries

    # The disk is lost: the export, and the changelog behind it, are all that it held.
    shutil.rmtree(stage.index)
    command(0, *seeding)
    stream_kept = sorted(kept(stage))
    again = copies(seeded, "third") + copies(
        [each for each in fresh if each["id"] in stream_kept], "third"
    )
    stage.produce_json(again)
    total += len(again)
    stage.run_until_committed({0: total})
    found = originals(stage)
    assert all(each["id"] in found for each in again)
    assert kept(stage) == set(stream_kept)

    command(0, "index", "rebuild", stage.index, "-c", stage.config, "--yes", "--partial")
    stage.produce_json(copies(seeded, "fourth"))
    stage.run_until_committed({0: total + len(seeded)})
    assert len(kept(stage)) > len(stream_kept) + len(seeded) // 2


def test_an_index_is_bound_only_where_it_fits(
    broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """A changelog that goes on elsewhere, and other sketches, are refused; nothing is left."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(**SETTINGS)
    stage.create_topics()
    documents = distinct(PART)
    lines = tmp_path / "corpus.jsonl"
    lines.write_text("".join(json.dumps(each) + "\n" for each in documents[:5]))
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


def test_a_changelog_is_begun_anew_behind_an_index(
    broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """With the changelog lost, the index of the same source goes on; one of elsewhere must not."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(**SETTINGS)
    stage.create_topics()
    documents = distinct(PART)
    stage.produce_json(documents)
    stage.run_until_committed({0: PART})
    known = kept(stage)
    anew = stage.variant("anew", topics={"changelog": f"{stage.name}-changelog-2"})
    anew.create_topics()
    seeding = ("index", "import", stage.index, anew.index, "--for-changelog", "-c", anew.config)
    command(0, *seeding)
    again = copies([each for each in documents if each["id"] in known], "again")
    stage.produce_json(again)
    anew.run_until_committed({0: PART + len(again)})
    assert {each["id"] for each in again} <= originals(stage).keys()
    assert kept(stage) == known

    shutil.rmtree(anew.index)
    with closing(Manifest(stage.index, None)) as manifest:
        header = replace(manifest.header, log="changelog topic a of cluster b")
        manifest.rebind(header, manifest.checkpoint())
    assert "come from another topic named" in command(11, *seeding)
    assert not (anew.index / "manifest").exists()


def test_erased_documents_stay_erased(broker: Broker, tmp_path: Path, command: CommandLine) -> None:
    """Their bytes are overwritten, they match no more, and a rebuild erases them too."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(**SETTINGS)
    stage.create_topics()
    documents = distinct(2 * PART)
    victims = [documents[3], documents[PART - 1]]
    for place, each in enumerate(victims):
        each["id"] = f"id-that-must-go-{place}"
    stage.produce_json(documents[:PART])
    erasing = ("index", "delete", stage.index, "--id", victims[0]["id"], "--id", victims[1]["id"])
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: PART}, worker)
        assert "open in another process" in command(10, *erasing, "--yes", "-c", stage.config)
        worker.kill()
    entries = len(stage.read("changelog"))
    unknown = ("--id", "nobody", "--yes", "-c", stage.config)
    assert "no document with id nobody" in command(4, *erasing, *unknown)
    assert "give --config" in command(3, *erasing, "--yes")
    assert len(stage.read("changelog")) == entries

    # A worker elsewhere has the same identity: it is fenced before the changelog is written.
    with stage.variant("elsewhere").start_worker() as elsewhere:
        elsewhere.wait_until_ready()
        told = json.loads(command(0, *erasing, "--yes", "--json", "-c", stage.config))
        assert told["documents"] == 2
        assert told["waiting"] == 0
        stage.produce_json(documents[PART : PART + 1])
        elsewhere.assert_ends(8, "taken over")
    assert len(stage.read("changelog")) == entries + 1
    held = b"".join(path.read_bytes() for path in stage.index.rglob("*") if path.is_file())
    assert b"id-that-must-go" not in held
    assert documents[4]["id"].encode() in held

    command(0, "index", "rebuild", stage.index, "-c", stage.config, "--yes")
    stats = json.loads(command(0, "index", "stats", stage.index, "--json"))
    assert stats["erased"] == 2
    again = copies([documents[4], *victims], "again")
    stage.produce_json(again)
    stage.run_until_committed({0: PART + 1 + len(again)})
    assert originals(stage)["again/" + documents[4]["id"]] == documents[4]["id"]
    assert {f"again/{each['id']}" for each in victims} <= kept(stage)


def test_a_rebuild_says_what_the_changelog_has_lost(
    broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """It replays all there is; a cut changelog it refuses, before anything is removed."""
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
    # What has left the window is not missed.
    narrow = stage.variant("narrow", index={"window_documents": rebuilt["documents"] - 1})
    shutil.move(stage.index, narrow.index)
    command(0, "index", "rebuild", narrow.index, "-c", narrow.config, "--yes")


def test_the_index_of_another_log_is_not_removed(
    broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """A rebuild makes anew only what it can make anew."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    lines = tmp_path / "corpus.jsonl"
    lines.write_text('{"id": "a", "text": "A story."}\n')
    command(0, "dedup", lines, "--index", stage.index)
    complaint = command(11, "index", "rebuild", stage.index, "-c", stage.config, "--yes")
    assert "holds the index of the embedded mode" in complaint
    assert json.loads(command(0, "index", "stats", stage.index, "--json"))["documents"] == 1
