"""*Async.* Checks of judging pairs: keys, labels that survive a reload, and the downloaded file."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from streamdedup.analysis.labels import read_labels
from streamdedup.settings.sections import Settings
from tests.support.browser.chromium import TIMEOUT_S, Tab

_BINS, _LABELS = 10, 30
"""Parts of the range of similarity, and the labels that are given."""

_SHOWN = "document.getElementById('judged')?.textContent"
_ACTIVE = "document.activeElement.id"


async def check_judging(tab: Tab) -> None:
    """Keys label pairs of all similarities, a reload keeps the labels, and a download has them."""
    await start_judging(tab)
    assert await tab.value("document.querySelectorAll('#pair-sides mark').length") >= 1
    assert "imilarity" not in await tab.value("document.getElementById('pair').innerText")
    await _check_whole_texts(tab)
    for number in range(_LABELS):
        await tab.press(*(("s", 83), ("d", 68), ("u", 85))[number % 3])
        await _until_labels(tab, number + 1)
    labels = await _stored(tab)
    assert {label["label"] for label in labels} == {"same", "different", "unsure"}
    assert len({(label["position"], label["original_position"]) for label in labels}) == _LABELS
    parts = {int((label["estimate"] - 0.65) / 0.3 * _BINS) for label in labels}
    assert len(parts) >= _BINS - 2, parts
    await _check_undo(tab, labels)
    await _check_reload(tab, labels)
    await _check_download(tab, labels)
    await _check_deletion(tab)
    await start_judging(tab)


async def start_judging(tab: Tab) -> None:
    """Press the button, and wait for the first pair."""
    await tab.value("document.getElementById('judge-start').focus()")
    await tab.press("Enter", 13)
    await _until_pair(tab)


async def _check_whole_texts(tab: Tab) -> None:
    """W shows whole texts of the same pair, M hides the marks, and each key takes it back."""
    sides = "document.getElementById('pair-sides')"
    ids = f"[...{sides}.querySelectorAll('.name')].map((name) => name.textContent).join(' ')"
    marks = f"[...{sides}.querySelectorAll('mark')]"
    before, names = await tab.value(f"{sides}.innerText"), await tab.value(ids)
    await tab.press("w", 87)
    await tab.until(f"!{sides}.innerText.includes('…') && {_ACTIVE} === 'pair'")
    assert await tab.value(ids) == names
    assert len(await tab.value(f"{sides}.innerText")) >= len(before)
    shown = f"{marks}.some((mark) => getComputedStyle(mark).backgroundColor !== 'rgba(0, 0, 0, 0)')"
    assert await tab.value(shown)
    await tab.press("m", 77)
    assert not await tab.value(shown)
    await tab.press("m", 77)
    assert await tab.value(shown)
    await tab.press("w", 87)
    await tab.until(f"{sides}.innerText === {json.dumps(before)} && {_ACTIVE} === 'pair'")


async def _check_undo(tab: Tab, labels: list[dict[str, Any]]) -> None:
    """Undo removes the last label and shows its pair again."""
    await tab.press("z", 90)
    await _until_labels(tab, _LABELS - 1)
    assert labels[-1]["id"] in await tab.value("document.getElementById('pair').textContent")
    await tab.value("document.querySelector('#pair [data-label=\"same\"]').click()")
    await _until_labels(tab, _LABELS)
    labels[-1] = (await _stored(tab))[-1]
    assert labels[-1]["label"] == "same"


async def _check_reload(tab: Tab, labels: list[dict[str, Any]]) -> None:
    """Labels survive a reload, and keys do nothing while no pair is shown."""
    await tab.call("Page.reload")
    await tab.until(f"{_SHOWN}?.startsWith('{_LABELS} labels')")
    await tab.press("s", 83)
    await tab.value("document.getElementById('judge-start').focus()")
    await tab.press("s", 83)
    assert await _stored(tab) == labels


async def _check_download(tab: Tab, labels: list[dict[str, Any]]) -> None:
    """The file has one label per line, and no request goes to the worker."""
    with tempfile.TemporaryDirectory(prefix="streamdedup-labels-") as directory:
        await tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=directory)
        await tab.value("document.getElementById('labels-download').click()")
        path = await _arrived(Path(directory))
        lines = path.read_text(encoding="utf-8").splitlines()
        read = read_labels([str(path)], Settings())
    assert path.name.startswith("streamdedup-labels-")
    assert [json.loads(line) for line in lines] == labels
    assert [label.answer for label in read] == [label["label"] for label in labels]


async def _check_deletion(tab: Tab) -> None:
    """Labels are deleted only after a confirmation."""
    await tab.value("document.getElementById('labels-clear').click()")
    assert await tab.value(_ACTIVE) == "clear-no"
    await tab.press("Enter", 13)
    assert len(await _stored(tab)) == _LABELS
    await tab.value("document.getElementById('labels-clear').click()")
    question = await tab.value("document.getElementById('clear-question').textContent")
    assert f"{_LABELS} labels" in question, question
    await tab.value("document.getElementById('clear-yes').click()")
    await tab.until(f"{_SHOWN}.startsWith('0 labels')")
    assert await _stored(tab) == []


async def _until_pair(tab: Tab) -> None:
    """Wait until a pair is shown and has the focus."""
    await tab.until(f"{_ACTIVE} === 'pair' && {_SHOWN}.includes('unlabelled pairs')")


async def _until_labels(tab: Tab, count: int) -> None:
    await tab.until(f"{_SHOWN}.startsWith('{count} label')")
    await _until_pair(tab)


async def _stored(tab: Tab) -> list[dict[str, Any]]:
    labels: list[dict[str, Any]] = json.loads(
        await tab.value(
            "localStorage.getItem(Object.keys(localStorage)"
            ".find((name) => name.startsWith('streamdedup.labels.')))"
        )
    )
    return labels


async def _arrived(directory: Path) -> Path:
    """Return the downloaded file once it is complete."""
    for _ in range(int(TIMEOUT_S / 0.1)):
        files = await asyncio.to_thread(lambda: list(directory.glob("*.jsonl")))
        if files:
            return files[0]
        await asyncio.sleep(0.1)
    raise AssertionError("nothing was downloaded")
