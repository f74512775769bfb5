"""``streamdedup index import`` of kept sketches, as it is typed; bad input is one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamdedup.extras import install
from streamdedup.settings.load import load_settings
from tests.support.commands import CommandLine
from tests.testkit import kept_sketches
from tests.testkit.kept_sketches import SCHEMA

CONFIG = """
dedup:
  num_perm: 32
  bands: 8
  rows: 2
index:
  delta_documents: 16
"""
IMPORT = ("index", "import", "kept", "index", "-c", "small.yaml")


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> CommandLine:
    """Return a runner of command lines in a folder that has only a configuration."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(CONFIG)
    return CommandLine(capfd)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Return the kept sketches of a small archive."""
    config = tmp_path_factory.mktemp("settings") / "small.yaml"
    config.write_text(CONFIG)
    settings = load_settings(config)
    return kept_sketches.judge(settings, kept_sketches.documents(120)).table(settings)


Change = Callable[[pa.Table], pa.Table]


def replaced(column: str, values: Any, kind: pa.DataType | None = None) -> Change:
    """Return a change that gives a column the same value in all rows, or other values."""

    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(column)
        if callable(values):
            return table.set_column(place, column, values(table.column(column)))
        typed = pa.scalar(values, kind or SCHEMA.field(column).type)
        return table.set_column(place, column, pa.repeat(typed, len(table)))

    return change


def one_replaced(column: str, value: Any, row: int = 0) -> Change:
    """Return a change that gives a column another value in one row."""

    def change(found: pa.ChunkedArray) -> pa.Array:
        values = found.to_pylist()
        values[row] = value
        return pa.array(values, found.type)

    return replaced(column, change)


@pytest.mark.parametrize(
    ("change", "code", "complaint"),
    [
        (lambda table: table.drop_columns("place"), 4, "has no column 'place'"),
        (lambda table: table.drop_columns("clock"), 4, "has no column 'clock'"),
        (
            replaced("signature", lambda found: found.cast(pa.large_binary())),
            4,
            "the column 'signature' of kept/part-00000.zstd.parquet is of type large_binary",
        ),
        (replaced("place", 1.5, pa.float64()), 4, "is of type double, expected int64"),
        (replaced("format", 2), 4, "format 2, this release reads 1; use the release"),
        (replaced("fingerprint", "0" * 16), 11, "written with parameters 0000000000000000, the"),
        (one_replaced("fingerprint", "0" * 16, -1), 4, "another fingerprint or clock"),
        (one_replaced("clock", b"", -1), 4, "import the files of one archive"),
        (replaced("clock", b"?"), 4, "is not a valid clock"),
        (
            replaced("place", 5),
            4,
            "part-00000.zstd.parquet: place 5 comes after place 5; the files in the order",
        ),
        (one_replaced("place", 10**6), 4, "place 1 comes after place 1000000"),
        (replaced("signature", b"short"), 4, "has a value of 5 bytes, expected 16"),
        (replaced("band_keys", b"short"), 4, "has a value of 5 bytes, expected 72"),
        (one_replaced("id", None), 4, "the column 'id' of kept/part-00000.zstd.parquet has rows"),
        (lambda table: table.slice(0, 0), 4, "kept holds no kept sketch"),
    ],
)
def test_bad_files_are_one_line(
    change: Change,
    code: int,
    complaint: str,
    command: CommandLine,
    table: pa.Table,
) -> None:
    """Nothing is left behind."""
    kept_sketches.write(Path("kept"), change(table))
    assert complaint in command(code, *IMPORT)
    assert_nothing_left()


def assert_nothing_left() -> None:
    """Check that the directory of the new index is missing or free."""
    assert not Path("index").exists() or [path.name for path in Path("index").iterdir()] == ["lock"]


def test_ids_that_are_not_utf_8_are_refused(command: CommandLine, table: pa.Table) -> None:
    """Parquet does not check its strings."""
    kept_sketches.write(Path("kept"), one_replaced("id", "document-?")(table))
    [path] = Path("kept").glob("*.parquet")
    pq.write_table(pq.read_table(path), path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"document-?", b"document-\xff"))
    assert "the column 'id' of kept/" in command(4, *IMPORT)
    assert_nothing_left()


def test_sources_that_are_no_archive(
    command: CommandLine, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncated file, another file, a folder in the folder, an empty folder; no pyarrow."""
    kept_sketches.write(Path("kept"), table, files=2)
    [first, second] = sorted(Path("kept").glob("*.parquet"))
    content = second.read_bytes()
    second.write_bytes(content[: len(content) // 2])
    assert "cannot read kept/part-00001.zstd.parquet: " in command(4, *IMPORT)
    second.write_bytes(content)
    Path("kept/zz").mkdir()
    assert "cannot read kept/zz: " in command(4, *IMPORT)
    Path("kept/zz").rmdir()
    first.rename("kept/part-2.parquet")
    assert "comes after place" in command(4, *IMPORT)
    assert "cannot read missing.parquet: " in command(4, "index", "import", "missing.parquet", "x")
    Path("empty").mkdir()
    complaint = command(4, "index", "import", "empty", "index")
    assert "empty holds neither an index nor Parquet files of kept sketches" in complaint
    assert_nothing_left()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert install("arrow") in command(4, *IMPORT)
    assert_nothing_left()


def test_exact_verification_needs_the_texts(command: CommandLine, table: pa.Table) -> None:
    """Without them the import is refused; with estimates it is not."""
    kept_sketches.write(Path("kept"), table)
    Path("exact.yaml").write_text(CONFIG.replace("dedup:", "dedup:\n  verify: exact"))
    complaint = command(11, "index", "import", "kept", "index", "-c", "exact.yaml")
    assert "without the texts that dedup.verify exact compares" in complaint
    assert_nothing_left()


def test_the_command_reports_what_it_has_skipped(command: CommandLine, table: pa.Table) -> None:
    """As a sentence and as JSON; without the right settings, the fingerprint differs."""
    kept_sketches.write(Path("kept"), table)
    Path("small.yaml").write_text(CONFIG + "  window_documents: 30\n")
    told = command(0, *IMPORT)
    older = len(table) - 30
    assert told == f"imported 30 documents into index; {older} older ones are not in the window\n"
    assert "already holds an index" in command(9, *IMPORT)
    into = ("index", "import", "kept/part-00000.zstd.parquet", "other", "-c", "small.yaml")
    assert json.loads(command(0, *into, "--json")) == {
        "documents": 30,
        "directory": "other",
        "skipped": older,
    }
    complaint = command(11, "index", "import", "kept", "third")
    assert "pass the configuration of the archive's deduplication with --config" in complaint
