"""The page: its files, its JSON documents, and what it never shows."""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

import aiohttp
import pytest

from streamdedup.observe import page, recent
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.recent import BINS, SLOT_S
from streamdedup.observe.state import WorkerState
from streamdedup.observe.status import StatusServer
from streamdedup.settings.sections import Settings
from tests.support.browser.feed import TOPIC, PageFeed, page_settings
from tests.support.browser.samples import HOSTILE, article, edited, stream
from tests.support.patience import PATIENCE_S

PATHS = (
    *("/page", "/page/page.css", "/page/page.js", "/page/judge.js"),
    *("/page/state", "/page/duplicates", "/page/pairs"),
)
TEXT = article(random.Random(1))
NEAR = f"{TEXT} One more sentence."


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
        """Return the HTTP status of a POST request."""
        async with self._client.post(self._address + path) as response:
            return response.status

    async def json(self, path: str) -> Any:
        """Return the JSON content of a page."""
        status, text = await self.get(path)
        assert status == 200, text
        return json.loads(text)

    async def duplicates(self, low: float = 0.0, high: float = 1.0) -> list[dict[str, Any]]:
        """Return the duplicates that are shown."""
        answer = await self.json(f"/page/duplicates?low={low}&high={high}")
        shown: list[dict[str, Any]] = answer["duplicates"]
        return shown


@asynccontextmanager
async def served(settings: Settings, state: WorkerState) -> AsyncIterator[Site]:
    """Serve the state of a worker."""
    async with (
        StatusServer(settings.status, Metrics(), state) as server,
        aiohttp.ClientSession() as client,
    ):
        yield Site(server.port, client)


def joined(parts: list[list[Any]]) -> str:
    """Return the text of a list of parts."""
    return "".join(text for text, _ in parts)


def marked(parts: list[list[Any]]) -> list[str]:
    """Return the marked parts."""
    return [text for text, differs in parts if differs]


async def test_the_root_redirects_to_the_page() -> None:
    """The address alone shows the page."""
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
    """Without status.page there is no page, and the other paths still work."""
    async with served(page_settings(page=False), WorkerState("running")) as site:
        assert (await site.get(path))[0] == 404
        assert await site.get("/readyz") == (200, "ready\n")


def test_the_files_refer_to_nothing_else() -> None:
    """No address of another host, no inline code, and no conversion of a string to HTML."""
    folder = resources.files("streamdedup.observe") / "web"
    files = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir()}
    assert files.keys() == {"page.html", "page.css", "page.js", "judge.js"}
    for name, content in files.items():
        addresses = set(re.findall(r"\w+://[^\s\"']+", content))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
    html, script = files["page.html"], files["page.js"] + files["judge.js"]
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|<script(?! src=)", html)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(", script
    )
    known = set(re.findall(r'id="([\w-]+)"', html))
    assert set(re.findall(r'byId\("([\w-]+)"\)', script)) <= known
    assert set(re.findall(r'\bsetText\("([\w-]+)"', script)) <= known


async def test_the_state_is_the_status_and_the_minutes() -> None:
    """It has the content of /status, the verdicts by slot, and the candidates' similarities."""
    settings = page_settings()
    with PageFeed(settings, lambda: 0.0) as feed:
        feed.give([{"id": "a", "text": TEXT}, {"id": "b", "text": TEXT}, b"not JSON"])
        async with served(settings, feed.state) as site:
            status, state = await site.json("/status"), await site.json("/page/state")
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


async def test_the_state_is_shown_before_a_worker_exists() -> None:
    """Without a worker the page shows the phase, and no duplicates."""
    async with served(page_settings(), WorkerState()) as site:
        state = await site.json("/page/state")
        assert state["phase"] == "starting"
        assert "minutes" not in state
        assert await site.json("/page/duplicates") == {"remembered": 0, "duplicates": []}


async def test_the_state_names_the_pipeline() -> None:
    """It has topics, profile and threshold, what was judged, the size of the window, the uptime."""
    settings = page_settings()
    with PageFeed(settings) as feed:
        feed.give([{"id": "a", "text": TEXT}, {"id": "b", "text": TEXT}, b"not JSON"])
        async with served(settings, feed.state) as site:
            state = await site.json("/page/state")
    assert state["pipeline"] == {
        "source": settings.topics.source,
        "clean": settings.topics.clean,
        "duplicates": settings.topics.duplicates,
        "profile": "plain",
        "window_documents": 10_000_000,
        "window": None,
    }
    assert state["judged"] == {"kept": 1, "duplicate": 1, "rejected": 1}
    assert state["documents"] == 1
    assert 0 <= state["uptime_s"] < PATIENCE_S
    assert state["quality"]["shadow"]["one_in"] == 1000


async def test_whole_texts_are_shown_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair has its whole texts with marks, and the page holds only the shortened ones."""
    monkeypatch.setattr(page, "_CACHED", 1)
    settings = page_settings(show_text=True)
    text = " ".join([TEXT, article(random.Random(5)), article(random.Random(6))])
    with PageFeed(settings) as feed:
        feed.give([{"id": "first", "text": text}, {"id": "second", "text": f"{text} And more."}])
        async with served(settings, feed.state) as site:
            short = await site.json("/page/pair?number=1&whole=false")
            whole = await site.json("/page/pair?number=1&whole=true")
            assert await site.json("/page/pair?number=1") == short
    assert len(joined(short["texts"][0])) < len(text)
    assert [joined(parts) for parts in whole["texts"]] == [f"{text} And more.", text]
    assert marked(whole["texts"][0]) == marked(short["texts"][0]) == ["And more."]


@pytest.mark.parametrize("path", ["observe/web/page.css", "analysis/templates/page.html.j2"])
def test_charts_have_contrast(path: str) -> None:
    """Bars, lines and curves have 3:1 against the background (WCAG 2.1, 1.4.11), light and dark."""
    style = (resources.files("streamdedup") / path).read_text(encoding="utf-8")
    schemes = [
        dict(re.findall(r"--(\w+): (#\w+);", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    ]
    used = set(
        re.findall(
            r"^(?:rect)?\.[\w-]+ \{[^}]*?(?:fill|stroke): var\(--(\w+)\)", style, re.MULTILINE
        )
    )
    used |= set(re.findall(r"\.(?:bar|curve) \{[^}]*?var\(--(\w+)\)", style))
    used -= {"line", "paper"}  # the lines behind the bars, and the halo of a curve
    assert len(schemes) == 2
    assert len(used) >= 2
    for colours in schemes:
        assert {name for name in used if _contrast(colours[name], colours["paper"]) < 3} == set()


def _contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours (WCAG 2)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) > 4 else "".join(digit * 2 for digit in colour[1:])
    shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (
        share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


async def test_a_pair_is_shown_with_its_differences() -> None:
    """A duplicate has ids, positions, similarity, age, and marked differences."""
    settings = page_settings(show_text=True)
    with PageFeed(settings) as feed:
        feed.give([{"id": "first", "text": TEXT}])
        feed.give([{"id": "second", "text": NEAR}])
        async with served(settings, feed.state) as site:
            (shown,) = await site.duplicates()
    assert (shown["id"], shown["original_id"]) == ("second", "first")
    assert shown["position"] == f"{TOPIC}:0:1"
    assert shown["original_position"] == f"{TOPIC}:0:0"
    assert 0.8 <= shown["estimate"] < 1.0
    assert (shown["jaccard"], shown["age_s"]) == (None, 1.0)
    parts, original_parts = shown["texts"]
    assert marked(parts) == ["One more sentence."]
    assert marked(original_parts) == []
    assert joined(original_parts)[-20:] == " ".join(TEXT.split())[-20:]


async def test_hostile_texts_are_unchanged_json() -> None:
    """The answer is JSON that no browser interprets as HTML, with the unchanged text."""
    settings = page_settings(show_text=True)
    with PageFeed(settings) as feed:
        feed.give([{"id": "<b>\u202e\ud83d\ude00</b>", "text": f"{HOSTILE} {TEXT}"}])
        feed.give([{"id": "<i>", "text": f"{HOSTILE} {TEXT} \ud800 </script>"}])
        async with served(settings, feed.state) as site:
            (shown,) = await site.duplicates()
            content_type = (await site.headers("/page/duplicates"))["Content-Type"]
    assert content_type == "application/json; charset=utf-8"
    assert shown["original_id"] == "<b>\u202e\U0001f600</b>"
    assert marked(shown["texts"][0]) == ["\ud800 </script>"]


async def test_without_show_text_no_text_is_held_or_sent() -> None:
    """Only ids, positions and numbers leave the worker."""
    settings = page_settings()
    with PageFeed(settings) as feed:
        feed.give([{"id": "a", "text": TEXT}, {"id": "b", "text": NEAR}])
        feed.give([{"id": "c", "text": edited(TEXT, random.Random(3), 8)}])
        (remembered,) = feed.recent.duplicates(0.0, 1.0)
        assert (remembered.value, remembered.original_value) == (None, None)
        assert feed.recent.pairs_with_texts(0.0, 1.0) == []
        assert feed.recent.pair(2) is None
        async with served(settings, feed.state) as site:
            bodies = [await site.get(path) for path in PATHS]
            (shown,) = await site.duplicates()
    assert shown["texts"] is None
    assert not any("council" in body or "sentence" in body for _, body in bodies)


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        pytest.param({"TEXTS_BYTES": 2000}, (True, False), id="the original was dropped"),
        pytest.param({"VALUE_BYTES": 10}, (False, False), id="both are too large"),
    ],
)
async def test_a_text_that_is_not_held_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], texts: tuple[bool, bool]
) -> None:
    """The missing text is null, and the other text shows its beginning."""
    for name, value in changes.items():
        monkeypatch.setattr(recent, name, value)
    settings = page_settings(show_text=True)
    with PageFeed(settings) as feed:
        feed.give([{"id": "original", "text": TEXT}])
        for number in range(9):
            feed.give([{"id": str(number), "text": article(random.Random(100 + number), 4)}])
        feed.give([{"id": "copy", "text": TEXT}])
        async with served(settings, feed.state) as site:
            (shown,) = await site.duplicates()
    assert tuple(parts is not None for parts in shown["texts"]) == texts
    if texts[0]:
        assert TEXT.startswith(joined(shown["texts"][0]).removesuffix(" …"))


async def test_duplicates_are_filtered_by_similarity_latest_first() -> None:
    """The list has the duplicates from low to high inclusive, and at most SHOWN of them."""
    settings = page_settings()
    with PageFeed(settings) as feed:
        documents = stream(600)
        for first in range(0, len(documents), 50):
            feed.give(documents[first : first + 50])
        everything = feed.recent.duplicates(0.0, 1.0)
        async with served(settings, feed.state) as site:
            for low, high in ((0.0, 1.0), (0.8, 0.9), (0.9, 0.95), (1.0, 1.0)):
                answer = await site.json(f"/page/duplicates?low={low}&high={high}")
                expected = [
                    duplicate for duplicate in everything if low <= duplicate.similarity <= high
                ]
                assert answer["remembered"] == len(expected)
                numbers = [duplicate["number"] for duplicate in answer["duplicates"]]
                assert numbers == [duplicate.number for duplicate in expected][: page.SHOWN]
                assert numbers == sorted(numbers, reverse=True)
                assert numbers


async def test_pairs_to_judge_are_on_both_sides_of_the_threshold() -> None:
    """Kept records come with their best candidate; a pair's texts are served one pair at a time."""
    settings = page_settings(show_text=True)
    generator = random.Random(4)
    originals = [article(generator) for _ in range(40)]
    with PageFeed(settings) as feed:
        feed.give([{"id": str(row), "text": text} for row, text in enumerate(originals)])
        for row, text in enumerate(originals):
            feed.give([{"id": f"{row}-edited", "text": edited(text, generator, 1 + row % 20)}])
        async with served(settings, feed.state) as site:
            pairs = (await site.json("/page/pairs?low=0.6&high=0.95"))["pairs"]
            similarities = [pair["estimate"] for pair in pairs]
            assert sum(similarity < 0.8 for similarity in similarities) >= 5
            assert sum(similarity >= 0.8 for similarity in similarities) >= 5
            assert all(0.6 <= similarity <= 0.95 for similarity in similarities)
            shown = await site.json(f"/page/pair?number={pairs[0]['number']}")
            assert marked(shown["texts"][0])
            assert pairs[0].items() <= shown.items()
            assert (await site.get("/page/pair?number=999999"))[0] == 404
            for number in ("x", "", "-1", "1" * 30):
                assert (await site.get(f"/page/pair?number={number}"))[0] == 400
            refuted = {pair["number"] for pair in pairs if pair["estimate"] < 0.8}
            assert not refuted & {one["number"] for one in await site.duplicates(0.6)}


@pytest.mark.parametrize("query", ["low=x", "high=nan", "low=-0.1", "high=1.5", "low=inf", "low="])
async def test_an_invalid_filter_is_refused(query: str) -> None:
    """A similarity is a number from 0 to 1."""
    async with served(page_settings(), WorkerState()) as site:
        for path in ("/page/duplicates", "/page/pairs"):
            status, text = await site.get(f"{path}?{query}")
            assert (status, text.count("\n")) == (400, 1)


async def test_texts_are_compared_once_when_they_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Judging compares no texts, and a pair that is shown again is not compared again."""
    compared: list[int] = []
    compare = recent.compare

    def counting(pair: recent.Pair, decoder: Any) -> Any:
        compared.append(pair.number)
        return compare(pair, decoder)

    monkeypatch.setattr(page, "compare", counting)
    settings = page_settings(show_text=True)
    with PageFeed(settings) as feed:
        documents = stream(300)
        for first in range(0, len(documents), 25):
            feed.give(documents[first : first + 25])
        assert len(feed.recent.duplicates(0.0, 1.0)) > page.SHOWN
        async with served(settings, feed.state) as site:
            assert not compared
            shown = await site.duplicates()
            assert await site.duplicates() == shown
    assert compared == [duplicate["number"] for duplicate in shown]
