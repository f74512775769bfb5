"""One run of the embedded mode: where each line goes, and what the caller learns."""

from __future__ import annotations

import json
import time
from typing import Any, NoReturn

import numba
import pytest

from streamdedup.errors import IndexMismatch, InputError, SettingsError
from streamdedup.files.job import Job
from streamdedup.files.run import Hooks, RunTally, run
from streamdedup.index.store import Index
from streamdedup.kernels import compile_seconds
from streamdedup.model import Record, Verdict
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from tests.files.workspace import Workspace, counts, exactly, in_batches_of, line


def test_each_line_goes_where_its_verdict_says(workspace: Workspace) -> None:
    """Kept lines are unchanged, duplicates name their original, rejected lines say why."""
    workspace.input.write_bytes(
        b'{ "text":"One story, told once.", "id" : 1, "more": [1.0e2] }\r\n'
        b"  \t \n"
        b"no JSON at all\n"
        b'{"text": "one  STORY, told once."}\n'
        b'{"id": "b", "text": "Quite another story, about other people."}'
    )
    tally = run(workspace.job(), Settings())
    outputs = workspace.outputs()
    assert outputs["kept"] == (
        b'{ "text":"One story, told once.", "id" : 1, "more": [1.0e2] }\r\n'
        b'{"id": "b", "text": "Quite another story, about other people."}\n'
    )
    assert workspace.duplicates() == [("in.jsonl:4", "1")]
    [rejected] = map(json.loads, outputs["rejected"].splitlines())
    assert rejected["reason"] == "InvalidJson"
    assert rejected["value"] == "no JSON at all"
    assert rejected["position"] == {"topic": str(workspace.input), "partition": 0, "offset": 2}
    assert counts(tally) == (2, 1, 1)
    assert tally.blank_lines == 1
    assert tally.bytes_read == tally.bytes_total == workspace.input.stat().st_size


@pytest.mark.parametrize(
    "records",
    [{}, {"event_time_field": ""}, {"format": "text", "event_time_field": "at"}],
    ids=["no-field", "empty-field", "plain-text"],
)
def test_a_window_by_time_needs_times(workspace: Workspace, records: dict[str, Any]) -> None:
    """Without event times index.window would have no effect, so the run does not start."""
    workspace.input.write_bytes(line(1, "One story"))
    settings = load_settings(index={"window": "7d"}, records=records)
    with pytest.raises(SettingsError, match=r"index\.window is set.*records\.event_time_field"):
        run(workspace.job(), settings)
    assert not (workspace.folder / "index").exists()


def test_the_window_goes_by_event_times(workspace: Workspace) -> None:
    """A text repeated after the window is kept."""
    times = ["2024-01-01", "2024-01-07T23:59:59", "2024-01-08"]
    documents = [{"id": time, "text": "the same story again", "at": time} for time in times]
    workspace.input.write_text("".join(json.dumps(document) + "\n" for document in documents))
    settings = load_settings(index={"window": "7d"}, records={"event_time_field": "at"})
    assert counts(run(workspace.job(), settings)) == (2, 1, 0)
    assert workspace.duplicates() == [(times[1], times[0])]


def test_verdicts_do_not_depend_on_the_batch(workspace: Workspace) -> None:
    """The second of two near-copies is the duplicate, in one batch or in two."""
    for size in (1, 7, 1000):
        job = workspace.job(name=f"of {size}", index=None)
        assert counts(run(job, in_batches_of(size))) == (20, 10, 0)
        assert workspace.outputs(f"of {size}") == workspace.outputs("of 1")


def test_the_caller_receives_each_verdict_in_order(workspace: Workspace) -> None:
    """The hook is called with every record and its verdict, after the commit."""
    received: list[tuple[str, bool]] = []

    def receive(record: Record, verdict: Verdict) -> None:
        assert record.position == verdict.position
        received.append((verdict.id, verdict.kept))

    run(workspace.job(), in_batches_of(4), Hooks(on_verdict=receive))
    assert received == [(f"d{number}", number % 3 != 2) for number in range(30)]


def test_an_empty_input_is_valid(workspace: Workspace) -> None:
    """No document is judged, and the outputs are empty files."""
    workspace.input.write_bytes(b"")
    tally = run(workspace.job(), Settings(), Hooks(on_verdict=_never))
    assert (tally.documents, tally.documents_per_second) == (0, 0.0)
    assert set(workspace.outputs().values()) == {b""}


def test_compiling_is_start_up_and_not_work_on_documents(workspace: Workspace) -> None:
    """A kernel that is compiled in the middle of a run does not count as slow documents."""
    before = compile_seconds()
    tallies: list[RunTally] = []

    def compile_one(tally: RunTally) -> None:
        tallies.append(tally)
        numba.njit(lambda number: number + 1)(len(tallies))

    began = time.monotonic()
    last = run(workspace.job(), in_batches_of(29), Hooks(on_batch=compile_one))
    passed = time.monotonic() - began
    compiled = last.compile_seconds - tallies[0].compile_seconds
    assert compiled > 0
    assert last.start_seconds - tallies[0].start_seconds == pytest.approx(compiled)
    assert last.start_seconds >= last.compile_seconds
    assert last.seconds + last.start_seconds <= passed
    assert last.compile_seconds <= compile_seconds() - before
    assert last.documents_per_second == 30 / last.seconds


def _never(*_: object) -> NoReturn:
    raise AssertionError("no verdict is expected")


def test_an_output_that_cannot_be_written_ends_the_run_at_once(workspace: Workspace) -> None:
    """No later batch is written after a batch that failed."""
    job = Job((str(workspace.input),), kept="/dev/full", index=workspace.folder / "index")
    with pytest.raises(InputError, match="cannot write /dev/full: No space left on device"):
        run(job, in_batches_of(4))
    with Index(
        Settings().index.model_copy(update={"directory": workspace.folder / "index"}),
        Settings().dedup.sketch_parameters(),
        "the embedded mode",
        texts=False,
    ) as index:
        assert index.next_number == 0


TRUTH = "the council met on monday to settle the budget for the year"
NEAR = ("the council met on monday to settle the budget for a year", "the council met on sunday")


def true_jaccard(first: str, second: str) -> float:
    """Return the Jaccard similarity of the sets of 5-character shingles, by its definition."""
    one, two = (
        {text[start : start + 5] for start in range(len(text) - 4)} for text in (first, second)
    )
    return len(one & two) / len(one | two)


def test_exact_verification_over_several_runs(workspace: Workspace) -> None:
    """The texts of different runs are compared, and the record states their similarity."""
    truth = true_jaccard(TRUTH, NEAR[0])
    workspace.input.write_bytes(line(0, TRUTH))
    run(workspace.job(), exactly(truth))
    workspace.input.write_bytes(workspace.input.read_bytes() + line(1, NEAR[0]) + line(2, NEAR[1]))
    run(workspace.job(), exactly(truth))
    [duplicate] = map(json.loads, workspace.outputs()["duplicates"].splitlines())
    [match] = duplicate["matches"]
    assert (duplicate["id"], match["id"]) == ("d1", "d0")
    assert match["jaccard"] == round(truth, 6)
    # Just above the true similarity the document is kept, whatever the estimate is.
    run(workspace.job(name="other", index="other"), exactly(truth + 1e-6))
    assert workspace.duplicates("other") == []


def test_an_index_without_texts_cannot_serve_exact_verification(workspace: Workspace) -> None:
    """The error says so; another job with a new index succeeds."""
    run(workspace.job(), Settings())
    with pytest.raises(IndexMismatch, match="without the texts"):
        run(workspace.job(name="second"), exactly(0.8))
    run(workspace.job(name="second", index="other"), exactly(0.8))
    assert workspace.duplicates("second") == workspace.duplicates()
