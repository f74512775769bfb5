"""Labels from files: the formats, the errors, and the report."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from streamdedup.analysis.agreement import Answer, Label, report_on
from streamdedup.analysis.html import label_page, label_picture
from streamdedup.analysis.labels import read_labels
from streamdedup.errors import InputError
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import Settings
from tests.dedup.brute_force import true_jaccard


def label(
    number: int, similarity: float, answer: Answer, source: str = "a", time: str = ""
) -> Label:
    """Return a label of the pair with a number."""
    return Label((f"new-{number}", f"old-{number}"), similarity, answer, source, time, 0.8, "f")


def rising(source: str = "a", border: float = 0.75) -> list[Label]:
    """Return labels of pairs from 0.6 to 0.9: different below the border, same above it."""
    similarities = [0.6 + 0.01 * step for step in range(31)]
    return [
        label(number, one, "same" if one > border else "different", source)
        for number, one in enumerate(similarities)
    ]


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write JSON Lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def test_downloads_of_the_page(tmp_path: Path) -> None:
    """The similarity of the texts has priority over the estimate, also in compressed files."""
    row = {
        "id": "7",
        "position": "news:0:7",
        "original_id": "3",
        "original_position": "news:0:3",
        "estimate": 0.79,
        "jaccard": 0.81,
        "label": "same",
        "threshold": 0.8,
        "fingerprint": "abc",
        "time": "2026-11-22T10:00:00.000Z",
    }
    path = tmp_path / "labels.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join([json.dumps(row).encode(), b""])))
    (found,) = read_labels([str(path)], Settings())
    assert found == Label(
        ("news:0:7", "news:0:3"), 0.81, "same", str(path), "2026-11-22T10:00:00.000Z", 0.8, "abc"
    )
    plain = written(tmp_path / "estimate.jsonl", [row | {"jaccard": None, "label": "unsure"}])
    assert read_labels([plain], Settings())[0].similarity == 0.79


def test_tables_by_hand(tmp_path: Path) -> None:
    """A table names its columns; texts are compared as the settings ask."""
    path = tmp_path / "pairs.tsv"
    one, other = "the council of aldermoor", "the council of eastmere"
    lines = [
        "Label\ttext\toriginal_text\testimate",
        f"Same\t{one}\t{other}\t",
        "different\t\t\t0.4",
    ]
    path.write_text("\r\n".join(lines))
    settings = Settings(dedup=DedupSettings(shingle_size=3))
    first, second = read_labels([str(path)], settings)
    assert first.similarity == pytest.approx(true_jaccard(one, other))
    assert first.pair == (one, other)
    assert (second.similarity, second.answer) == (0.4, "different")
    assert second.pair == (f"{path}:3",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no label"),
        ('{"label": "yes", "jaccard": 0.5}', "label 'yes' is not same, different or unsure"),
        ('{"label": ["same"], "jaccard": 0.5}', "is not same, different or unsure"),
        ('{"label": "same"}', "needs jaccard or estimate, or both text and original_text"),
        ('{"label": "same", "text": "a"}', "needs jaccard or estimate"),
        ('{"label": "same", "jaccard": 1.5}', "jaccard 1.5 is not a number from 0 to 1"),
        ('{"label": "same", "estimate": "x"}', "estimate 'x' is not a number from 0 to 1"),
        ('{"label": "same", "estimate": true}', "is not a number from 0 to 1"),
        ('{"label": "same", "estimate": NaN}', "not valid JSON"),
        ('{"label": "same"', "not valid JSON"),
        ("same 0.5", "a first line with the names of the columns"),
        ("label\testimate\nsame", "the row has 1 cells, the first line 2 names"),
        ("label\testimate\nsame\tnan", "not a number from 0 to 1"),
        (b"label\testimate\nsame\t\xff", "not valid UTF-8"),
        (b'{"label": "same", "id": "\xff"}', "not valid JSON"),
    ],
)
def test_an_invalid_file_is_one_line(tmp_path: Path, content: str | bytes, words: str) -> None:
    """The error names the file, and the line if there is one."""
    path = tmp_path / "labels"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_labels([str(path)], Settings())
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_different_parameters(tmp_path: Path) -> None:
    """Similarities under different sketch parameters are not mixed."""
    with pytest.raises(InputError, match="cannot read"):
        read_labels([str(tmp_path / "none")], Settings())
    rows = [{"label": "same", "jaccard": 0.9, "fingerprint": name} for name in ("one", "two")]
    with pytest.raises(InputError, match="different sketch parameters \\(one, two\\)"):
        read_labels([written(tmp_path / "both.jsonl", rows)], Settings())


def test_the_proposal_and_the_wrong_verdicts() -> None:
    """The pairs between both thresholds are wrong now, and right with the proposal."""
    report = report_on(rising(), 0.8)
    assert report.proposal is not None
    assert report.proposal.threshold == pytest.approx(0.755)
    assert report.proposal.slope is None
    assert (report.proposal.wrong_now, report.proposal.wrong) == (4, 0)
    assert (report.labels, report.pairs, report.unsure, report.agreement) == (31, 31, 0, None)
    assert [(level.low, level.same, level.different) for level in report.levels] == [
        (0.6, 0, 5),
        (0.65, 0, 5),
        (0.7, 0, 5),
        (0.75, 4, 1),
        (0.8, 5, 0),
        (0.85, 5, 0),
        (0.9, 1, 0),
    ]


def test_several_people_label_one_pair() -> None:
    """Agreement counts pairs with several sure labels; a pair counts once in the fit."""
    second = rising("b", border=0.77)
    report = report_on([*rising(), *second, label(99, 0.7, "unsure")], 0.8)
    assert (report.labels, report.pairs, report.unsure) == (63, 31, 1)
    assert (report.repeated, report.agreeing) == (31, 29)
    assert report.agreement == pytest.approx(29 / 31)
    assert len(report.disagreements) == 2
    assert report.proposal is not None
    assert report.proposal.threshold == pytest.approx(0.765, abs=0.003)
    alone = report_on(rising(), 0.8).proposal
    twice = report_on([*rising(), *rising("b")], 0.8).proposal
    assert alone == twice


def test_the_last_label_counts_and_copies_do_not() -> None:
    """A pair that is labelled again in a file has the new label; a second download adds nothing."""
    changed = [label(1, 0.7, "same", time="1"), label(1, 0.7, "different", time="2")]
    report = report_on(changed, 0.8)
    assert (report.labels, report.levels[0].different) == (1, 1)
    again = [label(1, 0.7, "different", "later download", "2")]
    assert report_on([*changed, *again], 0.8).repeated == 0
    other = [label(1, 0.7, "different", "other person", "3")]
    assert report_on([*changed, *other], 0.8).repeated == 1


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([label(1, 0.8, "same")], 'no pair is labelled "different"'),
        ([label(1, 0.8, "different")], "label pairs of higher similarity"),
        ([label(1, 0.8, "unsure")], "no pair is labelled"),
        ([label(1, 0.9, "same"), label(2, 0.7, "different")], "2 labelled pairs do not show"),
    ],
)
def test_what_is_missing_for_a_proposal(labels: list[Label], words: str) -> None:
    """The report says which labels it needs; the page is drawn all the same."""
    report = report_on(labels, 0.8)
    assert report.proposal is None
    assert words in report.missing
    assert words.replace('"', "&#34;") in label_page(report)


def test_the_picture() -> None:
    """Circles, curve and lines are in the frame, and the curve rises through the proposal."""
    shown = label_picture(report_on(rising(), 0.8))
    frame = shown.frame
    assert len(shown.points) == 7
    for point in shown.points:
        assert frame.left <= point.x <= frame.left + frame.width
        assert frame.top <= point.y <= frame.top + frame.height
    heights = [float(point.split(",")[1]) for point in shown.curve.split()]
    assert heights == sorted(heights, reverse=True)
    now, proposed = shown.marks
    assert (now.label, proposed.label) == ("now 0.8", "proposed 0.755")
    assert proposed.x < now.x
    assert shown.interval is not None
    assert shown.interval[0] <= proposed.x <= shown.interval[1] < now.x
