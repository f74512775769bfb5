"""``streamdedup evaluate --labels`` as it is typed: the text, JSON, the page and the flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from streamdedup.cli import main
from streamdedup.errors import InputError


def run(*arguments: str | Path) -> Result:
    """Run the command."""
    return CliRunner().invoke(main.app, ["evaluate", *map(str, arguments)])


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """Return a file of labels: pairs below 0.74 are different, and a few above it."""
    path = tmp_path / "labels.jsonl"
    rows = [
        {
            "id": f"<b>{step}</b>",
            "original_id": "o",
            "estimate": 0.6 + step / 200,
            "label": "same" if step > 28 and step % 9 else "different",
            "threshold": 0.85,
            "fingerprint": "abc",
        }
        for step in range(60)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_text(labels: Path) -> None:
    """The proposal has an interval, and the current threshold is that of the labels."""
    result = run("--labels", labels)
    assert result.exit_code == 0, result.exception
    for words in (
        "0.85 now",
        "60 labelled same or different",
        "95 % interval by profile likelihood",
        "The labels contradict the current threshold, 0.85.",
        "Proposed settings",
        "  threshold: 0.7",
    ):
        assert words in " ".join(result.stdout.split("\n")), words


def test_the_proposal_comes_first(labels: Path, tmp_path: Path) -> None:
    """Both kinds of report begin with the proposal, before the table and the disagreements."""
    other, page = tmp_path / "other.jsonl", tmp_path / "labels.html"
    other.write_text(labels.read_text().replace("different", "same", 1))
    shown = run("--labels", labels, "--labels", other, "--html", page).stdout
    assert shown.startswith("At a similarity of 0.7")
    for text in (shown, page.read_text()):
        parts = ("At a similarity of", "Labelled both", "threshold: 0.7", "Labels by similarity")
        places = [text.index(part) for part in parts]
        assert places == sorted(places)


def test_json_and_a_given_threshold(labels: Path) -> None:
    """Standard output is one JSON document; a flag replaces the labels' threshold."""
    found = json.loads(run("--labels", labels, "--json").stdout)
    proposal = found["proposal"]
    assert proposal["low"] < proposal["threshold"] < proposal["high"]
    assert found["threshold"] == 0.85
    given = json.loads(run("--labels", labels, "--json", "--threshold", "0.75").stdout)
    assert (given["threshold"], given["proposal"]["threshold"]) == (0.75, proposal["threshold"])
    assert "do not contradict" in run("--labels", labels, "--threshold", "0.75").stdout.replace(
        "\n", " "
    )


def test_several_files(labels: Path, tmp_path: Path) -> None:
    """The labels of several people are compared; disagreements are named."""
    other = tmp_path / "other.jsonl"
    first, *rest = labels.read_text().splitlines()
    other.write_text("\n".join([first.replace("different", "same"), *rest]))
    result = run("--labels", labels, "--labels", other)
    assert "59 of 60 pairs with several labels have equal ones" in result.stdout
    assert "Labelled both same and different: <b>0</b> / o." in result.stdout


def test_page(labels: Path, tmp_path: Path) -> None:
    """The page has the picture, escapes ids, and refers to nothing."""
    path = tmp_path / "labels.html"
    other = tmp_path / "other.jsonl"
    other.write_text(labels.read_text().replace("different", "same"))
    assert run("--labels", labels, "--labels", other, "--html", path).exit_code == 0
    content = path.read_text()
    assert "<polyline" in content
    assert "&lt;b&gt;0&lt;/b&gt;" in content
    assert "<b>" not in content
    assert "src=" not in content
    assert "<script" not in content
    missing = run("--labels", labels, "--html", tmp_path / "no" / "page.html")
    assert isinstance(missing.exception, InputError)


@pytest.mark.parametrize("arguments", [[], ["corpus.jsonl", "--labels", "labels.jsonl"]])
def test_documents_or_labels(arguments: list[str]) -> None:
    """Exactly one of both is given."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert "either files of documents, or --labels" in result.stderr
