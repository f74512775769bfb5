"""*Async.* Headless Chromium, controlled through its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

TIMEOUT_S = 30.0
"""How long to wait for a condition."""


_FLAGS = (
    "--headless",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--lang=en",
)


class Tab:
    """A tab of a browser.

    Attributes:
        requests: the requested addresses.
        methods: the methods of the requests.
        complaints: errors of the console: exceptions, and violations of the policy.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.requests: list[str] = []
        self.methods: list[str] = []
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def listen(self) -> None:
        """Receive answers and events until the browser ends."""
        async for message in self._socket:
            content = json.loads(message.data)
            if "id" in content:
                self._answers.pop(content["id"]).set_result(content)
                continue
            parameters = content["params"]
            match content["method"]:
                case "Network.requestWillBeSent":
                    self.requests.append(parameters["request"]["url"])
                    self.methods.append(parameters["request"]["method"])
                case "Runtime.exceptionThrown":
                    self.complaints.append(json.dumps(parameters["exceptionDetails"]))
                case "Log.entryAdded":
                    self.complaints.append(parameters["entry"]["text"])
                case "Page.javascriptDialogOpening":
                    self.complaints.append(f"dialog: {parameters['message']}")

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        content = await asyncio.wait_for(answer, TIMEOUT_S)
        if "error" in content:
            raise RuntimeError(f"{method}: {content['error']}")
        result: dict[str, Any] = content["result"]
        return result

    async def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while not await self.value(f"Boolean({expression})"):
            if asyncio.get_running_loop().time() > deadline:
                text = await self.value("document.body.innerText")
                raise AssertionError(f"{expression} did not become true; the page shows:\n{text}")
            await asyncio.sleep(0.05)

    async def until_requests(self, more: int) -> None:
        """Wait until the page has sent this number of further requests."""
        total = len(self.requests) + more
        for _ in range(int(TIMEOUT_S / 0.1)):
            if len(self.requests) >= total:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"the page did not send {more} further requests")

    async def press(self, key: str, code: int) -> None:
        """Press and release a key, named as in keyboard events."""
        for kind in ("keyDown", "keyUp"):
            text = "\r" if key == "Enter" and kind == "keyDown" else ""
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                text=text,
            )

    async def screen(self, width: int, height: int) -> None:
        """Set the size of the window, in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def scheme(self, name: str) -> None:
        """Set the preferred colour scheme, ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def picture(self) -> bytes:
        """Return a screenshot of the window, as PNG."""
        answer = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(answer["data"])


@contextlib.asynccontextmanager
async def open_tab(url: str) -> AsyncIterator[Tab]:
    """Start a browser and open an address; the end of the context ends the browser.

    Raises:
        RuntimeError: Chromium is not installed, or does not start.
    """
    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("chromium is not installed")
    with tempfile.TemporaryDirectory(
        prefix="streamdedup-chromium-", ignore_cleanup_errors=True
    ) as profile:
        flags = [*_FLAGS, f"--user-data-dir={profile}"]
        if os.getuid() == 0:
            flags.append("--no-sandbox")  # root has no sandbox, and only our own page is shown
        with (Path(profile) / "log").open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                program, *flags, "about:blank", stdout=output, stderr=output
            )
        try:
            port = await _port(Path(profile), process)
            async with _connect(port) as tab:
                await tab.call("Page.navigate", url=url)
                yield tab
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            await _remove(Path(profile))


async def _port(profile: Path, process: asyncio.subprocess.Process) -> int:
    """Wait until the browser has written its port to a file, and return the port."""
    port_file = profile / "DevToolsActivePort"
    for _ in range(int(TIMEOUT_S / 0.1)):
        if process.returncode is not None:
            break
        if port_file.exists() and "\n" in port_file.read_text():
            return int(port_file.read_text().split()[0])
        await asyncio.sleep(0.1)
    raise RuntimeError(f"chromium did not start:\n{(profile / 'log').read_text()}")


@contextlib.asynccontextmanager
async def _connect(port: int) -> AsyncIterator[Tab]:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json") as response:
            tabs = await response.json(content_type=None)
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        async with session.ws_connect(address, max_msg_size=0) as socket:
            tab = Tab(socket)
            listening = asyncio.create_task(tab.listen())
            for domain in ("Page", "Runtime", "Network", "Log"):
                await tab.call(f"{domain}.enable")
            yield tab
        await listening


async def _remove(profile: Path) -> None:
    """Remove the profile; the browser's child processes use it for a moment after its end."""
    for _ in range(50):
        if await asyncio.to_thread(_removed, profile):
            return
        await asyncio.sleep(0.1)


def _removed(profile: Path) -> bool:
    shutil.rmtree(profile, ignore_errors=True)
    return not profile.exists()
