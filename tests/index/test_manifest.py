"""The manifest: two writers, the index and its background."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from streamdedup.index.entries import Tail
from streamdedup.index.header import FORMAT, Header
from streamdedup.index.manifest import Manifest
from streamdedup.index.store import LOCAL_LOG


@pytest.mark.damages_index
def test_a_writer_waits_until_another_has_extended_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the slower of two writers would cut off pages that the faster one has written."""
    grown = []
    with closing(Manifest(tmp_path, Header(FORMAT, {}, LOCAL_LOG), sync=False)) as manifest:
        second = threading.Thread(target=manifest.append, args=(2, Tail(bytes(10**6), {})))
        extend = manifest._extend_file  # noqa: SLF001 - the moment between the two steps

        def extend_late() -> None:
            before = manifest.bytes_used
            if threading.current_thread() is not second:
                second.start()
                second.join(0.3)
                grown.append(manifest.bytes_used > before)
            extend()

        monkeypatch.setattr(manifest, "_extend_file", extend_late)
        manifest.append(1, Tail(b"", {}))
        second.join()
        assert [applied for applied, _ in manifest.tail()] == [1, 2]
    assert grown == [False]
