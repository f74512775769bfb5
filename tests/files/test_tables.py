"""Parquet and Arrow in and out: rows, schemas, errors, and runs that are repeated or killed."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import random
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather, ipc, parquet

from streamdedup.errors import InputError
from streamdedup.files.docstrings import docstrings
from streamdedup.files.job import Job
from streamdedup.files.run import Hooks, InProcess, run
from streamdedup.files.table_sink import TableSink
from streamdedup.index.store import Index
from streamdedup.settings.sections import RecordSettings, Settings
from tests.files.workspace import (
    Crash,
    Workspace,
    counts,
    crash_after,
    in_batches_of,
    run_until_killed,
    texts,
)

COUNT = 30


def rows(count: int = COUNT, first: int = 0) -> pa.Table:
    """Return documents with a nested, a dictionary and a decimal column."""
    numbers = range(first, count)
    return pa.table(
        {
            "id": [f"d{number}" for number in numbers],
            "text": texts(count)[first:],
            "more": [{"tags": [str(number)] * (number % 3)} for number in numbers],
            "kind": pa.array([f"k{number % 2}" for number in numbers]).dictionary_encode(),
            "price": pa.array(list(numbers), pa.decimal128(9, 2)),
        }
    )


def table_job(folder: Path, *inputs: Path, name: str = "first", index: bool = True) -> Job:
    """Return a job whose kept rows and duplicates are tables."""
    return Job(
        tuple(map(str, inputs or (folder / "in.parquet",))),
        kept=str(folder / f"{name}-kept.parquet"),
        duplicates=str(folder / f"{name}-duplicates.parquet"),
        rejected=str(folder / f"{name}-rejected.jsonl"),
        index=folder / "index" if index else None,
    )


def written(job: Job) -> list[Any]:
    """Return the content of a job's outputs."""
    tables = [parquet.read_table(path, partitioning=None) for path in (job.kept, job.duplicates)]
    return [*tables, Path(job.rejected or "").read_bytes()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with thirty documents in Parquet, ten of them duplicates."""
    parquet.write_table(rows(), tmp_path / "in.parquet", row_group_size=11)
    return tmp_path


def test_each_row_goes_where_its_verdict_says(folder: Path) -> None:
    """Kept rows have all columns, duplicates their matches, and nothing temporary is left."""
    table = rows().set_column(1, "text", pa.array([None, *texts(COUNT)[1:]]))
    table = table.append_column("bytes", pa.array([b"a\xff"] * COUNT, pa.binary()))
    parquet.write_table(table, folder / "in.parquet", compression="zstd")
    job = table_job(folder, index=False)
    assert counts(run(job, in_batches_of(7))) == (19, 10, 1)
    kept, duplicates, rejected = written(job)
    assert kept.equals(table.take([number for number in range(1, COUNT) if number % 3 != 2]))
    assert parquet.ParquetFile(job.kept).metadata.row_group(0).column(0).compression == "ZSTD"
    first = duplicates.slice(0, 1).to_pylist()[0]
    position = {"topic": str(folder / "in.parquet"), "partition": 0}
    assert first["jaccard_estimate"] > 0.9
    similarity = {name: first[name] for name in ("jaccard_estimate", "jaccard", "age_s")}
    assert first == {
        "id": "d2",
        **position,
        "offset": 2,
        "event_time": None,
        "original": "d1",
        **similarity,
        "matches": [{"id": "d1", **position, "offset": 1, **similarity}],
    }
    metadata = duplicates.schema.metadata
    assert metadata[b"streamdedup.threshold"] == b"0.8"
    refused = json.loads(rejected)
    assert refused["reason"] == "MissingText"
    assert json.loads(refused["value"]) == {
        "id": "d0",
        "text": None,
        "more": {"tags": []},
        "kind": "k0",
        "price": "0.00",
        "bytes": "a\\xff",
    }
    assert {path.name for path in folder.iterdir()} == {
        *("in.parquet", "first-kept.parquet", "first-duplicates.parquet", "first-rejected.jsonl")
    }


def test_duplicates_as_a_table_say_what_json_lines_say(folder: Path) -> None:
    """The columns have the values of the duplicate records."""
    table = rows().append_column("at", pa.array(range(COUNT), pa.timestamp("s", "Asia/Tokyo")))
    parquet.write_table(table, folder / "in.parquet")
    settings = in_batches_of(
        8,
        records=RecordSettings(event_time_field="at"),
        dedup={"verify": "exact", "threshold": 0.95},
        output={"include_value": True},
    )
    source, as_table = str(folder / "in.parquet"), str(folder / "d.parquet")
    run(Job((source,), duplicates=as_table), settings)
    run(Job((source,), duplicates=str(folder / "d.jsonl")), settings)
    expected = [json.loads(line) for line in (folder / "d.jsonl").read_bytes().splitlines()]
    found = parquet.read_table(as_table).to_pylist()
    assert len(found) == len(expected) == 10
    for row, record in zip(found, expected, strict=True):
        position = record["position"]
        assert (row["topic"], row["partition"], row["offset"]) == tuple(position.values())
        time_ms = row["event_time"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
        assert (row["id"], time_ms) == (record["id"], record["event_time"])
        assert row["value"].decode() == record["value"]
        matches = [
            {**match, "jaccard": match.get("jaccard"), **match["position"]}
            for match in record["matches"]
        ]
        for match in matches:
            del match["position"]
        assert row["matches"] == matches
        assert row["original"] == record["original"] == matches[0]["id"]
        assert row["jaccard_estimate"] == matches[0]["jaccard_estimate"]
        assert row["age_s"] == matches[0]["age_s"] == 1.0


def write_stream(table: pa.Table, path: Path) -> None:
    """Write a stream of Arrow."""
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def write_file(table: pa.Table, path: Path) -> None:
    """Write a file of Arrow."""
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


@pytest.mark.parametrize("output", ["arrow", "feather", "parquet"])
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(write_stream, id="stream"),
        pytest.param(write_file, id="file"),
        pytest.param(feather.write_feather, id="feather"),
        pytest.param(parquet.write_table, id="parquet"),
    ],
)
def test_arrow_files_have_the_same_verdicts(folder: Path, write: Any, output: str) -> None:
    """The content tells the kind of an input, and the extension that of an output."""
    plain = rows().drop_columns(["kind"])
    write(plain, folder / "in.arrow")
    kept = folder / f"kept.{output}"
    for limit in (4, 11):
        job = Job((str(folder / "in.arrow"),), kept=str(kept), index=folder / "index")
        if limit == 4:
            with pytest.raises(Crash):
                run(job, in_batches_of(limit), Hooks(on_batch=crash_after(9)))
        else:
            assert run(job, in_batches_of(limit)).judged_before == 12
    read = parquet.read_table if output == "parquet" else feather.read_table
    expected = plain.take([number for number in range(COUNT) if number % 3 != 2])
    assert read(kept).equals(expected)
    parquet.write_table(rows(40, COUNT).drop_columns(["kind"]), folder / "more.parquet")
    job = Job((*job.inputs, str(folder / "more.parquet")), kept=str(kept), index=folder / "index")
    run(job, in_batches_of(5))
    assert read(kept).num_rows == 20 + 7


@pytest.mark.parametrize("count", [0, 1, 4, 9, 28, 30])
def test_a_crash_after_a_commit_loses_and_repeats_nothing(folder: Path, count: int) -> None:
    """The next run continues with the next row."""
    job = table_job(folder)
    with pytest.raises(Crash):
        run(job, in_batches_of(4), Hooks(on_batch=crash_after(count)))
    judged = max(4, -(-count // 4) * 4)
    assert run(job, in_batches_of(7)).judged_before == min(judged, 30)
    whole = table_job(folder, name="whole", index=False)
    run(whole, Settings())
    assert written(job) == written(whole)
    before = Path(job.kept or "").stat().st_ino
    assert run(job, in_batches_of(7)).judged_before == 30
    assert Path(job.kept or "").stat().st_ino == before
    assert written(job) == written(whole)


@pytest.mark.parametrize("moment", ["append", "finish", "clean", "note"])
@pytest.mark.parametrize("calls", range(1, 5))
def test_a_crash_inside_a_step_loses_and_repeats_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str, calls: int
) -> None:
    """Before or after any call of a step, including the rename of the finished tables."""
    owner: Any = Index if moment == "note" else TableSink
    name = "apply" if moment == "note" else moment
    for before in (True, False):
        job = table_job(folder, name=f"{before}")
        job = Job(job.inputs, job.kept, job.duplicates, job.rejected, folder / f"index-{before}")
        original, count = getattr(owner, name), itertools.count(1)

        def crash(
            *arguments: Any,
            original: Any = original,
            count: Any = count,
            before: bool = before,
            **named: Any,
        ) -> Any:
            is_last = next(count) == calls
            if is_last and before:
                raise Crash
            result = original(*arguments, **named)
            if is_last:
                raise Crash
            return result

        monkeypatch.setattr(owner, name, crash)
        with suppress(Crash):
            run(job, in_batches_of(13))
        monkeypatch.undo()
        monkeypatch.setattr("streamdedup.files.run.SketchPool", InProcess)
        run(job, in_batches_of(7))
        whole = table_job(folder, name="whole", index=False)
        run(whole, Settings())
        assert written(job) == written(whole)
        assert not list(folder.glob(".streamdedup-*"))


def test_new_files_are_appended_to_a_finished_table(folder: Path) -> None:
    """A crash while new rows are added leaves the table, and the next run adds them once."""
    job = table_job(folder)
    run(job, in_batches_of(7))
    parquet.write_table(rows(60, COUNT), folder / "more.parquet")
    both = table_job(folder, folder / "in.parquet", folder / "more.parquet")
    with pytest.raises(Crash):
        run(both, in_batches_of(7), Hooks(on_batch=crash_after(10)))
    assert parquet.read_metadata(job.kept).num_rows == 20
    assert run(both, in_batches_of(7)).judged_before == 30 + 14
    whole = table_job(folder, *map(Path, both.inputs), name="whole", index=False)
    run(whole, Settings())
    assert written(both) == written(whole)


def test_a_table_that_others_changed_is_refused(folder: Path) -> None:
    """The rows tell; the message says what to do."""
    job = table_job(folder)
    run(job, in_batches_of(7))
    parquet.write_table(rows(3), job.kept)
    with pytest.raises(InputError, match="has 3 rows, earlier runs wrote 20: restore the file"):
        run(job, in_batches_of(7))


def test_an_input_that_has_changed_is_refused(folder: Path) -> None:
    """The hash is that of the whole file, because a table cannot grow."""
    job = table_job(folder)
    run(job, in_batches_of(7))
    parquet.write_table(rows(31), folder / "in.parquet")
    with pytest.raises(InputError, match="changed since earlier runs judged 30 rows; give new"):
        run(job, in_batches_of(7))


def test_no_row_is_a_table_without_rows(folder: Path) -> None:
    """Both outputs exist, with their schemas."""
    parquet.write_table(rows().slice(0, 0), folder / "in.parquet")
    job = table_job(folder)
    run(job, Settings())
    kept, duplicates, _ = written(job)
    assert (kept.num_rows, kept.schema) == (0, rows().schema)
    assert (duplicates.num_rows, duplicates.column_names[0]) == (0, "id")


def test_only_the_columns_of_documents_are_read_if_no_output_has_more(folder: Path) -> None:
    """The count is right; a column whose name has a dot is found."""
    table = rows().rename_columns(["id", "text", "a.b", "kind", "price"])
    parquet.write_table(table, folder / "in.parquet")
    assert counts(run(Job((str(folder / "in.parquet"),)), Settings())) == (20, 10, 0)
    settings = Settings(records=RecordSettings(text_fields=("more.name", "kind")))
    nested = pa.table({"more": [{"name": "One story."}, None], "kind": ["k", "k"]})
    parquet.write_table(nested, folder / "in.parquet")
    assert counts(run(Job((str(folder / "in.parquet"),)), settings)) == (2, 0, 0)


def test_documents_from_columns_are_those_from_json(folder: Path) -> None:
    """Ids, times and namespaces have the meanings of the settings of records."""
    time = dt.datetime(2024, 1, 1, 12, 30, 0, 123_999, dt.UTC)
    later = dt.datetime(1969, 1, 1, tzinfo=dt.UTC)
    table = pa.table(
        {
            "text": pa.array([f"One story {n} with words of its own" for n in range(4)]).cast(
                pa.string_view()
            ),
            "number": pa.array([7, None, 9, 10], pa.uint16()),
            "at": pa.array([time, None, later, time], pa.timestamp("us", "America/Lima")),
            "site": pa.array(["a", None, "a", "b"]).dictionary_encode(),
        }
    )
    with ipc.new_stream(folder / "in.arrow", table.schema) as writer:
        writer.write_table(table)
    records = RecordSettings(id_field="number", event_time_field="at", namespace_field="site")
    seen: list[tuple[str, int]] = []
    hooks = Hooks(on_verdict=lambda _, verdict: seen.append((verdict.id, verdict.event_time_ms)))
    run(Job((str(folder / "in.arrow"),)), Settings(records=records), hooks)
    milliseconds = int(time.timestamp() * 1000)
    assert seen == [("7", milliseconds), ("in.arrow:2", -1), ("", -1), ("10", milliseconds)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text_fields": ("body",)}, "has no column 'body'; its columns are id, text, more, kind"),
        ({"id_field": "uuid"}, "has no column 'uuid'"),
        ({"event_time_field": "at"}, "has no column 'at'"),
        ({"text_fields": ("more",)}, "the column 'more' .* is of type struct.*, expected text"),
        ({"id_field": "price"}, "the column 'price' .* decimal128.*, expected string or integer"),
        ({"event_time_field": "more"}, "the column 'more' .* expected time"),
        ({"text_fields": ("more.tags",)}, "the column 'more.tags' .* list"),
    ],
)
def test_a_column_that_does_not_fit_is_named(
    folder: Path, arguments: dict[str, Any], message: str
) -> None:
    """Before anything is judged or written."""
    with pytest.raises(InputError, match=message):
        run(table_job(folder), Settings(records=RecordSettings(**arguments)))
    assert not (folder / "index").exists()


@pytest.mark.parametrize("name", ["text", "id"])
def test_two_columns_of_one_name_are_refused(folder: Path, name: str) -> None:
    """Either could be meant."""
    table = rows().drop_columns(["kind"])
    write_file(table.append_column(name, table["text"]), folder / "in.arrow")
    with pytest.raises(InputError, match=f"in.arrow has 2 columns '{name}'; rename one, or name"):
        run(Job((str(folder / "in.arrow"),)), Settings())


def test_files_of_other_kinds_and_schemas_are_refused(folder: Path) -> None:
    """The message names both files, and the column."""
    parquet.write_table(rows().drop_columns(["price"]), folder / "other.parquet")
    first = str(folder / "in.parquet")
    with pytest.raises(InputError, match=r"other.parquet has other .* 'price' was decimal.* miss"):
        run(Job((first, str(folder / "other.parquet"))), Settings())
    (folder / "in.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"in\.jsonl is JSON Lines, and .*in.parquet is Parquet"):
        run(Job((first, str(folder / "in.jsonl"))), Settings())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.parquet", b"PAR1" + bytes(100), "cannot read .*cut.parquet: "),
        ("text.parquet", b"{}", "text.parquet does not begin like Parquet: it is damaged"),
        ("empty.arrow", b"", "empty.arrow does not begin like Arrow"),
        ("old.feather", b"FEA1" + bytes(20), "version 1 of Feather; write it again"),
        ("cut.arrow", b"ARROW1\0\0", "cannot read .*cut.arrow: "),
        ("packed.parquet.gz", b"\x1f\x8b", "compressed as a whole; decompress it first"),
    ],
)
def test_a_damaged_table_is_an_error_of_one_line(
    folder: Path, name: str, content: bytes, message: str
) -> None:
    """Nothing is judged."""
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        run(Job((str(folder / name),)), Settings())
    assert "\n" not in str(caught.value)


def test_damage_inside_a_table_is_found_when_it_is_read(folder: Path) -> None:
    """The rows before are judged; a repaired file is another one."""
    path, job = folder / "in.parquet", table_job(folder)
    whole = path.read_bytes()
    start = parquet.read_metadata(path).row_group(1).column(0).dictionary_page_offset
    path.write_bytes(whole[:start] + bytes(40) + whole[start + 40 :])
    with pytest.raises(InputError, match=r"cannot read .*in\.parquet") as caught:
        run(job, in_batches_of(3))
    assert "\n" not in str(caught.value)
    assert not (folder / "first-kept.parquet").exists()
    path.write_bytes(whole)
    with pytest.raises(InputError, match="has changed since earlier runs judged 11 rows"):
        run(job, in_batches_of(3))
    path.rename(folder / "repaired.parquet")
    tally = run(table_job(folder, folder / "repaired.parquet"), in_batches_of(3))
    assert counts(tally) == (12, 18, 0)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"kept": "k.jsonl"}, "kept rows of Parquet cannot be written to k.jsonl; give a file"),
        ({"kept": "-"}, "kept rows of Parquet cannot be written to -"),
        ({"kept": "k.csv"}, "cannot be written to k.csv"),
        ({"duplicates": "d.csv"}, "duplicates are JSON Lines or a table, and not CSV"),
        ({"rejected": "r.parquet"}, "rejected lines are JSON Lines; give another extension"),
        ({"kept": "/dev/null.parquet/k.parquet"}, "cannot write"),
    ],
)
def test_an_output_that_does_not_fit_is_refused(
    folder: Path, outputs: dict[str, Any], message: str
) -> None:
    """Before anything is judged."""
    with pytest.raises(InputError, match=message):
        run(Job((str(folder / "in.parquet"),), **outputs), Settings())


def test_kept_lines_do_not_become_a_table(workspace: Workspace) -> None:
    """Lines are written unchanged; the duplicates may be a table."""
    with pytest.raises(InputError, match=r"lines of JSON Lines are written unchanged, and k\.parq"):
        run(Job((str(workspace.input),), kept="k.parquet"), Settings())
    target = workspace.folder / "d.parquet"
    run(Job((str(workspace.input),), duplicates=str(target)), in_batches_of(7))
    assert parquet.read_table(target)["original"].to_pylist()[:2] == ["d1", "d4"]


def test_a_pipe_is_not_replaced_by_a_table(folder: Path) -> None:
    """A rename would remove a device or pipe."""
    os.mkfifo(folder / "pipe.parquet")
    job = Job((str(folder / "in.parquet"),), kept=str(folder / "pipe.parquet"))
    with pytest.raises(InputError, match="not a regular file; a table needs one"):
        run(job, Settings())


def test_a_missing_library_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"run pip install 'pyarrow[<>=]"):
        run(Job((str(folder / "in.parquet"),)), Settings())


@pytest.mark.long
def test_kills_at_any_moment_leave_no_trace(folder: Path) -> None:
    """Repeated SIGKILL, also during the last step: the tables are those of a run without kills."""
    named = list(itertools.islice(docstrings(), 1500))
    table = pa.table({"id": [name for name, _ in named], "text": [text for _, text in named]})
    parquet.write_table(table, folder / "in.parquet", row_group_size=190)
    whole = table_job(folder, name="whole", index=False)
    assert min(counts(run(whole, in_batches_of(100_000)))[:2]) > 0
    config = folder / "settings.yaml"
    config.write_text("batch: {documents: 20}\npool: {workers: 1}\n")
    job = table_job(folder)
    arguments = [*job.inputs, "--config", str(config), "--index", str(job.index)]
    for kind in ("kept", "duplicates", "rejected"):
        arguments += [f"--{kind}", str(getattr(job, kind))]
    moments = random.Random(5)
    killed = 0
    for share in (0.0, 0.3, 0.6):
        length = int(table.nbytes * (share + moments.random() * 0.2)) + 1
        killed += not run_until_killed(arguments, folder, length, ".streamdedup-*-kept.partial")
    # The table that is being finished, and the one that has its name.
    killed += not run_until_killed(arguments, folder, 5_000, ".streamdedup-*-kept.tmp")
    killed += not run_until_killed(arguments, Path(job.kept or ""), 1)
    assert killed >= 3
    assert run_until_killed(arguments, folder, 2**62)
    assert written(job) == written(whole)


@pytest.mark.parametrize("output", ["arrow", "parquet"])
def test_views_of_text_are_kept_rows(folder: Path, output: str) -> None:
    """Polars writes texts as views, also in lists and structs; kept rows have the same types."""
    plain = rows()
    types = {
        "id": pa.string_view(),
        "text": pa.string_view(),
        "more": pa.struct([("tags", pa.large_list(pa.string_view()))]),
        "kind": plain.schema.field("kind").type,
        "price": plain.schema.field("price").type,
    }
    table = (
        plain.set_column(
            2, "more", plain["more"].cast(pa.struct([("tags", pa.large_list(pa.string()))]))
        )
        .cast(pa.schema(types))
        .append_column(
            "raw", pa.array([b"x" * number for number in range(COUNT)], pa.binary_view())
        )
    )
    if output == "arrow":
        table = table.drop_columns(["kind"])
    write_stream(table, folder / "in.arrow")
    job = Job((str(folder / "in.arrow"),), str(folder / f"kept.{output}"), index=folder / "index")
    with pytest.raises(Crash):
        run(job, in_batches_of(4), Hooks(on_batch=crash_after(9)))
    run(job, in_batches_of(7))
    read = parquet.read_table if output == "parquet" else feather.read_table
    kept = read(job.kept)
    assert kept.schema.equals(table.schema)
    assert kept.to_pylist() == [row for n, row in enumerate(table.to_pylist()) if n % 3 != 2]
    more = table.slice(0, 3).set_column(
        1,
        "text",
        pa.array(["Harvest festival", "opens on Saturday", "Rain tomorrow"]).cast(pa.string_view()),
    )
    write_stream(more, folder / "more.arrow")
    run(replace(job, inputs=(*job.inputs, str(folder / "more.arrow"))), in_batches_of(7))
    assert read(job.kept).to_pylist() == kept.to_pylist() + more.to_pylist()


def test_a_table_of_polars_is_written(folder: Path) -> None:
    """Categories become a dictionary of plain texts."""
    frame = pl.DataFrame(rows()).with_columns(pl.col("kind").cast(pl.Categorical))
    frame.write_ipc(folder / "in.arrow")
    kept = folder / "kept.parquet"
    run(Job((str(folder / "in.arrow"),), str(kept)), in_batches_of(4))
    found = pl.read_parquet(kept)
    assert found["kind"].cast(pl.String).to_list() == [
        f"k{number % 2}" for number in range(COUNT) if number % 3 != 2
    ]


def test_views_are_written_without_the_rows_around_them(folder: Path) -> None:
    """A slice of views refers to the texts of the whole batch; each would be written again."""
    table = pa.table(
        {"text": pa.array([f"{n:06} {'x' * 500}" for n in range(400)]).cast(pa.string_view())}
    )
    write_file(table.combine_chunks(), folder / "in.arrow")
    kept = folder / "kept.arrow"
    settings = in_batches_of(2, dedup={"threshold": 1.0})
    run(Job((str(folder / "in.arrow"),), str(kept), index=folder / "index"), settings)
    assert kept.stat().st_size < 2 * (folder / "in.arrow").stat().st_size
