"""*Blocking.* One LMDB environment of the index: its header, and errors put in our words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from streamdedup.errors import REMEDY, IndexDamaged, IndexFull, IndexMismatch, IndexUnusable

FORMAT = 1
_DATA = "data.mdb"
_DAMAGE = (
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)
_HEADER = b"header"
_APPLIED = b"applied"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an environment says of itself.

    Attributes:
        format: version of the layout.
        role: ``documents`` or ``shard-NNN``.
        shards: environments that share the bands.
        parameters: everything that the bits of a sketch depend on.
        log: the changelog whose offsets the environment has applied.
    """

    format: int
    role: str
    shards: int
    parameters: dict[str, int | str | bool]
    log: str


class Environment:
    """One LMDB environment with its header and the changelog offset that it has applied."""

    def __init__(self, directory: Path, header: Header, *, map_size: int, sync: bool) -> None:
        self.directory = directory
        with translated(directory):
            self._lmdb = lmdb.open(
                str(directory),
                map_size=map_size,
                max_dbs=8,
                sync=sync,
                readahead=False,
                max_readers=16,
            )
        try:
            self._check_size()
            with translated(directory):
                self._lmdb.reader_check()
            self._meta = self.database("meta")
            self._check_header(header)
        except BaseException:
            self._lmdb.close()
            raise

    def database(self, name: str, **options: Any) -> Any:
        """Open a named database, made when missing."""
        with translated(self.directory):
            return self._lmdb.open_db(name.encode(), **options)

    @contextmanager
    def read(self, database: Any) -> Iterator[Any]:
        """Run a read transaction; long ones keep pages from being used again."""
        with translated(self.directory), self._lmdb.begin(db=database, buffers=False) as txn:
            yield txn

    @contextmanager
    def write(self, applied: int) -> Iterator[Any]:
        """Run a write transaction that also moves the applied offset."""
        with translated(self.directory), self._lmdb.begin(write=True) as txn:
            yield txn
            txn.put(_APPLIED, str(applied).encode(), db=self._meta)
        self._fill()

    @property
    def applied(self) -> int:
        """The changelog offset up to which entries are in, exclusive."""
        return int(self.note(_APPLIED) or 0)

    def note(self, key: bytes) -> bytes | None:
        """Return a small value kept beside the data."""
        with self.read(self._meta) as txn:
            found: bytes | None = txn.get(key)
            return found

    def put_note(self, txn: Any, key: bytes, value: bytes) -> None:
        """Keep a small value beside the data, in the data's own transaction."""
        txn.put(key, value, db=self._meta)

    def entries(self, database: Any) -> int:
        """Return how many entries a database has."""
        with self.read(database) as txn:
            return int(txn.stat(database)["entries"])

    @property
    def bytes_used(self) -> int:
        """Bytes that the environment's pages take, of ``map_size``."""
        return int((self._lmdb.info()["last_pgno"] + 1) * self._lmdb.stat()["psize"])

    def close(self) -> None:
        """Close the environment."""
        self._lmdb.close()

    def _check_size(self) -> None:
        """Refuse a file that was cut: to read behind its end would kill the process."""
        size = (self.directory / _DATA).stat().st_size
        if size < self.bytes_used:
            raise IndexDamaged(
                f"{self.directory} is damaged (it has {size} bytes of {self.bytes_used}); {REMEDY}"
            )

    def _fill(self) -> None:
        """Let the file reach its last page; LMDB leaves an unused one at the end unwritten."""
        path = self.directory / _DATA
        if path.stat().st_size < self.bytes_used:
            os.truncate(path, self.bytes_used)

    def _check_header(self, expected: Header) -> None:
        raw = self.note(_HEADER)
        if raw is None:
            with self.write(0) as txn:
                self.put_note(txn, _HEADER, msgspec.json.encode(expected))
            return
        found = _decode_header(raw, self.directory)
        if found != expected:
            raise IndexMismatch(f"{self.directory}: {_difference(found, expected)}")


def _decode_header(raw: bytes, directory: Path) -> Header:
    try:
        layout = msgspec.json.decode(raw).get("format")
        if layout != FORMAT:
            raise IndexMismatch(
                f"{directory} has index format {layout}, this release reads {FORMAT}; use the "
                f"release that wrote it, or {REMEDY}"
            )
        return msgspec.json.decode(raw, type=Header)
    except (msgspec.MsgspecError, AttributeError) as error:
        raise IndexDamaged(f"{directory}: the header cannot be read: {error}") from error


def _difference(found: Header, expected: Header) -> str:
    differences = [
        f"{name} {found.parameters.get(name)} (the settings say {ours})"
        for name, ours in expected.parameters.items()
        if found.parameters.get(name) != ours
    ]
    if differences:
        return (
            f"the index was built with {', '.join(differences)}; restore the settings, or use "
            "another index directory and changelog"
        )
    if found.shards != expected.shards:
        return (
            f"the index has {found.shards} shards, index.shards is {expected.shards}; restore it, "
            f"or {REMEDY}"
        )
    if found.log != expected.log:
        return f"the index belongs to {found.log}, not to {expected.log}; use another directory"
    return f"this is {found.role}, not {expected.role}; files of an index have been mixed up"


@contextmanager
def translated(directory: Path) -> Iterator[None]:
    """Put LMDB's errors in our words.

    Raises:
        IndexFull: the map or the disk is full.
        IndexDamaged: the file is not what was written.
        IndexUnusable: anything else that LMDB reports.
    """
    try:
        yield
    except lmdb.MapFullError as error:
        raise IndexFull(
            f"{directory} has reached index.map_size; raise it, or lower index.window_documents"
        ) from error
    except _DAMAGE as error:
        raise IndexDamaged(f"{directory} is damaged ({error}); {REMEDY}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise IndexDamaged(f"{directory} holds what was not written ({error}); {REMEDY}") from error
    except lmdb.DiskError as error:
        raise IndexFull(f"the disk of {directory} is full; make room and start again") from error
    except lmdb.Error as error:
        raise IndexUnusable(f"{directory}: {error}") from error
