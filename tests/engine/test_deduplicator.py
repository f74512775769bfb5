"""The Python API: documents in, verdicts out."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import streamdedup
from streamdedup import (
    Deduplicator,
    Document,
    Outcome,
    Position,
    Settings,
    StreamdedupError,
    failpoints,
)
from streamdedup.engine.prepare import Preparer
from streamdedup.errors import IndexLocked, IndexMismatch, SettingsError
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import IndexSettings, LimitSettings, OutputSettings
from tests.support.interrupts import interrupt_at

STORY = "The council met on Monday to settle the budget for the coming year."
NEAR = "The council met on Monday to settle the budget for the coming year!"
OTHER = "A storm closed the harbour, and all the ferries stayed in port."


def test_a_near_copy_is_a_duplicate_of_the_first() -> None:
    """The verdict names the original and the similarity."""
    with Deduplicator() as deduplicator:
        first, second, third = deduplicator.process(
            [Document(STORY, "a"), Document(NEAR, "b"), Document(OTHER, "c")]
        )
    assert (first.outcome, second.outcome, third.outcome) == (
        Outcome.KEPT,
        Outcome.DUPLICATE,
        Outcome.KEPT,
    )
    assert first.kept
    assert first.original is None
    assert second.original is not None
    assert second.original.id == "a"
    assert 0.8 <= second.original.jaccard_estimate < 1.0


def test_bare_texts_are_named_by_their_position() -> None:
    """Positions continue from one call to the next."""
    with Deduplicator() as deduplicator:
        deduplicator.process([STORY])
        [other, again] = deduplicator.process([OTHER, STORY])
    assert other.id == "python:0:1"
    assert other.position == Position("python", 0, 1)
    assert again.original is not None
    assert again.original.position == Position("python", 0, 0)


def test_verdicts_do_not_depend_on_how_documents_are_cut_into_calls() -> None:
    """The second of two near-copies is the duplicate, in one call or in two."""
    texts = [STORY, NEAR, OTHER, OTHER.upper(), "", STORY + NEAR]
    with Deduplicator() as one, Deduplicator() as many:
        assert one.process(texts) == [verdict for text in texts for verdict in many.process([text])]


def test_no_documents_give_no_verdicts() -> None:
    """An empty call returns an empty list."""
    with Deduplicator() as deduplicator:
        assert deduplicator.process([]) == []


def test_an_index_directory_outlives_the_deduplicator(tmp_path: Path) -> None:
    """Documents kept before make duplicates now, and positions continue."""
    with Deduplicator(directory=tmp_path / "index") as deduplicator:
        deduplicator.process([STORY, OTHER])
    with Deduplicator(directory=str(tmp_path / "index")) as deduplicator:
        [verdict] = deduplicator.process([NEAR])
    assert verdict.position.offset == 2
    assert verdict.original is not None
    assert verdict.original.position.offset == 0


def test_a_temporary_index_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing removes its directory; a second call does nothing."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    deduplicator = Deduplicator()
    deduplicator.process([STORY])
    assert list(tmp_path.iterdir())
    deduplicator.close()
    deduplicator.close()
    assert list(tmp_path.iterdir()) == []


def test_an_index_has_one_user(tmp_path: Path) -> None:
    """A second deduplicator is refused, and the first continues to work."""
    with Deduplicator(directory=tmp_path) as deduplicator:
        with pytest.raises(IndexLocked, match="open in this process already; close its Dedup"):
            Deduplicator(directory=tmp_path)
        assert deduplicator.process([STORY])[0].kept


def test_an_empty_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be the working directory, by an argument and by the settings."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="directory is empty; give a path, or leave it out"):
        Deduplicator(directory="")
    with pytest.raises(SettingsError, match=r"index\.directory: it is empty; give a path"):
        load_settings(index={"directory": ""})
    with pytest.raises(SettingsError, match=r"schema_files\.1: it is empty; give a path"):
        load_settings(records={"format": "avro", "schema_files": ["a", ""]})
    assert not list(tmp_path.iterdir())
    with Deduplicator(directory=".") as deduplicator:
        assert deduplicator.index.directory == tmp_path


def test_a_dropped_deduplicator_frees_its_directory(tmp_path: Path) -> None:
    """Another one opens it, and finds what was kept; no thread is left."""
    before = threading.active_count()
    dropped = Deduplicator(directory=tmp_path)
    assert dropped.process([STORY])[0].kept
    del dropped
    assert threading.active_count() == before
    with Deduplicator(directory=tmp_path) as deduplicator:
        assert not deduplicator.process([STORY])[0].kept


def test_a_background_may_collect_its_dropped_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector runs in any thread, and a background cannot wait for its own end."""
    is_dropped = threading.Event()

    def collect(point: str) -> None:
        if point == "flush":
            is_dropped.wait()
            gc.collect()

    monkeypatch.setattr(failpoints, "_handler", collect)
    before = set(threading.enumerate())
    settings = Settings(index=IndexSettings(delta_documents=16))
    texts = [random.Random(number).randbytes(40).hex() for number in range(16)]
    dropped = [Deduplicator(settings, tmp_path)]
    dropped.append(dropped)  # type: ignore[arg-type] # only the collector finds a cycle
    dropped[0].process(texts)
    dropped[0].process([STORY])
    gc.disable()
    try:
        del dropped
        is_dropped.set()
        while threads := set(threading.enumerate()) - before:
            threads.pop().join()
    finally:
        gc.enable()
    with Deduplicator(settings, tmp_path) as deduplicator:
        assert not deduplicator.process([STORY])[0].kept


def test_an_index_refuses_other_parameters(tmp_path: Path) -> None:
    """The error names the parameter; the index opens again with the old parameters."""
    Deduplicator(directory=tmp_path).close()
    with pytest.raises(IndexMismatch, match=r"built with profile plain .*say post"):
        Deduplicator(Settings(dedup=DedupSettings(profile="post")), tmp_path)
    Deduplicator(directory=tmp_path).close()


def test_namespaces_are_independent() -> None:
    """Documents of different namespaces never match."""
    with Deduplicator() as deduplicator:
        verdicts = deduplicator.process(
            [Document(STORY, namespace=name) for name in ("north", "south", "", "north")]
        )
    assert [verdict.kept for verdict in verdicts] == [True, True, True, False]


def test_the_age_of_a_match_comes_from_event_times() -> None:
    """The age is None unless both documents have an event time."""
    with Deduplicator() as deduplicator:
        _, dated, undated = deduplicator.process(
            [Document(STORY, event_time_ms=1_000), Document(STORY, event_time_ms=3_500), STORY]
        )
    assert [match.age_s for match in dated.matches] == [2.5]
    assert [match.age_s for match in undated.matches] == [None]


@pytest.mark.parametrize(("most", "expected"), [(1, ["b"]), (2, ["b", "a"]), (5, ["b", "a"])])
def test_matches_are_best_first_and_as_many_as_asked_for(most: int, expected: list[str]) -> None:
    """A document between two kept documents repeats the more similar one, even if it is later."""
    draw = random.Random(3)
    words = [str(draw.randrange(10**6)) for _ in range(110)]
    spans = {"a": (0, 80), "b": (30, 110), "between": (18, 98)}
    settings = Settings(
        dedup=DedupSettings(threshold=0.55), output=OutputSettings(max_matches=most)
    )
    with Deduplicator(settings) as deduplicator:
        first, second, between = deduplicator.process(
            Document(" ".join(words[start:stop]), name) for name, (start, stop) in spans.items()
        )
    assert first.kept
    assert second.kept
    assert [match.id for match in between.matches] == expected


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (Document("x" * 101), "TextTooLarge"),
        (Document(STORY, "i" * 11), "IdTooLarge"),
        (Document(STORY, "\ud800"), "IdNotUnicode"),
    ],
    ids=["long text", "long id", "lone surrogate in the id"],
)
def test_a_document_over_the_limits_is_rejected(document: Document, reason: str) -> None:
    """It gets a verdict like every document, and is not indexed."""
    limits = Settings(limits=LimitSettings(text_bytes=100, id_bytes=10))
    with Deduplicator(limits) as deduplicator:
        rejected, other = deduplicator.process([document, STORY])
        assert deduplicator.index.next_number == 1
    assert rejected.outcome is Outcome.REJECTED
    assert rejected.rejection is not None
    assert rejected.rejection.reason == reason
    assert other.kept


@pytest.mark.parametrize("text", ["", " \t\n", "\u200b\ufeff"])
def test_documents_without_text_are_kept_or_rejected_as_the_settings_say(text: str) -> None:
    """They never match each other."""
    with Deduplicator() as deduplicator:
        assert all(verdict.kept for verdict in deduplicator.process([text, text]))
    strict = Settings(dedup=DedupSettings(empty_text="reject"))
    with Deduplicator(strict) as deduplicator:
        [rejected, _] = deduplicator.process([text, STORY])
    assert rejected.rejection is not None
    assert rejected.rejection.reason == "EmptyText"


def test_a_rejected_document_keeps_its_id() -> None:
    """The caller can tell which document it was."""
    with Deduplicator(Settings(limits=LimitSettings(text_bytes=100))) as deduplicator:
        verdicts = deduplicator.process([Document("x" * 101, "mine"), "y" * 101])
    assert [verdict.id for verdict in verdicts] == ["mine", "python:0:1"]


def test_a_call_with_an_invalid_document_changes_nothing() -> None:
    """The call can be repeated once the document is corrected."""
    with Deduplicator() as deduplicator:
        with pytest.raises(TypeError, match="document 1 is None"):
            deduplicator.process([STORY, None])  # type: ignore[list-item]
        assert deduplicator.process([STORY, {"text": OTHER}])[0].position.offset == 0


def test_a_repeated_position_gets_its_old_verdict(tmp_path: Path) -> None:
    """A caller who crashed before saving the verdicts repeats the call, and loses nothing."""
    with Deduplicator(directory=tmp_path) as deduplicator:
        first = deduplicator.process([STORY, NEAR, OTHER], range(3))
    with Deduplicator(directory=tmp_path) as deduplicator:
        again = deduplicator.process([STORY, NEAR, OTHER, OTHER], range(4))
        file = Position("monday.jsonl", 0, 0)
        [elsewhere] = deduplicator.process([STORY], [file])
    assert again[:3] == first
    assert [verdict.kept for verdict in again] == [True, False, True, False]
    assert (elsewhere.kept, elsewhere.position) == (False, file)


def test_an_interrupt_at_any_step_keeps_what_was_told_kept() -> None:
    """Ctrl-C in a call: the next call works, and knows every document that was told kept."""
    draw, step, stopped, kept = random.Random(7), 0, True, []
    settings = Settings(index=IndexSettings(delta_documents=16))
    with Deduplicator(settings) as deduplicator:
        while stopped:
            texts = [" ".join(str(draw.random()) for _ in range(5)) for _ in range(9)]
            assert all(verdict.kept for verdict in deduplicator.process(texts))
            kept += texts
            stopped = interrupt_at(step, partial(deduplicator.process, [str(draw.random())]))
            step += 41
        assert step > 200
        assert not any(verdict.kept for verdict in deduplicator.process(kept))


def test_threads_may_share_a_deduplicator() -> None:
    """Every document gets one verdict and its own position, and kept documents are indexed."""
    draw = random.Random(5)
    texts = [" ".join(str(draw.random()) for _ in range(5)) for _ in range(400)]
    with Deduplicator() as deduplicator, ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda text: deduplicator.process([text])[0], texts))
        again = deduplicator.process(texts)
    assert all(verdict.kept for verdict in verdicts)
    assert {verdict.position.offset for verdict in verdicts} == set(range(400))
    assert not any(verdict.kept for verdict in again)


def test_a_forked_process_needs_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child gets an error that says so, and leaves the parent's temporary index alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Deduplicator() as deduplicator:
        deduplicator.process([STORY])
        child = os.fork()
        if child == 0:
            code = 0
            try:
                deduplicator.process([OTHER])
            except StreamdedupError as error:
                code = 7 * ("create a Deduplicator in each process" in str(error))
            deduplicator.close()
            deduplicator._remove()  # noqa: SLF001 - what an ordinary exit calls
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert not deduplicator.process([NEAR])[0].kept


def test_a_stale_judgement_is_refused() -> None:
    """Documents that were indexed in between could have changed it."""
    settings = Settings()
    batch = Preparer(settings).prepare_documents([Document(STORY)], [Position("x", 0, 0)])
    with Deduplicator(settings) as deduplicator:
        judgement = deduplicator.judge(batch)
        deduplicator.process([NEAR])
        with pytest.raises(ValueError, match="judge the batch again"):
            deduplicator.apply(judgement)


def test_a_closed_deduplicator_says_so() -> None:
    """The error names the remedy."""
    deduplicator = Deduplicator()
    deduplicator.close()
    with pytest.raises(RuntimeError, match="closed; create another one"):
        deduplicator.process([STORY])


@pytest.mark.parametrize("name", streamdedup.__all__)
def test_every_public_name_is_importable(name: str) -> None:
    """The package has every name in ``__all__``."""
    assert getattr(streamdedup, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Lazily loaded names fail like others."""
    with pytest.raises(AttributeError, match="has no attribute 'Dedup'"):
        _ = streamdedup.Dedup


def test_the_package_imports_quickly() -> None:
    """Importing the package loads neither numba nor LMDB."""
    check = "import streamdedup, sys; assert not {'numba', 'lmdb'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_a_window_by_time_needs_times() -> None:
    """If no document of a batch has an event time, the caller is warned."""
    settings = load_settings(index={"window": "7d"})
    with Deduplicator(settings) as deduplicator:
        with pytest.warns(UserWarning, match="index.window has no effect"):
            deduplicator.process([STORY])
        deduplicator.process([])
        deduplicator.process([Document(STORY, event_time_ms=0), "another one"])
