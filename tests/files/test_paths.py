"""No job truncates, removes or reads a file that it must leave alone."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from streamdedup.errors import InputError
from streamdedup.files.job import Job
from streamdedup.files.paths import Kind
from streamdedup.files.run import Hooks, run
from streamdedup.files.tables import TableFile
from streamdedup.settings.sections import Settings
from tests.files.workspace import Crash, Workspace, counts, crash_after, in_batches_of, texts


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def write_table(path: Path, count: int = 30) -> None:
    """Write documents, every third one a duplicate."""
    table = pa.table({"id": [f"d{number}" for number in range(count)], "text": texts(count)})
    parquet.write_table(table, path)


@pytest.mark.parametrize("index", [None, "index"])
@pytest.mark.parametrize("suffix", [".tmp", ".partial"])
def test_a_file_next_to_a_table_stays(tmp_path: Path, suffix: str, index: str | None) -> None:
    """Whatever its name, and whether the run completes, fails or is repeated."""
    write_table(tmp_path / "in.parquet")
    foreign = tmp_path / f"kept.parquet{suffix}"
    foreign.write_bytes(b"notes")
    (tmp_path / f"empty.parquet{suffix}").touch()
    before = contents(tmp_path)
    directory = tmp_path / index if index else None
    source = str(tmp_path / "in.parquet")
    job = Job((source,), str(tmp_path / "kept.parquet"), index=directory)
    with pytest.raises(Crash):
        run(job, in_batches_of(7), Hooks(on_batch=crash_after(9)))
    run(job, in_batches_of(7))
    run(job, in_batches_of(7))
    with pytest.raises(InputError):
        run(Job((source,), str(tmp_path / "no folder" / "empty.parquet")), Settings())
    after = contents(tmp_path)
    assert set(after) == {*before, "kept.parquet"}
    assert before.items() <= after.items()


def test_an_input_may_have_any_name(tmp_path: Path) -> None:
    """A table beside its output, with the output's name and more, is only read."""
    source = tmp_path / "posts.parquet.tmp"
    write_table(source)
    before = source.read_bytes()
    run(Job((str(source),), str(tmp_path / "posts.parquet")), Settings())
    assert source.read_bytes() == before
    assert parquet.read_metadata(tmp_path / "posts.parquet").num_rows == 20


@pytest.mark.parametrize("inputs", ["data/*", "data", "data/**", "data/.*[!p]*"])
def test_a_pattern_does_not_match_what_the_job_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: str
) -> None:
    """An interrupted run continues with the same arguments; its index may be there too."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    name = "data/.in.parquet" if ".*" in inputs else "data/in.parquet"
    write_table(Path(name))
    job = Job((inputs,), "data/kept.parquet", "data/duplicates.jsonl", index=Path("data/index"))
    remove = os.remove
    monkeypatch.setattr(os, "remove", lambda _: None)  # as a killed process
    with pytest.raises(Crash):
        run(job, in_batches_of(7), Hooks(on_batch=crash_after(9)))
    monkeypatch.setattr(os, "remove", remove)
    left = [path.name for path in Path("data").glob(".streamdedup-*")]
    assert sorted(name.rpartition(".")[2] for name in left) == ["partial", "tmp"]
    assert run(job, in_batches_of(7)).judged_before == 14
    assert run(job, in_batches_of(7)).judged_before == 30
    assert parquet.read_metadata("data/kept.parquet").num_rows == 20
    assert not list(Path("data").glob(".streamdedup-*"))


def test_files_of_the_index_are_no_inputs_and_outputs(workspace: Workspace) -> None:
    """A run would write into its own index; other files in that folder may be used."""
    run(workspace.job(), Settings())
    index = workspace.folder / "index"
    source = (str(workspace.input),)
    for name in ("lock", "manifest/more.jsonl", "segments/../lock"):
        with pytest.raises(InputError, match="is a file of the index, or a temporary file"):
            run(Job(source, str(index / name), index=index), Settings())
    with pytest.raises(InputError, match="is a file of the index"):
        run(Job((str(index / "manifest" / "data.mdb"),), index=index), Settings())
    (workspace.folder / ".streamdedup-1-kept.tmp").touch()
    with pytest.raises(InputError, match="or a temporary file of a job"):
        run(Job((str(workspace.folder / ".streamdedup-1-kept.tmp"),)), Settings())
    assert counts(run(Job(source, str(index / "kept.jsonl"), index=index), Settings()))[0] == 20


def test_the_settings_are_no_output(workspace: Workspace) -> None:
    """Also by another path."""
    config = workspace.folder / "settings.yaml"
    config.write_text("batch: {documents: 7}\n")
    link = workspace.folder / "link"
    link.symlink_to(config)
    with pytest.raises(InputError, match=r"the output .*link is the file of --config; give ano"):
        run(Job((str(workspace.input),), kept=str(link), config=config), Settings())
    assert config.read_text() == "batch: {documents: 7}\n"


def test_outputs_that_differ_in_case_are_refused(workspace: Workspace) -> None:
    """A file system that ignores case would make one file of them."""
    kept, duplicates = (str(workspace.folder / name) for name in ("Out.jsonl", "out.jsonl"))
    with pytest.raises(InputError, match=r"two outputs go to the same file, .*Out.* and .*out"):
        run(Job((str(workspace.input),), kept, duplicates), Settings())


@pytest.mark.parametrize("names", [b"k\xe9.parquet", b"d\xe9/k.arrow"])
def test_a_table_may_have_any_path(tmp_path: Path, names: bytes) -> None:
    """A path need not be UTF-8, nor have room for more characters."""
    write_table(tmp_path / "in.parquet")
    target = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + names))
    target.parent.mkdir(exist_ok=True)
    longest = str(target.with_name("k" * 247 + ".parquet"))
    job = Job((str(tmp_path / "in.parquet"),), str(target), longest, index=tmp_path / "index")
    with pytest.raises(Crash):
        run(job, in_batches_of(7), Hooks(on_batch=crash_after(9)))
    run(job, in_batches_of(7))
    kind = Kind.PARQUET if target.suffix == ".parquet" else Kind.ARROW
    with closing(TableFile(str(target), kind)) as file:
        assert sum(map(len, file.batches(0, 100, 2**20))) == 20
