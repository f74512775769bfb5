"""``streamdedup evaluate`` as it is typed: tables, JSON, the page and the flags."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from typer.testing import CliRunner, Result

from streamdedup.cli import main
from streamdedup.errors import InputError, SettingsError
from tests.analysis.made_up import DOCUMENTS


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Return a file of the documents, with one line that is not a document."""
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"id": one.id, "text": f"<b>{one.text}</b>"}) for one in DOCUMENTS]
    path.write_text("\n".join([*lines, "", "no document"]))
    return path


def run(*arguments: str | Path) -> Result:
    """Run the command."""
    return CliRunner().invoke(main.app, ["evaluate", *map(str, arguments)])


def test_tables(corpus: Path) -> None:
    """A table is printed for each banding, and one that compares them."""
    result = run(corpus, "--banding", "20x5", "--banding", "10x5", "--threshold", "0.7")
    assert result.exit_code == 0, result.exception
    for words in (
        "261, ",
        "1 rejected",
        "20 bands of 5 rows",
        "10 bands of 5 rows",
        "never compared",
        "refuted",
        "Proposed settings",
        "background:",
    ):
        assert words in result.stdout


def test_the_answer_comes_first(corpus: Path, tmp_path: Path) -> None:
    """The share of repeats, pairs on both sides of the threshold, and then how it was measured."""
    path = tmp_path / "report.html"
    shown = run(corpus, "--threshold", "0.7", "--html", path).stdout
    score = json.loads(run(corpus, "--threshold", "0.7", "--json").stdout)["bandings"][0]
    repeats = score["documents"]["repeats"]
    assert repeats > 10
    first = f"At 0.7, {repeats} of 261 documents repeat an earlier one ({repeats / 261:.1%})."
    assert shown.startswith(first)
    page = path.read_text()
    for text in (shown, page):
        parts = (first, "The least similar pairs that are", "The most similar pairs that are not")
        places = [text.index(part) for part in (*parts, "verified by", "bands of")]
        assert places == sorted(places)


def test_differences_without_colours(tmp_path: Path) -> None:
    """Without colours, brackets mark the differences."""
    path = tmp_path / "near.jsonl"
    path.write_text('{"text": "a text of one length"}\n{"text": "a text of two lengths"}')
    result = run(path, "--banding", "1x9", "--threshold", "0.3")
    assert "a text of [one length]" in result.stdout


def test_labels_of_the_command(tmp_path: Path) -> None:
    """Labels are read from a field; a document without it has a label of its own."""
    path = tmp_path / "labelled.jsonl"
    lines = ['{"text": "a text of some length", "meta": {"group": 7}}'] * 2
    path.write_text("\n".join([*lines, '{"text": "a text of some length"}']))
    clusters = json.loads(run(path, "--json", "--label-field", "meta.group").stdout)
    score = clusters["bandings"][0]["clusters"]
    assert (score["labelled"], score["joined"], score["both"]) == (1, 3, 1)
    assert "adjusted Rand index" in run(path, "--label-field", "meta.group").stdout


def test_json_of_the_command(corpus: Path) -> None:
    """Standard output is one JSON document; the settings' own bands are the default."""
    result = run(corpus, "--json", "--limit", "100")
    found = json.loads(result.stdout)
    assert found["documents"] == 100
    assert [one["banding"] for one in found["bandings"]] == [{"bands": 20, "rows": 7}]


def test_how_duplicates_are_verified(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report names the kind of verification."""
    assert "verified by the estimate" in run(corpus).stdout
    monkeypatch.setenv("STREAMDEDUP_DEDUP__VERIFY", "exact")
    assert "verified by the texts" in run(corpus).stdout


def test_swapped_bands_are_noticed(corpus: Path) -> None:
    """A banding that finds nothing causes a warning."""
    result = run(corpus, "--banding", "5x20", "--limit", "50")
    assert "did you mean 20 bands of 5 rows" in result.stderr


@pytest.mark.parametrize("banding", ["20", "0x5", "20x", "9001x1", "1001x1", "20,5"])
def test_wrong_banding(corpus: Path, banding: str) -> None:
    """An invalid banding is one line."""
    error = run(corpus, "--banding", banding).exception
    assert isinstance(error, SettingsError)
    assert "such as 20x7" in str(error)


def test_nothing_to_evaluate(tmp_path: Path) -> None:
    """A corpus without documents is an input error."""
    path = tmp_path / "none.jsonl"
    path.write_text("\n")
    assert isinstance(run(path).exception, InputError)


def test_one_document(tmp_path: Path) -> None:
    """One document has a report without pairs."""
    path = tmp_path / "one.jsonl"
    path.write_text('{"text": "a single text"}\n')
    found = json.loads(run(path, "--json").stdout)
    assert found["pairs"] == 0
    assert found["bandings"][0]["candidates"] == 0


def test_page_that_cannot_be_written(corpus: Path, tmp_path: Path) -> None:
    """A page in a missing folder is an error."""
    result = run(corpus, "--limit", "20", "--html", tmp_path / "no" / "page.html")
    assert isinstance(result.exception, InputError)


class _Page(HTMLParser):
    """Collects the elements and the references of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an element and its references."""
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "data"}]


def test_page_needs_nothing_else(corpus: Path, tmp_path: Path) -> None:
    """The page has no references and no scripts, and escapes the texts."""
    path = tmp_path / "report.html"
    options = ["--banding", "20x2", "--threshold", "0.7", "--num-perm", "64"]
    assert run(corpus, "--html", path, *options).exit_code == 0
    content = path.read_text()
    page = _Page()
    page.feed(content)
    assert page.links == []
    assert not page.tags & {"script", "link", "img", "iframe", "b"}
    assert {"table", "svg"} <= page.tags
    assert "&lt;b&gt;" in content
    assert "prefers-color-scheme: dark" in content


def test_page_can_be_read_by_all(corpus: Path, tmp_path: Path) -> None:
    """Wide tables can be scrolled by keyboard; rows and the page have names."""
    path = tmp_path / "report.html"
    assert run(corpus, "--html", path, "--banding", "20x2", "--banding", "9x4").exit_code == 0
    content = path.read_text()
    tables = content.count("<table>")
    assert tables == 4
    assert content.count('role="region" tabindex="0" aria-label=') == tables
    assert '<th scope="row">' in content
    assert '<html lang="en">' in content
    assert "<title>Near-duplicates: 261 documents at 0.8</title>" in content


def test_tables_and_csv_have_the_report_of_lines(tmp_path: Path) -> None:
    """Columns are named like fields; ids and labels that are missing are positions."""
    rows: list[dict[str, str | None]] = [
        {"name": one.id, "body": one.text, "group": one.text[:9]} for one in DOCUMENTS
    ]
    rows[3]["group"] = rows[5]["name"] = rows[7]["body"] = None
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "c.jsonl").write_text("".join(lines))
    table = pa.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "c.parquet", row_group_size=50)
    csv.write_csv(table.filter(pa.array([row != rows[7] for row in rows])), tmp_path / "c.csv")
    fields = ("--text-field", "body", "--id-field", "name", "--label-field", "group")
    reports = {}
    for kind in ("jsonl", "parquet", "csv"):
        result = run(tmp_path / f"c.{kind}", *fields, "--json")
        assert result.exit_code == 0, result.exception
        reports[kind] = json.loads(result.stdout.replace(f"c.{kind}", "c"))
    for report in reports.values():
        for timed in (report, *report["bandings"]):
            timed.pop("seconds", None)
    assert reports["parquet"] == reports["jsonl"]
    assert reports["csv"] == reports["jsonl"] | {"rejected": 0}
    result = run(tmp_path / "c.parquet", "--text-field", "text")
    assert isinstance(result.exception, InputError)
    assert "its columns are name, body, group" in str(result.exception)


def test_a_page_replaces_no_input(corpus: Path) -> None:
    """By no path; a page in the folder of the documents is left out."""
    link = corpus.with_name("link.html")
    link.symlink_to(corpus)
    config = corpus.with_name("settings.yaml")
    config.write_text("{}")
    before = corpus.read_bytes()
    for arguments in (
        (corpus, "--html", link),
        ("--labels", corpus, "--html", corpus),
        (corpus, "--config", config, "--html", config),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, InputError)
        assert "is one of the inputs; give another file" in str(result.exception)
    result = run(corpus, "--html", "page.html.gz")
    assert "give a name without .gz" in str(result.exception)
    link.unlink()
    config.unlink()
    for _ in range(2):
        result = run(corpus.parent / "*", "--html", corpus.with_name("page.html"))
        assert "261, " in result.stdout
    assert corpus.read_bytes() == before
