"""*Async.* The page: the state of the worker, how its latest duplicates differ, and pairs to label.

Rule 1: the page only reads; labels stay in the browser. All of its files are in this package, and
it contacts no other host.
Rule 2: contents of documents are sent as JSON only and shown as text only. The content security
policy blocks every other script, and every conversion of a string to HTML.
Rule 3: texts are compared in a thread, one pair at a time, and only when the page shows them: once,
and once more for each request of whole texts, which are not held.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from importlib import resources
from typing import Any

from aiohttp import web

from streamdedup.dedup.differences import TextPart
from streamdedup.model import format_position
from streamdedup.observe.recent import NEAR, SLOT_S, Pair, RecentActivity, compare

SHOWN = 10
"""Most duplicates shown at a time."""
_FILES = {
    "/page": ("page.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/judge.js": ("judge.js", "text/javascript"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_CACHED = 100  # comparisons that are kept for later requests
_MOST_DIGITS = 18

Sides = tuple[list[TextPart] | None, list[TextPart] | None]


class Page:
    """Serves the page, its files, and the JSON documents that it asks for.

    ``describe`` returns the worker's state as ``/status`` shows it, ``recent`` what is remembered
    of the latest batches, or None before a worker exists.
    """

    def __init__(
        self, describe: Callable[[], dict[str, Any]], recent: Callable[[], RecentActivity | None]
    ) -> None:
        self._describe = describe
        self._recent = recent
        self._started = time.monotonic()
        self._compared: OrderedDict[int, Sides] = OrderedDict()
        self._comparing = asyncio.Lock()

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        folder = resources.files("streamdedup.observe") / "web"
        for path, (name, content_type) in _FILES.items():
            router.add_get(path, _serve((folder / name).read_text(encoding="utf-8"), content_type))
        router.add_get("/", _redirect_to_page)
        router.add_get("/page/state", self._serve_state)
        router.add_get("/page/duplicates", self._serve_duplicates)
        router.add_get("/page/pairs", self._serve_pairs)
        router.add_get("/page/pair", self._serve_pair)

    async def _serve_state(self, _: web.Request) -> web.Response:
        recent = self._recent()
        state = self._describe() | {"uptime_s": round(time.monotonic() - self._started)}
        if recent is not None:
            state |= {
                "pipeline": recent.pipeline,
                "threshold": recent.threshold,
                "fingerprint": recent.fingerprint,
                "near": NEAR,
                "show_text": recent.show_text,
                "slot_seconds": SLOT_S,
                "minutes": recent.minutes(),
                "similarities": recent.similarities(),
            }
        return web.json_response(state, headers=_HEADERS)

    async def _serve_duplicates(self, request: web.Request) -> web.Response:
        low, high = _fraction(request, "low", 0.0), _fraction(request, "high", 1.0)
        recent = self._recent()
        selected = [] if recent is None else recent.duplicates(low, high)
        shown = [
            _facts(duplicate)
            | {"age_s": duplicate.original.age_s, "texts": await self._sides(duplicate, recent)}
            for duplicate in selected[:SHOWN]
        ]
        answer = {"remembered": len(selected), "duplicates": shown}
        return web.json_response(answer, headers=_HEADERS)

    async def _serve_pairs(self, request: web.Request) -> web.Response:
        """Serve the pairs that can be judged, without their texts."""
        low, high = _fraction(request, "low", 0.0), _fraction(request, "high", 1.0)
        recent = self._recent()
        pairs = [] if recent is None else recent.pairs_with_texts(low, high)
        return web.json_response({"pairs": [_facts(pair) for pair in pairs]}, headers=_HEADERS)

    async def _serve_pair(self, request: web.Request) -> web.Response:
        number, recent = request.query.get("number", ""), self._recent()
        is_number = number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
        if not is_number:
            raise web.HTTPBadRequest(text="number must be a whole number\n", headers=_HEADERS)
        pair = None if recent is None else recent.pair(int(number))
        if pair is None:
            raise web.HTTPNotFound(text=f"pair {number} is not in memory\n", headers=_HEADERS)
        whole = request.query.get("whole") == "true"
        answer = _facts(pair) | {"texts": await self._sides(pair, recent, whole=whole)}
        return web.json_response(answer, headers=_HEADERS)

    async def _sides(
        self, duplicate: Pair, recent: RecentActivity | None, *, whole: bool = False
    ) -> Sides | None:
        """Return the parts of both texts with their differences; None if texts are not shown."""
        if recent is None or not recent.show_text:
            return None
        async with self._comparing:
            if whole:
                return await asyncio.to_thread(compare, duplicate, recent.decoder, whole=True)
            sides = self._compared.get(duplicate.number)
            if sides is None:
                sides = await asyncio.to_thread(compare, duplicate, recent.decoder)
                self._compared[duplicate.number] = sides
                if len(self._compared) > _CACHED:
                    self._compared.popitem(last=False)
        return sides


def _facts(pair: Pair) -> dict[str, Any]:
    """Return what the page shows of a pair besides its texts."""
    return {
        "number": pair.number,
        "id": pair.id,
        "position": format_position(pair.position),
        "original_id": pair.original.id,
        "original_position": format_position(pair.original.position),
        "estimate": pair.original.jaccard_estimate,
        "jaccard": pair.original.jaccard,
    }


async def _redirect_to_page(_: web.Request) -> web.Response:
    raise web.HTTPFound("page")


def _serve(text: str, content_type: str) -> Callable[[web.Request], Any]:
    async def serve(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type=content_type, headers=_HEADERS)

    return serve


def _fraction(request: web.Request, name: str, default: float) -> float:
    """Return a number from 0 to 1 from the query string."""
    try:
        value = float(request.query.get(name, default))
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise web.HTTPBadRequest(text=f"{name} must be a number from 0 to 1\n", headers=_HEADERS)
    return value
