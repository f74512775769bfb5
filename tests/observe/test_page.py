"""The page: what is remembered for it, what it is told, and what it never tells."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.model import IndexUpdate, Judgement, JudgementCounts, Outcome, Position, Verdict
from streamdedup.observe import page, recent
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.recent import BINS, SLOT_S, SLOTS, Recent, histogram
from streamdedup.observe.state import WorkerState
from streamdedup.observe.status import StatusServer
from streamdedup.settings.sections import RecordSettings, Settings, StatusSettings
from tests.support.browser.feed import TOPIC, Feed
from tests.support.browser.samples import HOSTILE, article, edited, stream
from tests.support.builders import columns, examples, update_of

PATHS = ("/page", "/page/page.css", "/page/page.js", "/page/state", "/page/duplicates")
TEXT = article(random.Random(1))
NEAR = f"{TEXT} One more sentence."


def page_settings(**status: Any) -> Settings:
    """Return settings with a page on some port."""
    return Settings(status=StatusSettings(port=0, **status))


class Site:
    """A client for a running server."""

    def __init__(self, port: int, client: aiohttp.ClientSession) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self._client = client

    async def get(self, path: str) -> tuple[int, str]:
        """Return the HTTP status and the body."""
        async with self._client.get(self._address + path) as response:
            return response.status, await response.text()

    async def headers(self, path: str) -> dict[str, str]:
        """Return the headers."""
        async with self._client.get(self._address + path) as response:
            return dict(response.headers)

    async def post(self, path: str) -> int:
        """Return the HTTP status of a request that would change something."""
        async with self._client.post(self._address + path) as response:
            return response.status

    async def ask(self, path: str) -> Any:
        """Return an answer's content."""
        status, text = await self.get(path)
        assert status == 200, text
        return json.loads(text)

    async def duplicates(self, low: float = 0.0, high: float = 1.0) -> list[dict[str, Any]]:
        """Return the duplicates that are shown."""
        answer = await self.ask(f"/page/duplicates?low={low}&high={high}")
        shown: list[dict[str, Any]] = answer["duplicates"]
        return shown


@asynccontextmanager
async def served(settings: Settings, state: WorkerState) -> AsyncIterator[Site]:
    """Serve a worker's state."""
    async with (
        StatusServer(settings.status, Metrics(), state) as server,
        aiohttp.ClientSession() as client,
    ):
        yield Site(server.port, client)


def words(parts: list[list[Any]]) -> str:
    """Return the text of one side."""
    return "".join(text for text, _ in parts)


def marked(parts: list[list[Any]]) -> list[str]:
    """Return what is marked on one side."""
    return [text for text, differs in parts if differs]


def judgement(counts: Counter[Outcome], similarities: tuple[float, ...] = ()) -> Judgement:
    """Return a judgement with so many verdicts of each kind."""
    verdicts = [
        Verdict(outcome, "", Position(TOPIC, 0, 0)) for outcome in sorted(counts.elements())
    ]
    nothing: IndexUpdate = update_of(columns([]), 0)
    return Judgement(verdicts, nothing, JudgementCounts(similarities=list(similarities)))


async def test_the_root_leads_to_the_page() -> None:
    """Who types the address alone finds the page."""
    async with served(page_settings(), WorkerState()) as site:
        assert await site.get("/") == await site.get("/page")


@pytest.mark.parametrize("path", PATHS)
async def test_every_answer_has_the_policy(path: str) -> None:
    """Neither the page nor its data may load, run or be framed by anything else."""
    async with served(page_settings(), WorkerState()) as site:
        assert (await site.get(path))[0] == 200
        headers = await site.headers(path)
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert await site.post(path) == 405


@pytest.mark.parametrize("path", PATHS)
async def test_the_page_can_be_switched_off(path: str) -> None:
    """Without status.page there is no page, and all else is as it was."""
    async with served(page_settings(page=False), WorkerState("running")) as site:
        assert (await site.get(path))[0] == 404
        assert await site.get("/readyz") == (200, "ready\n")


def test_the_files_need_nothing_else() -> None:
    """No address of another host, no code in the HTML, no way from a string to HTML."""
    folder = resources.files("streamdedup.observe") / "web"
    files = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir()}
    assert files.keys() == {"page.html", "page.css", "page.js"}
    for name, content in files.items():
        addresses = set(re.findall(r"\w+://[^\s\"']+", content))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
    html, script = files["page.html"], files["page.js"]
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|<script(?! src=)", html)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(", script
    )
    known = set(re.findall(r'id="([\w-]+)"', html))
    assert set(re.findall(r'byId\("([\w-]+)"\)', script)) <= known
    assert set(re.findall(r'\bsetText\("([\w-]+)"', script)) <= known


async def test_the_state_is_the_status_and_the_minutes() -> None:
    """What /status says, the verdicts slot by slot, and the similarities of the candidates."""
    settings = page_settings()
    with Feed(settings, lambda: 0.0) as feed:
        feed.give([{"id": "a", "text": TEXT}, {"id": "b", "text": TEXT}, b"no JSON"])
        async with served(settings, feed.state) as site:
            status, state = await site.ask("/status"), await site.ask("/page/state")
    assert status.items() <= state.items()
    assert state["threshold"] == settings.dedup.threshold
    assert state["show_text"] is False
    assert state["slot_seconds"] == SLOT_S
    assert {name: counts[-1] for name, counts in state["minutes"].items()} == {
        "kept": 1,
        "duplicate": 1,
        "rejected": 1,
    }
    assert state["similarities"] == [0] * (BINS - 1) + [1]


async def test_before_there_is_a_worker_there_is_the_state() -> None:
    """The page says what it can while the worker is being made."""
    async with served(page_settings(), WorkerState()) as site:
        state = await site.ask("/page/state")
        assert state["phase"] == "starting"
        assert "minutes" not in state
        assert await site.ask("/page/duplicates") == {"remembered": 0, "duplicates": []}


async def test_pairs_stand_side_by_side_with_their_differences() -> None:
    """A duplicate comes with ids, positions, similarity, age, and what differs marked."""
    settings = page_settings(show_text=True)
    with Feed(settings) as feed:
        feed.give([{"id": "first", "text": TEXT}])
        feed.give([{"id": "second", "text": NEAR}])
        async with served(settings, feed.state) as site:
            (shown,) = await site.duplicates()
    assert (shown["id"], shown["original_id"]) == ("second", "first")
    assert shown["position"] == f"{TOPIC}:0:1"
    assert shown["original_position"] == f"{TOPIC}:0:0"
    assert 0.8 <= shown["estimate"] < 1.0
    assert (shown["jaccard"], shown["age_s"]) == (None, 1.0)
    mine, theirs = shown["texts"]
    assert marked(mine) == ["One more sentence."]
    assert marked(theirs) == []
    assert words(theirs)[-20:] == " ".join(TEXT.split())[-20:]


async def test_hostile_texts_stay_what_they_are() -> None:
    """The answer is JSON that no browser takes for HTML, and holds the text unchanged."""
    settings = page_settings(show_text=True)
    with Feed(settings) as feed:
        feed.give([{"id": "<b>\u202e\ud83d\ude00</b>", "text": f"{HOSTILE} {TEXT}"}])
        feed.give([{"id": "<i>", "text": f"{HOSTILE} {TEXT} \ud800 </script>"}])
        async with served(settings, feed.state) as site:
            (shown,) = await site.duplicates()
            kind = (await site.headers("/page/duplicates"))["Content-Type"]
    assert kind == "application/json; charset=utf-8"
    assert shown["original_id"] == "<b>\u202e\U0001f600</b>"
    assert marked(shown["texts"][0]) == ["\ud800 </script>"]


async def test_without_show_text_no_text_is_held_or_told() -> None:
    """Ids, positions and numbers are all that leaves the worker."""
    settings = page_settings()
    with Feed(settings) as feed:
        feed.give([{"id": "a", "text": TEXT}, {"id": "b", "text": NEAR}])
        (remembered,) = feed.recent.duplicates(0.0, 1.0)
        assert (remembered.value, remembered.original_value) == (None, None)
        async with served(settings, feed.state) as site:
            bodies = [await site.get(path) for path in PATHS]
            (shown,) = await site.duplicates()
    assert shown["texts"] is None
    assert not any("council" in body or "sentence" in body for _, body in bodies)


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        pytest.param({"TEXTS_BYTES": 2000}, (True, False), id="the original had to go"),
        pytest.param({"VALUE_BYTES": 10}, (False, False), id="both are too large"),
    ],
)
async def test_what_is_not_held_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], texts: tuple[bool, bool]
) -> None:
    """A side without its text is empty, and the other shows its beginning."""
    for name, value in changes.items():
        monkeypatch.setattr(recent, name, value)
    settings = page_settings(show_text=True)
    with Feed(settings) as feed:
        feed.give([{"id": "original", "text": TEXT}])
        for number in range(9):
            feed.give([{"id": str(number), "text": article(random.Random(100 + number), 4)}])
        feed.give([{"id": "copy", "text": TEXT}])
        async with served(settings, feed.state) as site:
            (shown,) = await site.duplicates()
    assert tuple(side is not None for side in shown["texts"]) == texts
    if texts[0]:
        assert TEXT.startswith(words(shown["texts"][0]).removesuffix(" …"))


async def test_similarities_are_filtered_and_the_latest_come_first() -> None:
    """The list holds what lies between the two ends, ends included, and no more than fit."""
    settings = page_settings()
    with Feed(settings) as feed:
        documents = stream(600)
        for first in range(0, len(documents), 50):
            feed.give(documents[first : first + 50])
        everything = feed.recent.duplicates(0.0, 1.0)
        async with served(settings, feed.state) as site:
            for low, high in ((0.0, 1.0), (0.8, 0.9), (0.9, 0.95), (1.0, 1.0)):
                answer = await site.ask(f"/page/duplicates?low={low}&high={high}")
                expected = [one for one in everything if low <= one.similarity <= high]
                assert answer["remembered"] == len(expected)
                numbers = [one["number"] for one in answer["duplicates"]]
                assert numbers == [one.number for one in expected][: page.SHOWN]
                assert numbers == sorted(numbers, reverse=True)
                assert numbers


@pytest.mark.parametrize("query", ["low=x", "high=nan", "low=-0.1", "high=1.5", "low=inf", "low="])
async def test_a_senseless_filter_is_refused(query: str) -> None:
    """A similarity is a number from 0 to 1."""
    async with served(page_settings(), WorkerState()) as site:
        status, text = await site.get(f"/page/duplicates?{query}")
        assert (status, text.count("\n")) == (400, 1)


async def test_texts_are_compared_once_and_only_where_they_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches compare nothing; what is shown again is not compared again."""
    compared: list[int] = []
    really = recent.compare

    def counting(duplicate: recent.Duplicate, decoder: Any) -> Any:
        compared.append(duplicate.number)
        return really(duplicate, decoder)

    monkeypatch.setattr(page, "compare", counting)
    settings = page_settings(show_text=True)
    with Feed(settings) as feed:
        documents = stream(300)
        for first in range(0, len(documents), 25):
            feed.give(documents[first : first + 25])
        assert len(feed.recent.duplicates(0.0, 1.0)) > page.SHOWN
        async with served(settings, feed.state) as site:
            assert not compared
            shown = await site.duplicates()
            assert await site.duplicates() == shown
    assert compared == [one["number"] for one in shown]


@pytest.mark.parametrize("format_", ["json", "text"])
def test_texts_are_decoded_as_records_are(format_: Any) -> None:
    """The page shows the fields that are compared, in either format."""
    settings = Settings(
        records=RecordSettings(format=format_, text_fields=("title", "body.text")),
        status=StatusSettings(show_text=True),
    )
    document = {"title": "The title", "body": {"text": TEXT}, "secret": "not compared"}
    value = json.dumps(document).encode() if format_ == "json" else f"The title\n{TEXT}".encode()
    with Feed(settings) as feed:
        feed.give([value, value])
        (duplicate,) = feed.recent.duplicates(0.0, 1.0)
        mine, theirs = recent.compare(duplicate, feed.recent.decoder)
    assert mine == theirs
    assert mine is not None
    assert mine[0].text.startswith("The title ")
    assert "secret" not in mine[0].text


def test_copies_do_not_crowd_out_the_pairs_near_the_threshold() -> None:
    """However many copies come, the near pairs before them are still there; all is bounded."""
    settings = page_settings()
    generator = random.Random(5)
    originals = [article(generator) for _ in range(20)]
    with Feed(settings) as feed:
        feed.give([{"text": text} for text in originals])
        feed.give([{"text": edited(text, generator, 4)} for text in originals])
        near = feed.recent.duplicates(0.0, 0.97)
        assert near
        for _ in range(10):
            feed.give([{"text": text} for text in originals * 5])
        assert feed.recent.duplicates(0.0, 0.97) == near
        assert 4 <= len(feed.recent.duplicates(1.0, 1.0)) <= 16


def test_pairs_whose_original_is_held_are_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many duplicates in a batch those are remembered of which both texts can be shown."""
    settings = page_settings(show_text=True)
    old = [article(random.Random(number)) for number in range(100, 140)]
    with Feed(settings) as feed:
        monkeypatch.setattr(recent, "VALUE_BYTES", 0)
        feed.give([{"text": text} for text in old])
        monkeypatch.undo()
        feed.give([{"text": NEAR}])
        feed.give([{"text": NEAR}, *({"text": text} for text in old)])
        latest = feed.recent.duplicates(1.0, 1.0)
    assert 1 < len(latest) < len(old)
    assert [one.original_value is not None for one in latest].count(True) == 1


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, SLOTS - 1, SLOTS, 3 * SLOTS]),
            st.lists(st.sampled_from(tuple(Outcome)), max_size=5),
        ),
        max_size=20,
    )
)
@examples(100)
def test_the_minutes_are_those_of_a_plain_count(
    steps: list[tuple[int, list[Outcome]]],
) -> None:
    """The counts of the last slots are right whenever batches come and the page asks."""
    slot = 1000
    remembered = Recent(Settings(), lambda: slot * SLOT_S + 1.0)
    counts: dict[int, Counter[Outcome]] = {}
    for slots, outcomes in steps:
        slot += slots
        tally = Counter(outcomes)
        counts[slot] = counts.get(slot, Counter()) + tally
        remembered.add([], judgement(Counter({outcome: tally[outcome] for outcome in tally})))
        expected = {
            str(outcome): [
                counts.get(at, Counter())[outcome] for at in range(slot - SLOTS + 1, slot + 1)
            ]
            for outcome in Outcome
        }
        assert remembered.minutes() == expected


@given(hundredths=st.lists(st.integers(0, 100), max_size=50))
@examples(50)
def test_a_similarity_on_a_border_is_in_the_bin_above(hundredths: list[int]) -> None:
    """The threshold itself is drawn among the duplicates; 1 is in the last bin."""
    counts = histogram([number / 100 for number in hundredths])
    expected = Counter(min(number, BINS - 1) for number in hundredths)
    assert counts.tolist() == [expected[at] for at in range(BINS)]


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 100_000])
def test_of_very_many_similarities_a_sample_counts_for_all(count: int) -> None:
    """The sum stays within one sample's weight, and the shape is kept."""
    counts = histogram([0.25 + 0.5 * (at % 2) for at in range(count)])
    assert math.isclose(counts.sum(), count, abs_tol=count / 4096)
    assert set(counts.nonzero()[0].tolist()) <= {25, 75}
