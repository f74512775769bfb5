"""*Async.* Checks the page in a browser; ``write`` updates its pictures in the documentation."""

from __future__ import annotations

import asyncio
import io
import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from PIL import Image

from streamdedup.observe.metrics import Metrics
from streamdedup.observe.recent import SLOT_S
from streamdedup.observe.status import StatusServer
from tests.support.browser import judging
from tests.support.browser.chromium import Tab, open_tab
from tests.support.browser.feed import PageFeed, page_settings
from tests.support.browser.samples import HOSTILE, article, stream
from tests.support.paths import ROOT

IMAGES = ROOT / "docs" / "images"
_DOCUMENTS, _MAX_BATCH = 4800, 50
"""Documents of the stream, and most documents of a batch."""

_WIDTH, _HEIGHT = 1100, 1500
_JUDGING_HEIGHT = 470
_TOP_HEIGHT = 575
"""Height of the picture in the README: the figures and the charts."""

_COLOURS = 128
"""Colours of a picture; few colours make the file small."""

_MIN_CONTRAST = 4.5
"""WCAG 2, level AA, for text."""

_CONTRASTS = """
(() => {
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((value) => value / 255)
      .map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const numbers = (colour) => (colour.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const background = (node) => {
    for (let parent = node; parent; parent = parent.parentElement) {
      const colour = numbers(getComputedStyle(parent).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const ratios = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
    const style = getComputedStyle(node);
    const colour = node.closest("svg") ? style.fill : style.color;
    const [a, b] = [luminance(numbers(colour)), luminance(background(node))];
    const name = `${node.tagName} ${node.id} ${node.className}`;
    ratios[name] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }
  return ratios;
})()
"""


@dataclass
class Scene:
    """A served page, its feed, and a browser tab that shows it."""

    feed: PageFeed
    server: StatusServer
    tab: Tab


@asynccontextmanager
async def scene(*, show_text: bool = True) -> AsyncIterator[Scene]:
    """Serve a page with some thousand documents, and open it in a browser."""
    settings = page_settings(show_text=show_text)
    generator, documents = random.Random(3), stream(_DOCUMENTS)
    time_s = 0.0
    with PageFeed(settings, lambda: time_s) as feed:
        while documents:
            size = generator.randrange(_MAX_BATCH // 2, _MAX_BATCH)
            feed.give([*documents[:size], b"not JSON"])
            del documents[:size]
            time_s += SLOT_S
        async with StatusServer(settings.status, Metrics(), feed.state) as server:
            address = f"http://127.0.0.1:{server.port}/page"
            async with open_tab(address) as tab:
                await tab.screen(_WIDTH, _HEIGHT)
                await tab.until("document.querySelectorAll('#duplicates li').length === 10")
                yield Scene(feed, server, tab)
                assert not tab.complaints, tab.complaints


async def check_contents(scene: Scene) -> None:
    """The page shows the state, the charts, and pairs side by side with marked differences."""
    tab = scene.tab
    assert await tab.value("document.getElementById('phase').textContent") == "ready"
    assert await tab.value("document.querySelectorAll('#verdicts rect.duplicate').length") >= 1
    assert await tab.value("document.querySelectorAll('#similarities rect').length") >= 5
    assert await tab.value("document.querySelectorAll('#duplicates mark').length") >= 5
    figures = "[...document.querySelectorAll('#figures tr')].map((row) => row.textContent)"
    assert [row for row in await tab.value(figures) if row.startswith("Recall, estimate")]
    boxes = await tab.value(
        "[...document.querySelector('.sides').children].map((side) => side.getBoundingClientRect())"
        ".map(({x, y}) => [x, y])"
    )
    (left, top), (right, level) = boxes
    assert (left < right, top) == (True, level), boxes


async def check_pipeline(scene: Scene) -> None:
    """The page names topics, settings and totals, and pairs to judge are one click away."""
    tab, total = scene.tab, scene.feed.state.judged.total()
    facts = await tab.value("document.getElementById('pipeline').innerText")
    for fact in (scene.feed.settings.topics.source, "plain", "0.8", f"{total:,}", "of 10,000,000"):
        assert fact in facts, facts
    for found, wrong, alone, waits in (
        (0, 0, 0, "The sample waits for its first document: it takes one in 1,000."),
        (0, 0, 8, "The sample has compared 8 documents, and waits for a document that repeats"),
        (0, 1, 0, "The sample has compared 1 document, and waits for a document that repeats"),
        (1, 0, 0, ""),
    ):
        results = {"found": found, "wrong": wrong, "alone": alone, "skipped": 0}
        shares = {"recall": {"documents": found}, "precision": {"documents": found + wrong}}
        state = json.dumps({"one_in": 1000, "documents": results, **shares})
        said = await tab.value(f"waitsFor({state})")
        assert said.startswith(waits), said
        assert bool(said) == bool(waits), said
    await tab.value("document.getElementById('judge-link').click()")
    button = "document.getElementById('judge-start').getBoundingClientRect()"
    await tab.until(f"{button}.top >= 0 && {button}.bottom <= innerHeight")
    await tab.value("history.replaceState(null, '', location.pathname)")
    await tab.call("Page.reload")
    await tab.until("document.querySelectorAll('#duplicates li').length === 10")


async def check_requests(scene: Scene) -> None:
    """Every request goes to the worker, apart from the empty icon in the page itself."""
    hosts = {urlsplit(url).netloc for url in scene.tab.requests if not url.startswith("data:")}
    assert hosts == {f"127.0.0.1:{scene.server.port}"}, hosts
    assert await scene.tab.value("document.cookie") == ""
    assert await scene.tab.value("localStorage.length") == 0


async def check_hostile_documents(scene: Scene) -> None:
    """HTML in texts and ids is shown as text."""
    tab = scene.tab
    text = HOSTILE + article(random.Random(1))
    scene.feed.give([{"id": f"<b>1</b>{HOSTILE}"[:500], "text": text}])
    scene.feed.give([{"id": "\u202e<i>2</i>", "text": f"{text} Once more, {HOSTILE}"}])
    await tab.until("document.getElementById('duplicates').textContent.includes('<i>2</i>')")
    assert await tab.value("window.hacked") is None
    elements = "#duplicates :is(script, img, svg, iframe, a, b, i)"
    assert await tab.value(f"document.querySelectorAll('{elements}').length") == 0
    shown = await tab.value("document.querySelector('#duplicates li').textContent")
    assert "<script>window.hacked" in shown, shown


async def check_keyboard(scene: Scene) -> None:
    """Tab reaches every control, the focus is visible, and arrow keys move the sliders."""
    tab = scene.tab
    await tab.value("document.activeElement.blur()")
    reached = []
    for _ in range(7):
        await tab.press("Tab", 9)
        reached.append(
            await tab.value("document.activeElement.id || document.activeElement.tagName")
        )
        outline = await tab.value("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", reached
    assert reached[:5] == ["judge-link", "SUMMARY", "low", "high", "hold"], reached

    await tab.value("document.getElementById('low').focus()")
    before = float(await tab.value("document.getElementById('low').value"))
    assert before == 0.8, before
    for _ in range(15):
        await tab.press("ArrowRight", 39)
    assert await tab.value("document.getElementById('low-is').textContent") == "0.95"
    similarities = (
        "[...document.querySelectorAll('#duplicates li > p')]"
        ".map((line) => Number(line.textContent.match(/[0-9.]+/)[0]))"
    )
    await tab.until(f"{similarities}.length && {similarities}.every((value) => value >= 0.95)")
    await tab.press("Home", 36)
    await tab.until(f"{similarities}.some((value) => value < 0.95)")
    await tab.value("document.getElementById('high').focus()")
    await tab.press("Home", 36)
    await tab.until("document.getElementById('high-is').textContent === '0.80'")
    await tab.until(f"{similarities}.every((value) => value <= 0.8)")
    await tab.press("End", 35)
    await tab.until(f"{similarities}.length === 10")


async def check_updates(scene: Scene) -> None:
    """New duplicates appear by themselves, but not while the list is held."""
    tab = scene.tab
    fresh = article(random.Random(2))
    scene.feed.give([{"id": "fresh", "text": fresh}, {"id": "repeat", "text": fresh}])
    await tab.until("document.getElementById('duplicates').textContent.includes('repeat')")
    await tab.value("document.getElementById('hold').focus()")
    await tab.press("Enter", 13)
    await tab.until("document.getElementById('hold').ariaPressed === 'true'")
    scene.feed.give([{"id": "later", "text": fresh}])
    await tab.until_requests(2)
    assert "later" not in await tab.value("document.getElementById('duplicates').textContent")
    await tab.press("Enter", 13)
    await tab.until("document.getElementById('duplicates').textContent.includes('later')")


async def check_judging(scene: Scene) -> None:
    """Pairs can be judged with the keyboard; the worker receives reading requests only."""
    await judging.check_judging(scene.tab)
    assert set(scene.tab.methods) == {"GET"}, scene.tab.methods


async def check_light_and_dark(scene: Scene) -> None:
    """Every text has enough contrast in both colour schemes, and they differ."""
    backgrounds = set()
    for scheme in ("light", "dark"):
        await scene.tab.scheme(scheme)
        backgrounds.add(await scene.tab.value("getComputedStyle(document.body).backgroundColor"))
        contrasts = await scene.tab.value(_CONTRASTS)
        faint = {name: ratio for name, ratio in contrasts.items() if ratio < _MIN_CONTRAST}
        assert not faint, (scheme, faint)
        assert len(contrasts) > 15, contrasts
    assert len(backgrounds) == 2, backgrounds


async def check_narrow(scene: Scene) -> None:
    """A narrow screen needs no horizontal scrolling."""
    await scene.tab.screen(360, 700)
    width = await scene.tab.value("document.documentElement.scrollWidth")
    assert width <= 360, width
    await scene.tab.screen(_WIDTH, _HEIGHT)


async def check_replay(scene: Scene) -> None:
    """A replay shows its progress, and its end."""
    state = scene.feed.state
    state.enter("replaying")
    state.replay_done, state.replay_total = 30, 120
    await scene.tab.until("document.getElementById('phase').textContent === 'replaying'")
    assert await scene.tab.value("document.getElementById('replay').position") == 0.25
    state.enter("running")
    await scene.tab.until("document.getElementById('replay').hidden")


async def check_lost_worker(scene: Scene) -> None:
    """The page reports a worker that does not answer; this check ends the worker."""
    await scene.server.close()
    await scene.tab.until("document.getElementById('phase').textContent === 'no answer'")
    # The browser logs each failed request.
    assert all("ERR_CONNECTION_REFUSED" in line for line in scene.tab.complaints)
    scene.tab.complaints.clear()


CHECKS: tuple[Callable[[Scene], Awaitable[None]], ...] = (
    check_contents,
    check_pipeline,
    check_requests,
    check_hostile_documents,
    check_keyboard,
    check_updates,
    check_judging,
    check_light_and_dark,
    check_narrow,
    check_replay,
    check_lost_worker,
)


async def check() -> None:
    """Run all checks on one page, and one more on a page without texts."""
    async with scene() as with_text:
        for check_page in CHECKS:
            await check_page(with_text)
            _print(f"ok: {check_page.__name__.removeprefix('check_').replace('_', ' ')}")
    async with scene(show_text=False) as without:
        page = await without.tab.value("document.body.innerText")
        assert page.count("status.show_text is off") == 2
        assert not await without.tab.value("document.getElementById('judge-start').offsetParent")
        assert "news-" in page
        assert not {"council", "report"} & set(page.split()), page
        _print("ok: no texts without show_text")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def write() -> None:
    """Take the pictures for the documentation."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    async with scene() as with_text:
        tab = with_text.tab
        await tab.value("document.getElementById('high').value = 0.95")
        await tab.value("document.getElementById('high').dispatchEvent(new Event('input'))")
        await tab.until("document.getElementById('high-is').textContent === '0.95'")
        await asyncio.sleep(1)
        for scheme in ("light", "dark"):
            await tab.scheme(scheme)
            picture = Image.open(io.BytesIO(await tab.picture()))
            picture.quantize(_COLOURS).save(IMAGES / f"page-{scheme}.png", optimize=True)
            if scheme == "light":
                top = picture.crop((0, 0, _WIDTH, _TOP_HEIGHT))
                top.quantize(_COLOURS).save(IMAGES / "page-top.png", optimize=True)
        await tab.scheme("light")
        await judging.start_judging(tab)
        await tab.screen(_WIDTH, _JUDGING_HEIGHT)
        await tab.value("document.getElementById('judge').scrollIntoView()")
        picture = Image.open(io.BytesIO(await tab.picture()))
        picture.quantize(_COLOURS).save(IMAGES / "judge.png", optimize=True)


if __name__ == "__main__":
    asyncio.run(write() if sys.argv[1:] == ["write"] else check())
