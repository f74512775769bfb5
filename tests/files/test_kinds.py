"""The files that an argument names, and CSV."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest
import zstandard

from streamdedup.errors import InputError
from streamdedup.files.job import Job
from streamdedup.files.paths import Kind, expanded, kind_of_input, kind_of_name
from streamdedup.files.run import Hooks, run
from streamdedup.model import Record, Verdict
from streamdedup.settings.sections import LimitSettings, RecordSettings, Settings
from tests.files.workspace import Crash, counts, crash_after, in_batches_of, texts


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", Kind.LINES),
        ("a.NDJSON.zst", Kind.LINES),
        ("a.csv.xz", Kind.CSV),
        ("a.tsv.bz2", Kind.TSV),
        ("a.parquet", Kind.PARQUET),
        ("a.feather", Kind.ARROW),
        ("a.txt", None),
        ("a.gz", None),
        ("a", None),
    ],
)
def test_extensions_stand_for_kinds(name: str, kind: Kind | None) -> None:
    """An extension of compression does not count."""
    assert kind_of_name(name) is kind


def test_the_first_bytes_count_before_the_extension(tmp_path: Path) -> None:
    """Files without an extension, or with that of another kind."""
    for name, start, kind in (
        ("a", b"PAR1", Kind.PARQUET),
        ("b.jsonl", b"ARROW1\0\0", Kind.ARROW),
        ("c", b"\xff\xff\xff\xff\x10\0\0\0", Kind.ARROW),
        ("d", b"", Kind.LINES),
    ):
        (tmp_path / name).write_bytes(start)
        assert kind_of_input(str(tmp_path / name)) is kind


def test_directories_and_patterns_stand_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In alphabetical order; hidden and unknown files and the outputs are left out."""
    monkeypatch.chdir(tmp_path)
    names = ("d/b.jsonl", "d/a.csv.gz", "d/sub/c.parquet", "d/.h.jsonl", "d/_tmp/x.jsonl", "d/R.md")
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    assert expanded(["d"]) == ("d/a.csv.gz", "d/b.jsonl", "d/sub/c.parquet")
    assert expanded(["d/*.jsonl", "d/**/*.parquet", "-", "no.jsonl"]) == (
        *("d/b.jsonl", "d/sub/c.parquet", "-", "no.jsonl"),
    )
    assert expanded(["d"], ["d/b.jsonl"]) == ("d/a.csv.gz", "d/sub/c.parquet")
    Path("[x].jsonl").touch()
    assert expanded(["[x].jsonl"]) == ("[x].jsonl",)
    with pytest.raises(InputError, match=r"no file matches e\*"):
        expanded(["e*"])
    Path("empty").mkdir()
    with pytest.raises(InputError, match=r"empty has no file of a known kind; known are \.jsonl"):
        expanded(["empty"])


def test_a_directory_can_get_its_own_output(tmp_path: Path) -> None:
    """The second run does not read what the first one wrote."""
    (tmp_path / "a.csv").write_text("text\nOne story about the sea\nOther words of the town\n")
    job = Job((str(tmp_path),), kept=str(tmp_path / "kept.csv"), index=tmp_path / "_index")
    assert counts(run(job, Settings())) == (2, 0, 0)
    assert run(job, Settings()).judged_before == 3


CSV = (
    "\ufeffid,text,at,site\r\n"
    + "".join(
        f'{number},"{text}, a ""quoted""\r\nsecond line",{1_704_067_200 + number},x\r\n'
        for number, text in enumerate(texts(30))
    )
).encode()
SETTINGS: dict[str, Any] = {
    "records": RecordSettings(event_time_field="at", namespace_field="site")
}


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("in.csv", bytes),
        ("in.csv.gz", gzip.compress),
        ("in.csv.bz2", bz2.compress),
        ("in.csv.xz", lzma.compress),
        ("in.csv.zst", zstandard.compress),
        ("in.tsv", lambda data: data.replace(b",", b"\t")),
    ],
)
def test_kept_rows_of_csv_have_their_bytes(tmp_path: Path, name: str, pack: Any) -> None:
    """The header comes first; quotes and line feeds within them stay."""
    (tmp_path / name).write_bytes(pack(CSV))
    kept = tmp_path / name.removesuffix(".gz").removesuffix(".zst")
    job = Job(
        (str(tmp_path / name),),
        kept=str(tmp_path / f"kept{kept.suffix}") if kept.suffix in {".csv", ".tsv"} else None,
        duplicates=str(tmp_path / "d.jsonl"),
    )
    seen: dict[str, int] = {}
    hooks = Hooks(on_verdict=lambda _, verdict: seen.update({verdict.id: verdict.event_time_ms}))
    assert counts(run(job, in_batches_of(7, **SETTINGS), hooks)) == (20, 10, 0)
    assert seen["4"] == 1_704_067_204_000
    if job.kept:
        rows = CSV.removeprefix(b"\xef\xbb\xbf").split(b'second line"')
        expected = b'second line"'.join(rows)
        for number in range(2, 30, 3):
            start = expected.index(b"\r\n%d," % number) + 2
            following = b"\r\n%d," % (number + 1)
            end = expected.index(following) + 2 if number < 29 else len(expected)
            expected = expected[:start] + expected[end:]
        comma = b"\t" if name.endswith(".tsv") else b","
        assert Path(job.kept).read_bytes() == expected.replace(b",", comma)


@pytest.mark.parametrize("count", [1, 9, 28, 30])
def test_a_crash_between_rows_of_csv_loses_and_repeats_nothing(tmp_path: Path, count: int) -> None:
    """A mark is never within a row; the header is written once."""
    (tmp_path / "in.csv").write_bytes(CSV)
    job = Job((str(tmp_path / "in.csv"),), kept=str(tmp_path / "k.csv"), index=tmp_path / "ix")
    with pytest.raises(Crash):
        run(job, in_batches_of(4, **SETTINGS), Hooks(on_batch=crash_after(count)))
    run(job, in_batches_of(7, **SETTINGS))
    run(Job(job.inputs, kept=str(tmp_path / "whole.csv")), Settings(**SETTINGS))
    assert (tmp_path / "k.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    with (tmp_path / "in.csv").open("ab") as file:
        file.write(b"30,Words that no other row has,,\r\n")
    assert counts(run(job, in_batches_of(7, **SETTINGS))) == (1, 0, 0)
    assert (tmp_path / "k.csv").read_bytes().count(b"id,text") == 1


def test_rows_that_are_not_documents_are_rejected(tmp_path: Path) -> None:
    """Each with its reason and its bytes; blank lines are counted."""
    (tmp_path / "in.csv").write_bytes(
        b"text,id,at\n\nonly one\n\xff,2,\nlate,3,yesterday\nfine words,,2024-01-01\n"
    )
    job = Job((str(tmp_path / "in.csv"),), kept=str(tmp_path / "k.csv"))
    reasons: list[tuple[str, str]] = []
    stages: set[str] = set()

    def note(record: Record, verdict: Verdict) -> None:
        assert record.value is not None
        reason = verdict.id
        if verdict.rejection is not None:
            reason = verdict.rejection.reason
            stages.add(verdict.rejection.stage)
        reasons.append((str(reason), record.value.decode("latin-1")))

    hooks = Hooks(on_verdict=note)
    tally = run(job, Settings(records=RecordSettings(event_time_field="at")), hooks)
    assert (counts(tally), tally.blank_lines) == ((1, 0, 3), 1)
    assert reasons == [
        ("InvalidCsv", "only one"),
        ("InvalidUtf8", "\xff,2,"),
        ("InvalidEventTime", "late,3,yesterday"),
        ("in.csv:6", "fine words,,2024-01-01"),
    ]
    assert stages == {"decode"}


def test_namespaces_of_csv_are_apart(tmp_path: Path) -> None:
    """Equal texts of two sites are both kept."""
    (tmp_path / "in.csv").write_bytes(b"text,site\nsame words,a\nsame words,b\nsame words,a\n")
    job = Job((str(tmp_path / "in.csv"),), kept=str(tmp_path / "k.csv"))
    settings = Settings(records=RecordSettings(namespace_field="site"))
    assert counts(run(job, settings)) == (2, 1, 0)


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (b"\n", {}, "in.csv has no header; the first line of CSV names the columns"),
        (b"text,id,text\n", {}, "in.csv has 2 columns 'text'; rename one, or name another column"),
        (b"body\nx\n", {}, "in.csv has no column 'text'; its columns are body"),
        (b'text\n"open\nx\n', {}, "the row at line 2 does not end: the file ends; close its"),
        (
            b"text\n" + b"x" * 99 + b"\n",
            {"limits": LimitSettings(value_bytes=50)},
            "the row at line 2 does not end: it has 99 bytes; .* raise limits.value_bytes",
        ),
    ],
)
def test_csv_that_cannot_be_read_is_an_error(
    tmp_path: Path, content: bytes, settings: dict[str, Any], message: str
) -> None:
    """One line that says who must act."""
    (tmp_path / "in.csv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        run(Job((str(tmp_path / "in.csv"),)), Settings(**settings))


def test_several_texts_of_csv_are_joined(tmp_path: Path) -> None:
    """Empty ones are left out; headers must be equal."""
    (tmp_path / "a.csv").write_text("title,body\nOne story,of the sea\nOne story,\n")
    (tmp_path / "b.csv").write_text("title,body\n,One story\n")
    (tmp_path / "c.csv").write_text("title\nx\n")
    settings = Settings(records=RecordSettings(text_fields=("title", "body")))
    both = tuple(str(tmp_path / name) for name in ("a.csv", "b.csv"))
    assert counts(run(Job(both), settings)) == (2, 1, 0)
    with pytest.raises(InputError, match=r"c\.csv has other columns than .*: title instead of tit"):
        run(Job((*both, str(tmp_path / "c.csv"))), settings)


def test_an_empty_part_of_csv_has_no_rows(tmp_path: Path) -> None:
    """As an empty file of JSON Lines; it may grow, and become the only one."""
    for name in ("a", "c"):
        (tmp_path / f"{name}.csv").touch()
    kept = tmp_path / "kept.csv"
    job = Job((str(tmp_path),), kept=str(kept), index=tmp_path / "index")
    assert counts(run(job, Settings())) == (0, 0, 0)
    assert kept.read_bytes() == b""
    (tmp_path / "b.csv").write_text("text\nStorm warning\n")
    assert counts(run(job, Settings())) == (1, 0, 0)
    (tmp_path / "c.csv").write_text("text\nHarvest festival\n")
    assert counts(run(job, Settings())) == (1, 0, 0)
    assert kept.read_text() == "text\nStorm warning\nHarvest festival\n"
    (tmp_path / "c.csv").write_text("body\nHarvest festival\n")
    with pytest.raises(InputError, match=r"c\.csv has other columns than .*b\.csv: body instead"):
        run(job, Settings())
