"""Outputs of lines are compressed as their names say, also after crashes."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from streamdedup.errors import InputError
from streamdedup.files.job import Job
from streamdedup.files.lines import OutputFile
from streamdedup.files.run import Hooks, run
from streamdedup.settings.sections import Settings
from tests.files.workspace import Crash, Workspace, counts, crash_after, in_batches_of


def unpack_zstd(packed: bytes) -> bytes:
    """Return the content of all frames."""
    return zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read()


UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.decompress,
    "zst": unpack_zstd,
    "bz2": bz2.decompress,
    "xz": lzma.decompress,
}


@pytest.mark.parametrize("extension", UNPACK)
def test_a_packed_output_has_the_lines_of_a_plain_one(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, extension: str
) -> None:
    """Runs crash between and inside of commits, and the last one adds an input."""
    unpack = UNPACK[extension]
    source, folder = str(workspace.input), workspace.folder
    plain = workspace.job(name="plain", index=None)
    run(plain, Settings())
    names = [str(folder / f"{kind}.jsonl.{extension}") for kind in ("kept", "dup", "rejected")]
    outputs = dict(zip(("kept", "duplicates", "rejected"), names, strict=True))
    job = Job((source,), index=folder / "index", **outputs)  # type: ignore[arg-type]
    with pytest.raises(Crash):
        run(job, in_batches_of(4), Hooks(on_batch=crash_after(8)))
    original, left = OutputFile.sync, [3]

    def sync(file: OutputFile) -> None:
        left[0] -= 1
        if not left[0]:
            raise Crash
        original(file)

    with monkeypatch.context() as patch:
        patch.setattr(OutputFile, "sync", sync)
        with pytest.raises(Crash):
            run(job, in_batches_of(4))
    assert run(job, in_batches_of(4)).judged_before == 8
    found = [unpack(Path(name).read_bytes()) for name in names]
    assert found == list(workspace.outputs("plain").values())
    assert found[2] == b""
    again = Job((names[0],), index=folder / "other")
    assert counts(run(again, Settings())) == (20, 0, 0)
    (folder / "more.jsonl").write_bytes(b'{"text": "Harvest festival"}\n{broken\n')
    run(replace(job, inputs=(source, str(folder / "more.jsonl"))), Settings())
    found = [unpack(Path(name).read_bytes()) for name in names]
    assert found[0].endswith(b'{"text": "Harvest festival"}\n')
    assert found[2].count(b"\n") == 1


def test_the_header_of_csv_is_packed_once(tmp_path: Path) -> None:
    """A run that continues adds rows only."""
    (tmp_path / "in.csv").write_text("id,text\n1,Storm warning\n")
    kept = tmp_path / "kept.csv.gz"
    job = Job((str(tmp_path / "in.csv"),), str(kept), index=tmp_path / "index")
    run(job, Settings())
    with (tmp_path / "in.csv").open("a") as file:
        file.write("2,Harvest festival\n")
    run(job, Settings())
    assert gzip.decompress(kept.read_bytes()) == (tmp_path / "in.csv").read_bytes()


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"kept": "k.jsonl.zip"}, "k.jsonl.zip: .zip files cannot be written; give a name without"),
        ({"rejected": "r.LZ4"}, "r.LZ4: .LZ4 files cannot be written; give a name without .LZ4, "),
        ({"duplicates": "d.parquet.gz"}, "d.parquet.gz: tables are compressed inside; give a name"),
        ({"kept": "k.parquet.zst"}, "k.parquet.zst: tables are compressed inside"),
    ],
)
def test_a_name_that_cannot_be_kept_is_refused(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, outputs: dict[str, str], message: str
) -> None:
    """Before anything is written."""
    monkeypatch.chdir(workspace.folder)
    with pytest.raises(InputError, match=message):
        run(Job((str(workspace.input),), **outputs), Settings())  # type: ignore[arg-type]
    assert [path.name for path in workspace.folder.iterdir()] == ["in.jsonl"]
