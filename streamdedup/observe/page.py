"""*Async.* The page for people: what the worker does, and how its latest duplicates differ.

Rule 1: the page only reads. Its files are the package's own, and it asks no other host.
Rule 2: what comes from documents reaches the browser as JSON alone, and the page as text alone:
the policy lets no script run but its own, and refuses every way from a string to HTML.
Rule 3: texts are compared in a thread, one pair at a time and once, when somebody looks at them.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from importlib import resources
from typing import Any

from aiohttp import web

from streamdedup.dedup.differences import Part
from streamdedup.model import Position
from streamdedup.observe.recent import SLOT_S, Duplicate, Recent, compare

SHOWN = 10
"""Duplicates shown at once."""

_FILES = {
    "/page": ("page.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
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
_COMPARED = 100
"""Comparisons that are not made anew while the page asks for the same pairs again."""

Sides = tuple[list[Part] | None, list[Part] | None]


class Page:
    """Serves the page, its files, and the two answers that it asks for again and again.

    Args:
        describe: returns what the worker says of itself.
        recent: returns what is remembered of the latest batches; None before there is a worker.
    """

    def __init__(
        self, describe: Callable[[], dict[str, Any]], recent: Callable[[], Recent | None]
    ) -> None:
        self._describe = describe
        self._recent = recent
        self._compared: OrderedDict[int, Sides] = OrderedDict()
        self._comparing = asyncio.Lock()

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        folder = resources.files("streamdedup.observe") / "web"
        for path, (name, content_type) in _FILES.items():
            router.add_get(path, _serve((folder / name).read_text(encoding="utf-8"), content_type))
        router.add_get("/", _lead_to_the_page)
        router.add_get("/page/state", self._serve_state)
        router.add_get("/page/duplicates", self._serve_duplicates)

    async def _serve_state(self, _: web.Request) -> web.Response:
        recent = self._recent()
        state = self._describe()
        if recent is not None:
            state |= {
                "threshold": recent.threshold,
                "show_text": recent.show_text,
                "slot_seconds": SLOT_S,
                "minutes": recent.minutes(),
                "similarities": recent.similarities(),
            }
        return web.json_response(state, headers=_HEADERS)

    async def _serve_duplicates(self, request: web.Request) -> web.Response:
        low, high = _share(request, "low", 0.0), _share(request, "high", 1.0)
        recent = self._recent()
        found = [] if recent is None else recent.duplicates(low, high)
        shown = [
            {
                "number": duplicate.number,
                "id": duplicate.id,
                "position": _place(duplicate.position),
                "original_id": duplicate.original.id,
                "original_position": _place(duplicate.original.position),
                "estimate": duplicate.original.jaccard_estimate,
                "jaccard": duplicate.original.jaccard,
                "age_s": duplicate.original.age_s,
                "texts": await self._sides(duplicate, recent),
            }
            for duplicate in found[:SHOWN]
        ]
        answer = {"remembered": len(found), "duplicates": shown}
        return web.json_response(answer, headers=_HEADERS)

    async def _sides(self, duplicate: Duplicate, recent: Recent | None) -> Sides | None:
        """Return the two texts with what differs; None where texts are not shown."""
        if recent is None or not recent.show_text:
            return None
        async with self._comparing:
            sides = self._compared.get(duplicate.number)
            if sides is None:
                sides = await asyncio.to_thread(compare, duplicate, recent.decoder)
                self._compared[duplicate.number] = sides
                if len(self._compared) > _COMPARED:
                    self._compared.popitem(last=False)
        return sides


async def _lead_to_the_page(_: web.Request) -> web.Response:
    raise web.HTTPFound("page")


def _serve(text: str, content_type: str) -> Callable[[web.Request], Any]:
    async def serve(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type=content_type, headers=_HEADERS)

    return serve


def _share(request: web.Request, name: str, default: float) -> float:
    """Return a number from 0 to 1 of the query."""
    try:
        value = float(request.query.get(name, default))
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise web.HTTPBadRequest(text=f"{name} must be a number from 0 to 1\n", headers=_HEADERS)
    return value


def _place(position: Position) -> str:
    return f"{position.topic}:{position.partition}:{position.offset}"
