"""``streamdedup evaluate``: its figures against plain counting, its page and its flags."""

from __future__ import annotations

import itertools
import json
import os
import random
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.evaluate import evaluate
from streamdedup.analysis.report import Example, Report, as_json
from streamdedup.analysis.words import excerpt
from streamdedup.cli import main
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.errors import InputError, SettingsError
from streamdedup.model import Document
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from streamdedup.sketch.bands import Banding
from streamdedup.sketch.normalize import PROFILES
from streamdedup.sketch.sketcher import Sketcher, namespace_hash

BANDINGS = [Banding(8, 4), Banding(20, 2)]


def made_up_documents() -> list[Document]:
    """Return documents with copies, near-copies, an empty one, and two namespaces."""
    chance = random.Random(4)
    words = ["".join(chance.choices("abcdefgh", k=chance.randint(2, 7))) for _ in range(300)]
    texts = [""]
    for _ in range(260):
        if len(texts) > 1 and chance.random() < 0.5:
            parts = chance.choice(texts[1:]).split()
            for _ in range(chance.choice((0, 0, 1, 1, 2, 4))):
                parts[chance.randrange(len(parts))] = chance.choice(words)
            texts.append(" ".join(parts))
        else:
            texts.append(" ".join(chance.choices(words, k=chance.randint(3, 30))))
    return [
        Document(text, f"id-{at}", namespace="other" if at % 10 == 0 else "")
        for at, text in enumerate(texts)
    ]


DOCUMENTS = made_up_documents()


@pytest.fixture(scope="module")
def settings() -> Settings:
    """Return settings of short signatures, so that there is something to get wrong."""
    return load_settings(dedup={"threshold": 0.7, "num_perm": 64, "recall": 0.95})


@pytest.fixture(scope="module")
def report(settings: Settings) -> Report:
    """Return the report on the made-up documents."""
    return evaluate(Corpus(DOCUMENTS, rejected=3), settings, BANDINGS, floor=0.3)


def plain_jaccards() -> dict[tuple[int, int], float]:
    """Return the similarity of every pair that can be compared, by comparing all with all."""
    normalise = PROFILES["plain"]
    sets = []
    for document in DOCUMENTS:
        text = normalise(document.text)
        runs = {text[at : at + 5] for at in range(max(1, len(text) - 4))} if text else set()
        sets.append(runs)
    return {
        (one, two): len(sets[one] & sets[two]) / len(sets[one] | sets[two])
        for one, two in itertools.combinations(range(len(DOCUMENTS)), 2)
        if sets[one] and sets[two] and DOCUMENTS[one].namespace == DOCUMENTS[two].namespace
    }


@pytest.fixture(scope="module")
def jaccards() -> dict[tuple[int, int], float]:
    """Return the similarity of every pair that can be compared."""
    return plain_jaccards()


def plain_candidates(settings: Settings, banding: Banding) -> set[tuple[int, int]]:
    """Return the pairs that share a band, by comparing all with all."""
    dedup = settings.dedup.model_copy(update={"bands": banding.bands, "rows": banding.rows})
    sketcher = Sketcher(dedup.sketch_parameters())
    normalised = sketcher.normalise([document.text for document in DOCUMENTS])
    namespaces = np.array([namespace_hash(one.namespace) for one in DOCUMENTS], dtype=np.uint64)
    keys = sketcher.sketch(normalised, namespaces).band_keys[:, :-1]
    return {
        (one, two)
        for one, two in itertools.combinations(range(len(DOCUMENTS)), 2)
        if normalised[one] and normalised[two] and (keys[one] == keys[two]).any()
    }


def test_pairs_and_levels(report: Report, jaccards: dict[tuple[int, int], float]) -> None:
    """All pairs are counted, and those of each level from the floor on."""
    assert report.documents == 261
    assert report.rejected == 3
    assert report.without_shingles == 1
    assert report.pairs == len(jaccards)
    assert [level.low for level in report.truth] == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    for level in report.truth:
        within = [
            j for j in jaccards.values() if level.low <= j < level.high or j == level.low == 1
        ]
        assert level.pairs == len(within)


@pytest.mark.parametrize("at", range(len(BANDINGS)))
def test_candidates(
    report: Report, settings: Settings, jaccards: dict[tuple[int, int], float], at: int
) -> None:
    """Candidates are counted at each level of true similarity, and never twice."""
    found = plain_candidates(settings, BANDINGS[at])
    banding = report.bandings[at]
    assert banding.candidates == len(found) == sum(banding.histogram)
    assert banding.never_compared == pytest.approx(1 - len(found) / len(jaccards))
    for level in banding.levels:
        within = [
            pair
            for pair, j in jaccards.items()
            if level.low <= j < level.high or j == level.low == 1
        ]
        assert level.found == len(found.intersection(within))
        if level.pairs is not None:
            assert level.missed == len(within) - level.found
            assert level.expected is not None
            curve = [BANDINGS[at].candidate_probability(jaccards[pair]) for pair in within]
            assert level.expected == pytest.approx(sum(curve))


def test_verification_adds_up(report: Report) -> None:
    """Every candidate is accepted or refuted, rightly or wrongly."""
    for banding in report.bandings:
        accepted = sum(level.accepted for level in banding.levels)
        assert banding.candidates == accepted + banding.refuted
        similar = [level for level in banding.levels if level.low >= report.threshold]
        assert banding.lost == sum(level.found - level.accepted for level in similar)
        assert banding.false_alarms == accepted - sum(level.accepted for level in similar)


def test_documents_as_the_stream_judges_them(
    report: Report, settings: Settings, jaccards: dict[tuple[int, int], float]
) -> None:
    """Precision and recall of documents are those of the engine's verdicts, counted plainly."""
    for banding in report.bandings:
        dedup = settings.dedup.model_copy(update=banding.banding._asdict())
        with Deduplicator(settings.model_copy(update={"dedup": dedup})) as deduplicator:
            verdicts = deduplicator.process(DOCUMENTS)
        kept = [at for at, verdict in enumerate(verdicts) if verdict.kept]
        repeats = {
            at
            for at in range(len(DOCUMENTS))
            if any(jaccards.get((one, at), 0.0) >= 0.7 for one in kept if one < at)
        }
        dropped = {at for at, verdict in enumerate(verdicts) if not verdict.kept}
        score = banding.documents
        assert score is not None
        assert (score.repeats, score.dropped) == (len(repeats), len(dropped))
        assert score.right == len(repeats & dropped)
        assert score.right >= score.named_right > 0
        assert score.recall == pytest.approx(len(repeats & dropped) / len(repeats))
        assert score.precision == pytest.approx(len(repeats & dropped) / len(dropped))


def test_examples_are_the_worst(report: Report, jaccards: dict[tuple[int, int], float]) -> None:
    """Misses come from the most similar pair down, false alarms from the least similar up."""
    number = {document.id: at for at, document in enumerate(DOCUMENTS)}
    for banding in report.bandings:
        for example in (*banding.misses, *banding.alarms):
            one, two = (number[name] for name in example.ids)
            assert one < two
            assert jaccards[one, two] == pytest.approx(example.jaccard)
        misses = [example.jaccard for example in banding.misses]
        alarms = [example.jaccard for example in banding.alarms]
        assert misses == sorted(misses, reverse=True)
        assert alarms == sorted(alarms)
        assert all(jaccard >= 0.7 for jaccard in misses)
        assert all(jaccard < 0.7 for jaccard in alarms)
    assert any(banding.misses for banding in report.bandings)
    assert any(banding.alarms for banding in report.bandings)


def test_error_of_the_estimate(report: Report) -> None:
    """The estimate is nearly without bias, and deviates no more than theory allows."""
    assert [error.low for error in report.errors] == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    for error in report.errors:
        assert abs(error.bias) < 4 * error.theory / error.pairs**0.5 + 0.02
        assert error.deviation < 1.5 * error.theory


def test_background(report: Report) -> None:
    """Unrelated documents are measured without the related ones, and settings follow."""
    background = report.background
    assert 0 < background.mean < 0.1
    assert background.mean <= background.effective < report.floor
    assert background.proposal.candidate_probability(report.threshold) >= 0.95


def test_more_values_than_configured(settings: Settings) -> None:
    """A banding that takes more values than the settings have gets them."""
    found = evaluate(Corpus(DOCUMENTS[:40]), settings, [Banding(30, 5)])
    assert found.bandings[0].num_perm == 150


def test_labels_that_agree(settings: Settings) -> None:
    """Groups of copies are found again: all pairs, and an index of one."""
    texts = [f"story {name * 5} of its own {name * 7} kind" for name in "abcde"]
    documents = [Document(text) for text in texts * 3] + [Document("")]
    corpus = Corpus(documents, labels=[*("abcde" * 3), "none"])
    clusters = evaluate(corpus, settings, [Banding(16, 4)]).bandings[0].clusters
    assert clusters is not None
    assert (clusters.labelled, clusters.joined, clusters.both) == (15, 15, 15)
    assert clusters.adjusted_rand_index == clusters.f1 == 1


def test_labels_that_differ(settings: Settings) -> None:
    """The index is Hubert and Arabie's: two groups of three, three clusters of two."""
    names = ("one text that is long enough", "second wholly different sentence", "Third! 0123456")
    documents = [Document(names[at]) for at in (0, 0, 1, 1, 2, 2)]
    corpus = Corpus(documents, labels=["a", "a", "a", "b", "b", "b"])
    clusters = evaluate(corpus, settings, [Banding(16, 4)]).bandings[0].clusters
    assert clusters is not None
    assert (clusters.labelled, clusters.joined, clusters.both) == (6, 3, 2)
    assert clusters.adjusted_rand_index == pytest.approx((2 - 1.2) / (4.5 - 1.2))
    assert (clusters.precision, clusters.recall) == pytest.approx((2 / 3, 1 / 3))
    assert clusters.f1 == pytest.approx(4 / 9)


def test_report_can_be_json(report: Report) -> None:
    """All of a report can be written as JSON, derived figures included."""
    found = json.loads(json.dumps(as_json(report)))
    assert found["bandings"][0]["banding"] == {"bands": 8, "rows": 4}
    assert 0 < found["bandings"][0]["documents"]["recall"] <= 1
    assert found["bandings"][0]["levels"][-1]["missed"] == 0


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of the documents, one line of which is none."""
    for name in os.environ:
        if name.upper().startswith("STREAMDEDUP_"):
            monkeypatch.delenv(name)
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"id": one.id, "text": f"<b>{one.text}</b>"}) for one in DOCUMENTS]
    path.write_text("\n".join([*lines, "", "no document"]))
    return path


def run(*arguments: str | Path) -> Result:
    """Run the command."""
    return CliRunner().invoke(main.app, ["evaluate", *map(str, arguments)])


def test_tables(corpus: Path) -> None:
    """The tables are printed, one for each banding and one that compares them."""
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


def test_differences_without_colours(tmp_path: Path) -> None:
    """Where there are no colours, brackets mark what differs."""
    path = tmp_path / "near.jsonl"
    path.write_text('{"text": "a text of one length"}\n{"text": "a text of two lengths"}')
    result = run(path, "--banding", "1x9", "--threshold", "0.3")
    assert "a text of [one length]" in result.stdout


def test_labels_of_the_command(tmp_path: Path) -> None:
    """Labels are read from a field; a document without it is in a group of its own."""
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


class _Page(HTMLParser):
    """Notes what a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element, and what it refers to."""
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "data"}]


def test_page_needs_nothing_else(corpus: Path, tmp_path: Path) -> None:
    """The page refers to nothing, holds no script, and shows the texts as text."""
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
    """Tables that are too wide can be reached by keyboard; rows and the page have names."""
    path = tmp_path / "report.html"
    assert run(corpus, "--html", path, "--banding", "20x2", "--banding", "9x4").exit_code == 0
    content = path.read_text()
    tables = content.count("<table>")
    assert tables == 4
    assert content.count('role="region" tabindex="0" aria-label=') == tables
    assert '<th scope="row">' in content
    assert '<html lang="en">' in content
    assert "<title>How good the sketches are: 261 documents at 0.8</title>" in content


def test_how_duplicates_are_verified(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of the stream says what decided."""
    assert "verified by the estimate" in run(corpus).stdout
    monkeypatch.setenv("STREAMDEDUP_DEDUP__VERIFY", "exact")
    assert "verified by the texts" in run(corpus).stdout


def differing(one: str, two: str) -> list[tuple[str, list[str]]]:
    """Return what is shown of two texts, and what of it is marked."""
    shown = excerpt(Example(("1", "2"), (one, two), 0.8, 0.8))
    return [
        ("".join(part.text for part in side), [part.text for part in side if part.differs])
        for side in shown.texts
    ]


def test_differences_are_marked() -> None:
    """Words that the other text has not are marked; spaces and capitals make no difference."""
    assert differing("The  cat sat\non mats", "the cat lay down on mats") == [
        ("The cat sat on mats", ["sat"]),
        ("the cat lay down on mats", ["lay down"]),
    ]
    assert differing("one", "") == [("one", ["one"]), ("", [])]
    assert differing("", "") == [("", []), ("", [])]


def test_differences_without_spaces() -> None:
    """Where words are written without spaces, single characters are marked."""
    assert [marked for _, marked in differing("今日は晴れです", "今日は雨です")] == [
        ["晴れ"],
        ["雨"],
    ]


def test_differences_far_apart() -> None:
    """What is alike is left out in the same places, and what does not end is cut."""
    alike = " ".join(f"w{at}" for at in range(100))
    one, two = differing(f"{alike} a {alike} b {alike}", f"{alike} c {alike} d {alike}")
    assert (one[1], two[1]) == (["a", "b"], ["c", "d"])
    assert one[0].startswith("… w92")
    assert one[0].endswith("w7 …")
    assert one[0].count("…") == two[0].count("…") == 3
    long = [f"a{at} b{at} " * 9 for at in range(1000)]
    for text, _ in differing("".join(long), "".join(long[::-1])):
        assert len(text) < 1000
        assert text.endswith(" …")


def test_plot(corpus: Path, tmp_path: Path) -> None:
    """The histograms are saved as a picture."""
    path = tmp_path / "histogram.png"
    assert run(corpus, "--plot", path, "--banding", "20x5", "--banding", "5x20").exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_swapped_bands_are_noticed(corpus: Path) -> None:
    """A banding that finds nothing is told before the work begins."""
    result = run(corpus, "--banding", "5x20", "--limit", "50")
    assert "did you mean 20 bands of 5 rows" in result.stderr


@pytest.mark.parametrize("banding", ["20", "0x5", "20x", "9001x1", "20,5"])
def test_wrong_banding(corpus: Path, banding: str) -> None:
    """A banding that cannot be read is one line."""
    error = run(corpus, "--banding", banding).exception
    assert isinstance(error, SettingsError)
    assert "such as 20x7" in str(error)


def test_nothing_to_evaluate(tmp_path: Path) -> None:
    """A corpus without documents is an error of the input."""
    path = tmp_path / "none.jsonl"
    path.write_text("\n")
    assert isinstance(run(path).exception, InputError)


def test_one_document(tmp_path: Path) -> None:
    """One document has no pairs, and a report nevertheless."""
    path = tmp_path / "one.jsonl"
    path.write_text('{"text": "a single text"}\n')
    found = json.loads(run(path, "--json").stdout)
    assert found["pairs"] == 0
    assert found["bandings"][0]["candidates"] == 0


def test_page_that_cannot_be_written(corpus: Path, tmp_path: Path) -> None:
    """A page in a folder that is not there is an error of the output."""
    result = run(corpus, "--limit", "20", "--html", tmp_path / "no" / "page.html")
    assert isinstance(result.exception, InputError)
