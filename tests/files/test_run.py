"""The embedded mode: verdicts, jobs that go on, and crashes at every moment."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import pytest

from streamdedup.errors import IndexDamaged, IndexMismatch, InputError
from streamdedup.files import run as embedded
from streamdedup.files.docstrings import docstrings
from streamdedup.files.job import Job
from streamdedup.files.run import Hooks, InProcess, Tally
from streamdedup.index.store import Index
from streamdedup.model import Record, Verdict
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import BatchSettings, LimitSettings, OutputSettings, Settings
from tests.support.streams import standard_input

COUNT = 1500


class Crash(Exception):  # noqa: N818 - an event, not an error
    """What ends a run in the middle, as a power cut would."""


def line(number: int, text: str) -> bytes:
    """Return a document as a line."""
    return json.dumps({"id": f"d{number}", "text": text}).encode() + b"\n"


def texts(count: int) -> list[str]:
    """Return texts, of which each third repeats the one before, nearly."""
    words = random.Random(7)
    found: list[str] = []
    for number in range(count):
        if number % 3 == 2:
            found.append(found[-1] + "!")
        else:
            found.append(" ".join(str(words.randrange(10**6)) for _ in range(20)))
    return found


def documents(first: int, last: int) -> bytes:
    """Return the documents of these numbers as lines."""
    return b"".join(
        line(number, text) for number, text in enumerate(texts(last)) if number >= first
    )


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketch in this process; the tests with real processes start the command."""
    monkeypatch.setattr(embedded, "SketchPool", InProcess)


class Place:
    """A folder with an input, an index and outputs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.input = folder / "in.jsonl"

    def job(self, *inputs: Path | str, name: str = "first", index: str | None = "index") -> Job:
        """Return a job with all three outputs."""
        return Job(
            tuple(str(path) for path in inputs or (self.input,)),
            kept=str(self.folder / f"{name}.kept"),
            duplicates=str(self.folder / f"{name}.duplicates"),
            rejected=str(self.folder / f"{name}.rejected"),
            index=self.folder / index if index else None,
        )

    def outputs(self, name: str = "first") -> dict[str, bytes]:
        """Return the content of a job's outputs."""
        return {
            kind: (self.folder / f"{name}.{kind}").read_bytes()
            for kind in ("kept", "duplicates", "rejected")
        }

    def duplicates(self, name: str = "first") -> list[tuple[str, str]]:
        """Return (duplicate, original) of a job's duplicates."""
        lines = self.outputs(name)["duplicates"].splitlines()
        return [(each["id"], each["original"]) for each in map(json.loads, lines)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a place with thirty documents as input, ten of them duplicates."""
    found = Place(tmp_path)
    found.input.write_bytes(documents(0, 30))
    return found


def in_batches_of(count: int, **sections: Any) -> Settings:
    """Return settings with small batches."""
    return Settings(batch=BatchSettings(documents=count), **sections)


def counts(tally: Tally) -> tuple[int, int, int]:
    """Return how many were kept, duplicates, and rejected."""
    return tally.kept, tally.duplicates, tally.rejected


def test_each_line_goes_where_its_verdict_says(place: Place) -> None:
    """Kept lines are the input's bytes, duplicates name their original, the rest says why."""
    place.input.write_bytes(
        b'{ "text":"One story, told once.", "id" : 1, "more": [1.0e2] }\r\n'
        b"  \t \n"
        b"no JSON at all\n"
        b'{"text": "one  STORY, told once."}\n'
        b'{"id": "b", "text": "Quite another story, about other people."}'
    )
    tally = embedded.run(place.job(), Settings())
    outputs = place.outputs()
    assert outputs["kept"] == (
        b'{ "text":"One story, told once.", "id" : 1, "more": [1.0e2] }\r\n'
        b'{"id": "b", "text": "Quite another story, about other people."}\n'
    )
    assert place.duplicates() == [("in.jsonl:4", "1")]
    [rejected] = map(json.loads, outputs["rejected"].splitlines())
    assert rejected["reason"] == "InvalidJson"
    assert rejected["value"] == "no JSON at all"
    assert rejected["position"] == {"topic": str(place.input), "partition": 0, "offset": 2}
    assert counts(tally) == (2, 1, 1)
    assert tally.blank_lines == 1
    assert tally.bytes_read == tally.bytes_total == place.input.stat().st_size


def test_a_line_over_the_limit_is_rejected_without_its_value(place: Place) -> None:
    """The limit is on the line; its neighbours are judged."""
    place.input.write_bytes(line(1, "a story") + line(2, "x" * 5000) + line(3, "other news"))
    tally = embedded.run(place.job(), Settings(limits=LimitSettings(value_bytes=1000)))
    assert counts(tally) == (2, 0, 1)
    rejected = json.loads(place.outputs()["rejected"])
    assert rejected["reason"] == "ValueTooLarge"
    assert rejected["message"].startswith("the line has 5024 bytes, limits.value_bytes is 1000")
    assert rejected["value"] is None


def test_a_name_that_is_no_utf8_has_positions_in_unicode(place: Place) -> None:
    """JSON can carry the position of every file."""
    path = place.folder / os.fsdecode(b"caf\xe9.jsonl")
    path.write_bytes(line(1, "a story") + b'{"text": "a story"}\n')
    embedded.run(place.job(path), Settings())
    duplicate = json.loads(place.outputs()["duplicates"])
    assert duplicate["id"] == "caf\\xe9.jsonl:2"
    assert duplicate["position"]["topic"].endswith("/caf\\xe9.jsonl")


def test_verdicts_do_not_depend_on_the_batch(place: Place) -> None:
    """The second of two near-copies is the duplicate, in one batch or in two."""
    for size in (1, 7, 1000):
        job = place.job(name=f"of {size}", index=None)
        assert counts(embedded.run(job, in_batches_of(size))) == (20, 10, 0)
        assert place.outputs(f"of {size}") == place.outputs("of 1")


def test_a_batch_may_span_files(place: Place) -> None:
    """Many small files make as few commits as one large one, and each line keeps its place."""
    paths = []
    for number in range(30):
        paths.append(place.folder / f"{number:02}.jsonl")
        paths[-1].write_bytes(documents(number, number + 1))
    commits: list[Tally] = []
    embedded.run(place.job(*paths), in_batches_of(10), Hooks(on_batch=commits.append))
    assert [tally.documents for tally in commits] == [10, 20, 30]
    whole = place.job(name="whole", index=None)
    embedded.run(whole, Settings())
    assert place.outputs()["kept"] == place.outputs("whole")["kept"]
    again = embedded.run(place.job(*paths), in_batches_of(10))
    assert (again.documents, again.judged_before) == (0, 30)


def test_the_caller_hears_of_each_verdict_in_order(place: Place) -> None:
    """Hooks get every record with its verdict, after the commit."""
    heard: list[tuple[str, bool]] = []

    def hear(record: Record, verdict: Verdict) -> None:
        assert record.position == verdict.position
        heard.append((verdict.id, verdict.kept))

    embedded.run(place.job(), in_batches_of(4), Hooks(on_verdict=hear))
    assert heard == [(f"d{number}", number % 3 != 2) for number in range(30)]


def test_a_second_run_knows_the_documents_of_the_first(place: Place) -> None:
    """With an index, a new file's duplicates name documents of an older file."""
    other = place.folder / "other.jsonl"
    other.write_bytes(line(100, texts(30)[4]) + line(101, "something new"))
    embedded.run(place.job(), Settings())
    assert counts(embedded.run(place.job(other, name="second"), Settings())) == (1, 1, 0)
    assert place.duplicates("second") == [("d100", "d4")]


def test_the_same_outputs_go_on_growing(place: Place) -> None:
    """A later file of the same job is added to its outputs, and none of the first is lost."""
    other = place.folder / "other.jsonl"
    other.write_bytes(documents(30, 60))
    embedded.run(place.job(), Settings())
    embedded.run(place.job(other), Settings())
    embedded.run(place.job(place.input, other), Settings())
    place.input.write_bytes(documents(0, 60))
    embedded.run(place.job(name="whole", index=None), Settings())
    assert place.outputs()["kept"] == place.outputs("whole")["kept"]


def test_a_finished_job_does_nothing_again_but_reads_on(place: Place) -> None:
    """Run again, it passes over what it knows, and judges lines that came since."""
    embedded.run(place.job(), Settings())
    first = place.outputs()
    again = embedded.run(place.job(), Settings())
    assert (again.documents, again.judged_before) == (0, 30)
    assert place.outputs() == first
    place.input.write_bytes(documents(0, 36))
    more = embedded.run(place.job(), Settings())
    assert (counts(more), more.judged_before) == ((4, 2, 0), 30)
    assert place.outputs()["kept"].startswith(first["kept"])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_another_job_over_a_known_file_gets_the_same_verdicts(place: Place, size: int) -> None:
    """A replayed line is never its own duplicate, and new lines go on from there."""
    embedded.run(place.job(), Settings())
    place.input.write_bytes(documents(0, 45))
    embedded.run(place.job(name="again"), in_batches_of(size))
    embedded.run(place.job(name="fresh", index=None), in_batches_of(1000))
    assert place.outputs("again") == place.outputs("fresh")


def test_what_another_job_has_judged_must_be_unchanged(place: Place) -> None:
    """A replayed line is only a replay if the file still begins as it did."""
    embedded.run(place.job(), Settings())
    place.input.write_bytes(documents(1, 40))
    with pytest.raises(InputError, match=r"has changed: .*the 30 lines"):
        embedded.run(place.job(name="again"), Settings())


def test_an_output_belongs_to_one_job(place: Place) -> None:
    """Other outputs are another job, which would write an old output from the start."""
    embedded.run(place.job(), Settings())
    job = Job((str(place.input),), kept=place.job().kept, index=place.folder / "index")
    with pytest.raises(InputError, match="was written by a job with other outputs"):
        embedded.run(job, Settings())
    Path(place.job().kept or "").unlink()
    assert embedded.run(job, Settings()).documents == 30


def test_a_job_goes_on_with_the_settings_it_began_with(place: Place) -> None:
    """One output never holds two kinds of lines."""
    embedded.run(place.job(), Settings())
    changed = Settings(output=OutputSettings(include_value=True))
    with pytest.raises(InputError, match=r"output\.include_value False, now it is True; restore"):
        embedded.run(place.job(), changed)


def test_without_an_index_outputs_are_made_afresh(place: Place) -> None:
    """Nothing is remembered, so nothing is added to."""
    job = place.job(index=None)
    embedded.run(job, Settings())
    first = place.outputs()
    assert embedded.run(job, Settings()).documents == 30
    assert place.outputs() == first


@pytest.mark.parametrize("size", [4, 1000])
@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(documents(0, 30))[:-20],
        gzip.compress(documents(0, 30) + b'{"id": "half')[:-8],
    ],
    ids=["cut off", "cut off inside a line"],
)
def test_what_stands_before_damage_is_judged_once(place: Place, size: int, content: bytes) -> None:
    """The error comes after the commit, and the mended file is read on."""
    place.input.write_bytes(content)
    with pytest.raises(InputError, match="cut off"):
        embedded.run(place.job(), in_batches_of(size))
    judged = sum(output.count(b"\n") for output in place.outputs().values())
    place.input.write_bytes(gzip.compress(documents(0, 30)))
    tally = embedded.run(place.job(), in_batches_of(size))
    assert (tally.judged_before, tally.documents) == (judged, 30 - judged)
    embedded.run(place.job(name="whole", index=None), Settings())
    assert place.outputs() == place.outputs("whole")


def test_standard_input_is_a_new_source_each_time(place: Place) -> None:
    """A finished run over standard input does not make the next one a replay."""
    for run in (1, 2):
        with standard_input(documents(0, 6)):
            tally = embedded.run(place.job("-"), in_batches_of(4))
        assert counts(tally) == ((4, 2, 0) if run == 1 else (0, 6, 0))
    topics = [
        json.loads(each)["position"]["topic"] for each in place.outputs()["duplicates"].splitlines()
    ]
    assert topics == ["stdin#1"] * 2 + ["stdin#2"] * 6


def test_an_interrupted_standard_input_is_read_on(place: Place) -> None:
    """The same content again is passed over as far as it was judged; other content is refused."""
    with standard_input(documents(0, 30)), pytest.raises(Crash):
        embedded.run(place.job("-"), in_batches_of(4), Hooks(on_batch=crash_after(8)))
    with standard_input(documents(3, 30)), pytest.raises(InputError, match="input has changed"):
        embedded.run(place.job("-"), in_batches_of(4))
    with standard_input(documents(0, 30)):
        tally = embedded.run(place.job("-"), in_batches_of(4))
    assert (tally.judged_before, tally.documents) == (8, 22)
    with standard_input(documents(0, 30)):
        embedded.run(place.job("-", name="whole", index="other"), Settings())
    assert place.outputs() == place.outputs("whole")


def crash_after(count: int) -> Any:
    """Return a hook that crashes when so many documents are committed."""

    def hook(tally: Tally) -> None:
        if tally.documents >= count:
            raise Crash

    return hook


@pytest.mark.parametrize("count", [1, 4, 9, 28, 30])
def test_a_crash_after_a_commit_loses_and_repeats_nothing(place: Place, count: int) -> None:
    """Run again, the job goes on with the next line."""
    with pytest.raises(Crash):
        embedded.run(place.job(), in_batches_of(4), Hooks(on_batch=crash_after(count)))
    judged = -(-count // 4) * 4
    tally = embedded.run(place.job(), in_batches_of(7))
    assert tally.judged_before == min(judged, 30)
    embedded.run(place.job(name="whole", index=None), Settings())
    assert place.outputs() == place.outputs("whole")


@pytest.mark.parametrize("batches", [0, 1, 5])
@pytest.mark.parametrize("moment", ["before the commit", "between disk and memory"])
def test_a_crash_inside_a_commit_loses_and_repeats_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, batches: int, moment: str
) -> None:
    """Lines that stand in the outputs without a commit are cut off and judged again."""
    name = "apply" if moment == "before the commit" else "_take"
    whole, left = getattr(Index, name), batches + 1

    def apply(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crash
        return whole(*arguments)

    monkeypatch.setattr(Index, name, apply)
    with pytest.raises(Crash):
        embedded.run(place.job(), in_batches_of(4))
    assert place.outputs()["kept"].count(b"\n") >= batches * 2
    monkeypatch.undo()
    monkeypatch.setattr(embedded, "SketchPool", InProcess)
    embedded.run(place.job(), in_batches_of(7))
    embedded.run(place.job(name="whole", index=None), in_batches_of(1000))
    assert place.outputs() == place.outputs("whole")


def test_an_output_that_cannot_be_written_ends_the_run_at_once(place: Place) -> None:
    """Batches on their way are not written after one that failed."""
    job = Job((str(place.input),), kept="/dev/full", index=place.folder / "index")
    with pytest.raises(InputError, match="cannot write /dev/full: No space left on device"):
        embedded.run(job, in_batches_of(4))
    with Index(
        Settings().index.model_copy(update={"directory": place.folder / "index"}),
        Settings().dedup.sketch_parameters(),
        "the embedded mode",
        texts=False,
    ) as index:
        assert index.next_number == 0


def test_an_unreadable_note_is_damage(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note of unknown form is no licence to begin again."""
    embedded.run(place.job(), Settings())
    monkeypatch.setattr(Index, "note", lambda *_: b"\xc1")
    with pytest.raises(IndexDamaged, match="cannot be read"):
        embedded.run(place.job(), Settings())


@pytest.mark.parametrize(
    ("inputs", "changes", "message"),
    [
        (["a", "a"], {}, "the input .*a is given twice"),
        (["a", "./a"], {}, "the input .*a is given twice"),
        (["a", "link"], {}, "the input .*link is given twice"),
        (["a", "hard link"], {}, "the input .*hard link is given twice"),
        (["-", "-"], {}, "the input - is given twice"),
        (["a"], {"kept": "a"}, "the output .*a is one of the inputs"),
        (["a"], {"rejected": "link"}, "the output .*link is one of the inputs"),
        (["a"], {"kept": "x", "duplicates": "x"}, "two outputs go to the same file"),
        (["a"], {"kept": "x", "rejected": "./x"}, "two outputs go to the same file"),
        (["a"], {"duplicates": "-", "rejected": "-"}, "two outputs go to the same file"),
    ],
)
def test_files_that_stand_in_each_others_way_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inputs: list[str],
    changes: dict[str, Any],
    message: str,
) -> None:
    """Nothing is opened, and nothing cut, before this is clear."""
    monkeypatch.chdir(tmp_path)
    Path("a").write_bytes(documents(0, 3))
    Path("link").symlink_to("a")
    Path("hard link").hardlink_to("a")
    with pytest.raises(InputError, match=message):
        embedded.run(Job(tuple(inputs), **changes), Settings())
    assert Path("a").read_bytes() == documents(0, 3)


def write_input(path: Path) -> None:
    """Write documentation strings, with blank and broken lines among them."""
    with path.open("wb") as file:
        for number, (name, text) in enumerate(islice(docstrings(), COUNT)):
            file.write(json.dumps({"id": name, "text": text}).encode() + b"\n")
            if number % 97 == 0:
                file.write(b"\n{broken\n")


def run_until_killed(arguments: list[str], output: Path, length: int) -> bool:
    """Run the command; kill it when an output is so long. Return whether it got to its end."""
    command = [sys.executable, "-m", "streamdedup", "dedup", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    with process:
        while process.poll() is None:
            if output.exists() and output.stat().st_size >= length:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
        _, errors = process.communicate()
    assert process.returncode in {0, -signal.SIGKILL}, errors.decode()
    return process.returncode == 0


def test_kills_at_any_moment_leave_no_trace(place: Place) -> None:
    """SIGKILL, again and again: the outputs are those of a run that was left alone."""
    write_input(place.input)
    whole = place.job(name="whole", index=None)
    tally = embedded.run(whole, in_batches_of(100_000))
    assert min(counts(tally)) > 0
    config = place.folder / "settings.yaml"
    config.write_text("batch: {documents: 20}\npool: {workers: 1}\n")
    job = place.job()
    arguments = [*job.inputs, "--config", str(config), "--index", str(job.index)]
    for kind in ("kept", "duplicates", "rejected"):
        arguments += [f"--{kind}", str(getattr(job, kind))]
    kept = Path(job.kept or "")
    moments = random.Random(5)
    total = len(place.outputs("whole")["kept"])
    killed = 0
    for share in (0.0, 0.5):
        length = int(total * (share + moments.random() * 0.4)) + 1
        killed += not run_until_killed(arguments, kept, length)
    assert killed
    assert run_until_killed(arguments, kept, 2**62)
    assert place.outputs() == place.outputs("whole")


def _never(*_: object) -> NoReturn:
    raise AssertionError("this must not be called")


def test_an_empty_input_is_no_error(place: Place) -> None:
    """There is nothing to judge, and the outputs are there and empty."""
    place.input.write_bytes(b"")
    tally = embedded.run(place.job(), Settings(), Hooks(on_verdict=_never))
    assert (tally.documents, tally.documents_per_second) == (0, 0.0)
    assert set(place.outputs().values()) == {b""}


TRUTH = "the council met on monday to settle the budget for the year"
NEAR = ("the council met on monday to settle the budget for a year", "the council met on sunday")


def true_jaccard(first: str, second: str) -> float:
    """Compare the sets of runs of five characters, by their definition."""
    one, two = ({text[at : at + 5] for at in range(len(text) - 4)} for text in (first, second))
    return len(one & two) / len(one | two)


def exactly(threshold: float) -> Settings:
    """Return settings with exact verification."""
    return Settings(dedup=DedupSettings(threshold=threshold, verify="exact"))


def test_exact_verification_over_several_runs(place: Place) -> None:
    """A duplicate of another run is compared by its text, and the record says how similar it is."""
    truth = true_jaccard(TRUTH, NEAR[0])
    place.input.write_bytes(line(0, TRUTH))
    embedded.run(place.job(), exactly(truth))
    place.input.write_bytes(place.input.read_bytes() + line(1, NEAR[0]) + line(2, NEAR[1]))
    embedded.run(place.job(), exactly(truth))
    [duplicate] = map(json.loads, place.outputs()["duplicates"].splitlines())
    [match] = duplicate["matches"]
    assert (duplicate["id"], match["id"]) == ("d1", "d0")
    assert match["jaccard"] == round(truth, 6)
    # Just above the truth the same document is none, whatever the estimate says.
    embedded.run(place.job(name="other", index="other"), exactly(truth + 1e-6))
    assert place.duplicates("other") == []


def test_an_index_without_texts_cannot_serve_exact_verification(place: Place) -> None:
    """The error says so; a job of its own, in an index of its own, can."""
    embedded.run(place.job(), Settings())
    with pytest.raises(IndexMismatch, match="without the texts"):
        embedded.run(place.job(name="second"), exactly(0.8))
    embedded.run(place.job(name="second", index="other"), exactly(0.8))
    assert place.duplicates("second") == place.duplicates()
