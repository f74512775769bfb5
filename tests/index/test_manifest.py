"""The manifest: two writers, the index and its background."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from streamdedup.errors import IndexDamaged
from streamdedup.index.layout import FORMAT, Checkpoint, Header, Tail
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


@pytest.mark.damages_index
@pytest.mark.parametrize("change", ["lost", "changed", "added"])
def test_records_are_those_that_were_written(change: str, tmp_path: Path) -> None:
    """A record that no transaction of ours has changed is damage, although LMDB is content."""
    with closing(Manifest(tmp_path, Header(FORMAT, {}, LOCAL_LOG), sync=False)) as manifest:
        for applied in (1, 2):
            manifest.append(applied, Tail(b"update", {}))
        manifest.announce(erased=[4, 5], overwritten=[5])
        tail = manifest._databases["tail"]  # noqa: SLF001 - behind the manifest's back
        with manifest._lmdb.begin(write=True, db=tail) as txn:  # noqa: SLF001
            key, value = next(iter(txn.cursor()))
            match change:
                case "lost":
                    txn.delete(key)
                case "changed":
                    txn.put(key, value[:-1] + b"\1")
                case "added":
                    txn.put(key[:-1] + b"\7", value)
    with pytest.raises(IndexDamaged, match="its records are not those that were written"):
        Manifest(tmp_path, None)


@pytest.mark.damages_index
def test_sum_follows_every_change(tmp_path: Path) -> None:
    """After every kind of transaction the manifest opens again."""
    header = Header(FORMAT, {}, LOCAL_LOG)
    for step in range(5):
        with closing(Manifest(tmp_path, header, sync=False)) as manifest:
            match step:
                case 0:
                    manifest.append(1, Tail(b"one", {}))
                    manifest.append(2, Tail(b"two", {"note": b"it"}))
                case 1:
                    manifest.announce(checkpoint=Checkpoint(applied=1), overwritten=[3])
                case 2:
                    manifest.announce(checkpoint=Checkpoint(applied=2), overwritten=[3, 8])
                case 3:
                    manifest.record_damage("00000001/documents.mdb", [4])
                    manifest.record_damage("00000002/documents.mdb", [5, 6])
                case 4:
                    manifest.rebind(header, Checkpoint())
    with closing(Manifest(tmp_path, header)) as manifest:
        assert list(manifest.tail()) == []
        assert manifest.erased() == {3: False, 8: False}
        assert manifest.checkpoint() == Checkpoint()
        assert manifest.damage() == {
            "00000001/documents.mdb": [4],
            "00000002/documents.mdb": [5, 6],
        }


@pytest.mark.damages_index
def test_a_lost_transaction(tmp_path: Path) -> None:
    """A damaged transaction number would silently lead back to the state before it."""
    with closing(Manifest(tmp_path, Header(FORMAT, {}, LOCAL_LOG), sync=False)) as manifest:
        for applied in range(1, 20):
            manifest.append(applied, Tail(b"", {}))
        newest = manifest._lmdb.info()["last_txnid"]  # noqa: SLF001
    path = manifest.directory / "data.mdb"
    content = bytearray(path.read_bytes())
    place = 4096 * (newest % 2) + 144
    assert content[place] == newest
    content[place] = newest - 8
    path.write_bytes(content)
    with pytest.raises(IndexDamaged, match="its last transaction is lost"):
        Manifest(tmp_path, None)
